r"""Scores of some histories in one forward pass, under all masks at once: a row of the pass is one user under one mask.

:func:`~lbdrop.recommend.answer.scoring.scoring` runs one mask after the other, because all masks of all users would not fit. A
request has only a few users, and ten products of a few rows take longer than one product of ten times the rows. The masks are
the same, so the scores are the same up to the rounding of sums.

A product may round differently with the number of its rows, and some activations in the last entries of a table. So ``PADDING``
empty rows are added, and more up to the next multiple of it. With one thread of torch on a CPU, a result then has the same bits
in every batch.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from lbdrop.recommend.answer.new_items import with_new_items
from lbdrop.recommend.answer.scoring import Scored, Scoring, users_at_once
from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.linear.methods import Linear
from lbdrop.recommend.model.product import Product
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.recommender import Recommender
from lbdrop.recommend.train.evaluate import device_of

__all__ = ["EMPTY_HISTORY", "BatchScorer", "ItemIndices", "padding_rows"]

PADDING = 4
ItemIndices = Int64[np.ndarray, "n"]
EMPTY_HISTORY = np.empty(0, np.int64)


class BatchScorer:
    """A fitted recommender as a function from histories, each the sorted indices of its items, to scores."""

    def __init__(self, recommender: Recommender):
        self.items, self.device = len(recommender.items_), device_of(recommender.model_)
        self.samples = recommender.samples()
        in_one_pass = scoring_in_one_pass(recommender.model_, self.samples, recommender.seed)
        self.scoring = with_new_items(in_one_pass, recommender.new_items_)
        self.max_histories = max(1, users_at_once(self.items) // max(self.samples, 1))
        """Histories in one pass; more would exceed the memory of one table of scores."""

    @torch.no_grad()
    def __call__(self, histories: Sequence[ItemIndices]) -> Scored:
        parts = [
            self.scoring(self._batch(histories[first : first + self.max_histories]))
            for first in range(0, len(histories), self.max_histories)
        ]
        spreads = [part.spread for part in parts if part.spread is not None]
        return Scored(torch.cat([part.scores for part in parts]).float(), torch.cat(spreads) if spreads else None)

    def _batch(self, histories: Sequence[ItemIndices]) -> Batch:
        starts = np.concatenate([[0], np.cumsum([len(history) for history in histories])])
        item = torch.from_numpy(np.concatenate(histories))
        return Rows(starts, item, self.items, device=self.device).batch(range(len(histories)))


def scoring_in_one_pass(model: VAE | Linear | Product, samples: int, seed: int) -> Scoring:
    """As :func:`~lbdrop.recommend.answer.scoring.scoring`, but all masks in one pass."""
    if isinstance(model, nn.Module):
        model.eval()

    def plain_scores(batch: Batch) -> Tensor:
        return model.plain_scores(_repeat_and_pad(batch, 1))[: batch.size]

    masks = model.shared_masks(samples, seed)
    if masks is None:
        return lambda batch: Scored(plain_scores(batch))

    def scored(batch: Batch) -> Scored:
        found = model.masked_scores(_repeat_and_pad(batch, samples), masks.index_select(1, batch.item).flatten(0, 1))
        each = found[: samples * batch.size].view(samples, batch.size, -1)
        largest = each.amax(0)
        each -= largest  # a difference of similar values keeps their digits
        # Added one by one: a sum over an outer axis rounds differently with the size of the inner axes.
        mean = _sum_in_order(each) / samples
        squares = _sum_in_order(each.square())
        spread = (squares - samples * mean.square()).clamp_(min=0).div_(max(samples - 1, 1)).sqrt_()
        if model.averages_masks:
            scores = _sum_in_order(each.exp_()).log_() + (largest - math.log(samples))
        else:
            scores = plain_scores(batch)
        return Scored(scores, spread if samples > 1 else None)

    return scored


def padding_rows(rows: int) -> int:
    """How many empty rows to add."""
    return PADDING + -rows % PADDING


def _sum_in_order(each: Float[Tensor, "n users items"]) -> Float[Tensor, "users items"]:
    first, *others = each
    total = first.clone()
    for other in others:
        total += other
    return total


def _repeat_and_pad(batch: Batch, times: int) -> Batch:
    """The batch several times, one after the other, then empty rows."""
    entries, rows = len(batch.item), times * batch.size
    padding = padding_rows(rows)
    copy = torch.arange(times, device=batch.device)[:, None]

    def tiled(each: Tensor, step: int = 0, end: int = 0) -> Tensor:
        flat = (each + copy * step).flatten() if step else each.repeat(times)
        return torch.cat([flat, flat.new_full((padding,), end)]) if each is not batch.user else flat

    user, item = tiled(batch.user, batch.size), batch.item.repeat(times)
    return Batch(
        user=user,
        item=item,
        size=rows + padding,
        items=batch.items,
        number=tiled(batch.number),
        counts=tiled(batch.counts),
        offsets=tiled(batch.offsets, entries, end=times * entries),
        cell=torch.add(item, user, alpha=batch.items),
    )
