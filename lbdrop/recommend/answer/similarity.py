"""The similarity of items: cosines of their vectors, or the weight of one item in another's score."""

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.recommend.linear.methods import Linear
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.evaluate import device_of

__all__ = ["item_vectors", "pairwise", "similarity"]


def similarity(model: VAE | Linear, indices: Int64[Tensor, "n"]) -> Float[Tensor, "n items"]:
    """The similarity of these items to each item of the catalogue."""
    indices = indices.to(device_of(model))
    if (weights := _weights(model)) is not None:
        return weights[indices]
    vectors = F.normalize(item_vectors(model).float(), dim=1)
    return vectors[indices] @ vectors.T


def pairwise(model: VAE | Linear, items: Int64[Tensor, "n c"]) -> Float[Tensor, "n c c"]:
    """The similarity of each pair of c items, n times, at most 1: weights are divided by that of a typical nearest item."""
    if (weights := _weights(model)) is not None:
        pairs = weights[items[:, :, None], items[:, None, :]].float()
        typical = weights.amax(1).median().clamp(min=1e-12).float()
        return ((pairs + pairs.mT) / 2 / typical).clamp(0, 1)
    vectors = F.normalize(item_vectors(model).float(), dim=1)[items]
    return vectors @ vectors.mT


def item_vectors(model: VAE | Linear) -> Float[Tensor, "items factors"]:
    """A vector of each item; an error for a method without."""
    if not isinstance(model, Linear):
        return model.item_vectors.detach()
    if "items" not in model.state:
        raise DropoutError(f"similar_items: want a method that can compare items, got {model.name!r}")
    return model.state["items"]


def _weights(model: VAE | Linear) -> Float[Tensor, "items items"] | None:
    """Of EASE, EDLAE and SLIM."""
    return model.state.get("weights") if isinstance(model, Linear) else None
