r"""How alike items are to a model: cosines of their vectors, or the weight with which one speaks for another."""

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.recommend.evaluate import device_of
from lbdrop.recommend.linear import Linear
from lbdrop.recommend.vae import VAE

__all__ = ["likeness"]


def likeness(model: VAE | Linear, numbers: Int64[Tensor, "n"]) -> Float[Tensor, "n items"]:
    """What the items of these numbers have in common with each item of the catalogue."""
    numbers = numbers.to(device_of(model))
    if isinstance(model, Linear) and "weights" in model.state:  # EASE and SLIM
        return model.state["weights"][numbers]
    if isinstance(model, Linear) and "items" not in model.state:
        raise DropoutError(f"similar_items: want a method that knows items apart, got {model.name!r}")
    vectors = model.state["items"] if isinstance(model, Linear) else model.item_vectors.detach()
    vectors = F.normalize(vectors.float(), dim=1)
    return vectors[numbers] @ vectors.T
