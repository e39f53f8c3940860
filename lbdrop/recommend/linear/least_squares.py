r"""Vectors of users (or of items) in a factorisation: least squares against the other side's, all of them at once.

$$ \Big(w\,Y^\top Y + e \sum_{i \in u} y_i y_i^\top + r I\Big)\, u = p \sum_{i \in u} y_i $$

Hu, Koren and Volinsky, Collaborative Filtering for Implicit Feedback Datasets, ICDM 2008.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.recommend.data.rows import Batch

__all__ = ["System", "alternate", "fold_in"]

STEPS = 3
"""Of conjugate gradients in a sweep: the next sweep goes on from there."""


class System(NamedTuple):
    """The numbers of the systems, in the letters of the equation above."""

    pull: float
    """$p$: how much an interaction pulls."""
    extra: float
    """$e$: the weight of an interaction beyond that of any other pair."""
    base: float
    """$w$: the weight of every pair."""
    ridge: Float[Tensor, "size"]
    """$r$, a number for each user."""


def alternate(
    matrix: Any, system: Callable[[Tensor, int], System], factors: int, sweeps: int, seed: int, device: torch.device
) -> Float[Tensor, "items factors"]:
    """The vectors of the items, by least squares for the users and for the items in turn.

    Args:
        matrix: binary scipy matrix (users, items).
        system: the numbers, from how many entries each row has and from the length of a row.
        factors: the length of the vectors.
        sweeps: how often both sides are solved.
        seed: draws the first vectors.
        device: where this happens.
    """
    sides = [_sparse(each.indptr, each.indices, None, each.shape, device) for each in (matrix, matrix.T.tocsr())]
    systems = [system(side.crow_indices().diff().float(), side.shape[1]) for side in sides]
    generator = torch.Generator().manual_seed(seed)
    users, items = (
        torch.randn(n, factors, generator=generator).div(10 * factors**0.5).to(device) for n in matrix.shape
    )
    for _ in range(sweeps):
        users = _solve(sides[0], items, systems[0], users, STEPS)
        items = _solve(sides[1], users, systems[1], items, STEPS)
    return items


def fold_in(
    batch: Batch, vectors: Float[Tensor, "items factors"], system: System, iterations: int = 30
) -> Float[Tensor, "size factors"]:
    """The vectors of a batch of users; entries with weights count that much."""
    starts = torch.cat([batch.offsets, batch.offsets.new_tensor([len(batch.item)])])
    rows = _sparse(starts, batch.item, batch.value, (batch.size, batch.items), vectors.device, vectors.dtype)
    return _solve(rows, vectors, system, vectors.new_zeros(batch.size, vectors.shape[1]), iterations)


def _sparse(
    starts: Any, items: Any, values: Tensor | None, shape: Any, device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    starts, items = (torch.as_tensor(each).to(device, torch.int64) for each in (starts, items))
    values = torch.ones(len(items), device=device) if values is None else values
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR|invariant)")  # torch calls them beta
        return torch.sparse_csr_tensor(starts, items, values.to(dtype), tuple(shape))


def _solve(rows: Tensor, vectors: Tensor, system: System, start: Tensor, iterations: int) -> Tensor:
    """Conjugate gradients, preconditioned with the part of the systems that all rows share."""
    pull, extra, base, ridge = system
    shared = base * vectors.T @ vectors
    factor = torch.linalg.cholesky(
        shared + ridge.mean() * torch.eye(len(shared), dtype=shared.dtype, device=shared.device)
    )
    across, weights = vectors.T.contiguous(), extra * rows.values()

    def image_of(u: Tensor) -> Tensor:
        dots = torch.sparse.sampled_addmm(rows, u.contiguous(), across, beta=0.0)
        dots.values().mul_(weights)
        return u @ shared + ridge[:, None] * u + dots @ vectors

    def solved(r: Tensor) -> Tensor:
        return torch.cholesky_solve(r.T, factor).T

    # Once a row's residual is 0 (a row without entries starts so), 0/0 would follow: the floor makes it a step of 0.
    floor = torch.finfo(vectors.dtype).tiny
    u, residual = start, pull * (rows @ vectors) - image_of(start)
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
