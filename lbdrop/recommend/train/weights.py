"""How much one expert counts beside another: the best of a grid on validation users, and what that gains.

By NDCG@100, because the likelihood is decided by items far down the list. Half of the users choose a weight that the other half
judges, so the gain is what other users may expect.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.metrics import ranking
from lbdrop.recommend.data.rows import Batch, users_at_once
from lbdrop.recommend.data.splits import HeldOut
from lbdrop.recommend.train.evaluate import HeldOutRows

__all__ = ["Chosen", "best_weight", "ndcg_of_each", "some_users"]

MAX_USERS = 2_000
"""Validation users that weights are chosen on; more take longer and tell little more."""


class Chosen(NamedTuple):
    """A weight of the grid."""

    place: int
    gain: float
    """NDCG@100 beside the expert that was there before, on users who did not choose the weight."""
    error: float


def some_users(held_out: HeldOut, device: torch.device) -> HeldOutRows:
    """Validation users with items to find."""
    some = np.flatnonzero(np.diff(held_out.held_out.indptr))
    some = np.sort(np.random.default_rng(0).permutation(some)[:MAX_USERS])
    return HeldOutRows.on(HeldOut(held_out.fold_in[some], held_out.held_out[some], held_out.users), device)


@torch.no_grad()
def ndcg_of_each(
    tables: Callable[[Batch], Iterable[Float[Tensor, "some items"]]], users: HeldOutRows
) -> Float[Tensor, "tables users"]:
    """NDCG@100 of every user for each of the tables of scores that the function makes of a batch."""
    found = []
    for batch, target in zip(*(each.batches(users_at_once(users.fold_in.items, 500), shuffle=False) for each in users),
                             strict=True):  # fmt: skip
        relevant = ranking.which_items(target.user, target.item, (batch.size, batch.items))
        ranked = (ranking.top_items(scores.float(), (batch.user, batch.item), 100) for scores in tables(batch))
        found.append(torch.stack([ranking.ndcg_at_k(each, relevant, 100) for each in ranked]))
    return torch.cat(found, 1)


def best_weight(found: Float[Tensor, "weights users"], alone: Float[Tensor, "users"]) -> Chosen:
    """Of a grid of weights, the first of them 0, beside users' measures without the new expert."""
    # Neighbours in the grid have nearly the same ranking; their mean has less of the chance of few users.
    smooth = torch.stack([found[0], *(found[max(i - 1, 1) : i + 2].mean(0) for i in range(1, len(found)))])
    odd = torch.arange(len(alone), device=found.device) % 2 == 1
    by_odd, by_even = (int(smooth[:, half].mean(1).argmax()) for half in (odd, ~odd))
    gain = (torch.where(odd, found[by_even], found[by_odd]) - alone).double()
    return Chosen(int(smooth.mean(1).argmax()), float(gain.mean()), float(gain.std() / math.sqrt(len(alone))))
