r"""The vector of a user in a factorisation, for known and new users: least squares against the items' vectors.

$$ \Big(w\,Y^\top Y + e \sum_{i \in u} y_i y_i^\top + r I\Big)\, u = p \sum_{i \in u} y_i $$

Hu, Koren and Volinsky, Collaborative Filtering for Implicit Feedback Datasets, ICDM 2008.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lbdrop.recommend.data.rows import Batch

__all__ = ["System", "fold_in"]


class System(NamedTuple):
    """The numbers of the users' systems, in the letters of the equation above."""

    pull: float
    """$p$: how much an interaction pulls."""
    extra: float
    """$e$: the weight of an interaction beyond that of any other pair."""
    base: float
    """$w$: the weight of every pair."""
    ridge: Float[Tensor, "size"]
    """$r$, a number for each user."""


def fold_in(
    batch: Batch, vectors: Float[Tensor, "items factors"], system: System, iterations: int = 30
) -> Float[Tensor, "size factors"]:
    """The vectors that solve the systems of a batch, all users at once, by conjugate gradients.

    Preconditioned with the part of the system that users share, so a few iterations reach rounding error.
    """
    pull, extra, base, ridge = system
    shared = base * vectors.T @ vectors
    typical = shared + ridge.mean() * torch.eye(len(shared), device=shared.device)
    factor = torch.linalg.cholesky(typical)
    item_vectors = vectors[batch.item]

    def bag(weight: Tensor) -> Tensor:
        return F.embedding_bag(batch.item, vectors, batch.offsets, mode="sum", per_sample_weights=weight)

    def image_of(u: Tensor) -> Tensor:
        dots = (item_vectors * u[batch.user]).sum(-1)
        return u @ shared + ridge[:, None] * u + bag(extra * dots)

    def solved(r: Tensor) -> Tensor:
        return torch.cholesky_solve(r.T, factor).T

    residual = bag(torch.full_like(item_vectors[:, 0], pull))
    # Once a user's residual is 0 (a user without items starts so), 0/0 would follow: the floor makes it a step of 0.
    floor = torch.finfo(vectors.dtype).tiny
    u = torch.zeros_like(residual)
    direction = step = solved(residual)
    size = (residual * step).sum(-1, keepdim=True)
    for _ in range(iterations):
        image = image_of(direction)
        length = size / (direction * image).sum(-1, keepdim=True).clamp_min(floor)
        u = u + length * direction
        residual = residual - length * image
        step = solved(residual)
        before, size = size, (residual * step).sum(-1, keepdim=True)
        direction = step + size / before.clamp_min(floor) * direction
    return u
