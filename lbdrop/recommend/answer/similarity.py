"""The similarity of items: cosines of their vectors, or the weight of one item in another's score."""

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.recommend.linear.methods import Linear
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.evaluate import device_of

__all__ = ["similarity"]


def similarity(model: VAE | Linear, indices: Int64[Tensor, "n"]) -> Float[Tensor, "n items"]:
    """The similarity of these items to each item of the catalogue."""
    indices = indices.to(device_of(model))
    if isinstance(model, Linear) and "weights" in model.state:  # EASE, EDLAE and SLIM
        return model.state["weights"][indices]
    if isinstance(model, Linear) and "items" not in model.state:
        raise DropoutError(f"similar_items: want a method that can compare items, got {model.name!r}")
    vectors = model.state["items"] if isinstance(model, Linear) else model.item_vectors.detach()
    vectors = F.normalize(vectors.float(), dim=1)
    return vectors[indices] @ vectors.T
