r"""Scores of some histories in one forward pass, masks and all: a row of the pass is one user under one mask.

:func:`lbdrop.recommend.scoring.scoring` runs mask after mask, since those of everybody at once would not fit. Requests are of
a few users, and ten products of a few rows each take longer than one of ten times the rows. The masks are the same ones, so
the answers are the same, up to the rounding of sums.

A product may round differently with the number of its rows, and some activations in the last few numbers of a table. Rows of
nothing are therefore added, ``FILL`` and up to the next multiple of it: with one thread of torch on a CPU an answer is then
the same to the last bit, whoever else is in the batch.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lbdrop.recommend.evaluate import device_of
from lbdrop.recommend.linear import Linear
from lbdrop.recommend.model import Recommender
from lbdrop.recommend.rows import Batch, Rows
from lbdrop.recommend.scoring import Scored, Scoring, drawn_masks, log_probabilities, users_at_once
from lbdrop.recommend.vae import VAE

__all__ = ["NOTHING", "Forward", "Numbers", "filling"]

FILL = 4
Numbers = Int64[np.ndarray, "n"]
NOTHING = np.empty(0, np.int64)


class Forward:
    """A fitted recommender as a function of histories, each the sorted numbers of its items."""

    def __init__(self, recommender: Recommender):
        self.items, self.device = len(recommender.items_), device_of(recommender.model_)
        self.samples = recommender.samples()
        self.scored = every_mask(recommender.model_, self.samples, recommender.seed)
        self.at_once = max(1, users_at_once(self.items) // max(self.samples, 1))
        """Histories in one pass at most; more would not fit the memory that a table of scores may take."""

    @torch.no_grad()
    def __call__(self, histories: Sequence[Numbers]) -> Scored:
        parts = [
            self.scored(self._batch(histories[first : first + self.at_once]))
            for first in range(0, len(histories), self.at_once)
        ]
        spreads = [part.spread for part in parts if part.spread is not None]
        return Scored(torch.cat([part.scores for part in parts]).float(), torch.cat(spreads) if spreads else None)

    def _batch(self, histories: Sequence[Numbers]) -> Batch:
        starts = np.concatenate([[0], np.cumsum([len(history) for history in histories])])
        item = torch.from_numpy(np.concatenate(histories))
        return Rows(starts, item, self.items, device=self.device).batch(range(len(histories)))


def every_mask(model: VAE | Linear, samples: int, seed: int) -> Scoring:
    """As :func:`~lbdrop.recommend.scoring.scoring`, all masks in one pass."""
    if isinstance(model, Linear):
        return lambda batch: Scored(model.scores(_repeated(batch, 1))[: batch.size])
    model.eval()
    masks = drawn_masks(model, samples, seed)
    if masks is None:
        return lambda batch: Scored(model.scores(_repeated(batch, 1), samples=0)[: batch.size])

    def scored(batch: Batch) -> Scored:
        found = log_probabilities(model, _repeated(batch, samples), masks.index_select(1, batch.item).flatten())
        each = found[: samples * batch.size].view(samples, batch.size, -1)
        most = each.amax(0)
        each -= most  # of values alike: no digits are lost
        # Added one by one: a sum over an outer axis rounds differently with the size of the inner ones.
        mean = _added(each) / samples
        squares = _added(each.square())
        spread = (squares - samples * mean.square()).clamp_(min=0).div_(max(samples - 1, 1)).sqrt_()
        scores = _added(each.exp_()).log_() + (most - math.log(samples))
        return Scored(scores, spread if samples > 1 else None)

    return scored


def filling(rows: int) -> int:
    """How many rows of nothing to add."""
    return FILL + -rows % FILL


def _added(each: Float[Tensor, "n users items"]) -> Float[Tensor, "users items"]:
    first, *others = each
    total = first.clone()
    for other in others:
        total += other
    return total


def _repeated(batch: Batch, times: int) -> Batch:
    """The batch several times, one after the other, and rows of nothing at the end."""
    entries, rows = len(batch.item), times * batch.size
    fill = filling(rows)
    copy = torch.arange(times, device=batch.device)[:, None]

    def tiled(each: Tensor, step: int = 0, end: int = 0) -> Tensor:
        flat = (each + copy * step).flatten() if step else each.repeat(times)
        return torch.cat([flat, flat.new_full((fill,), end)]) if each is not batch.user else flat

    user, item = tiled(batch.user, batch.size), batch.item.repeat(times)
    return Batch(
        user=user,
        item=item,
        size=rows + fill,
        items=batch.items,
        number=tiled(batch.number),
        counts=tiled(batch.counts),
        offsets=tiled(batch.offsets, entries, end=times * entries),
        cell=torch.add(item, user, alpha=batch.items),
    )
