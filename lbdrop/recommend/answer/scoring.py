r"""Scores of every item for some users, their uncertainty, and the best items, a bounded number of users at a time.

$$ s_{ui} = \log \frac1S \sum_{s=1}^{S} p(i \mid x_u \odot z^{(s)}), \qquad z^{(s)}_i \sim \mathrm{Ber}(\sigma(\alpha_i)) $$

The $S$ masks are drawn once, with an entry for every item of the catalogue, and are the same for all users. Each user still has
$S$ independent masks, and the result of a user does not depend on the other users, or on the batches.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from lbdrop.metrics.ranking import top_items, which_items
from lbdrop.recommend.data.rows import Batch, Rows, users_at_once
from lbdrop.recommend.linear.methods import Linear
from lbdrop.recommend.model.product import Product
from lbdrop.recommend.model.vae import VAE

__all__ = [
    "Best", "Scored", "Scoring", "best_items", "popularity_scores", "scoring", "users_at_once", "with_fallback",
]  # fmt: skip


class Scored(NamedTuple):
    """Scores of some users, and their uncertainty."""

    scores: Float[Tensor, "users items"]
    spread: Float[Tensor, "users items"] | None = None
    """The standard deviation of the log probability over masks; ``None`` with fewer than two masks."""


Scoring = Callable[[Batch], Scored]
Choose = Callable[[Tensor, Tensor | None, int], Tensor]


class Best(NamedTuple):
    """The best items of some users, best first, on the host; item −1 if a user has no further item."""

    item: Int64[Tensor, "users k"]
    score: Float[Tensor, "users k"]
    spread: Float[Tensor, "users k"] | None


def scoring(model: VAE | Linear | Product, samples: int, seed: int) -> Scoring:
    """The model as a function of a batch, under ``samples`` masks; with 0 runs once without masks."""
    if isinstance(model, nn.Module):
        model.eval()
    masks = model.shared_masks(samples, seed)
    if masks is None:
        return lambda batch: Scored(model.plain_scores(batch))

    @torch.no_grad()
    def scored(batch: Batch) -> Scored:
        first = total = model.masked_scores(batch, masks[0].index_select(0, batch.item))
        mean, squares = torch.zeros_like(first), torch.zeros_like(first)
        for mask in masks[1:]:
            each = model.masked_scores(batch, mask.index_select(0, batch.item))
            total = torch.logaddexp(total, each)
            each -= first  # a difference of similar values keeps their digits
            mean += each / samples
            squares += each.square_()
        scores = total - math.log(samples) if model.averages_masks else model.plain_scores(batch)
        if samples == 1:
            return Scored(scores)
        variance = squares.sub_(mean.square_(), alpha=samples).clamp_(min=0) / (samples - 1)
        return Scored(scores, variance.sqrt_())

    return scored


def popularity_scores(likes: Float[np.ndarray, "items"]) -> Float[Tensor, "items"]:
    """The logarithm of each item's share of all likes: scores for users without items."""
    return torch.from_numpy(np.log((likes + 1) / (likes + 1).sum()))


def with_fallback(scored: Scoring, fallback: Float[Tensor, "items"]) -> Scoring:
    """The same, but users without items get the scores ``fallback``, without uncertainty."""

    def filled(batch: Batch) -> Scored:
        scores, spread = scored(batch)
        empty = batch.counts[:, None] == 0
        scores = torch.where(empty, fallback.to(scores.dtype), scores)
        return Scored(scores, None if spread is None else spread.masked_fill(empty, torch.nan))

    return filled


def best_items(
    scored: Scoring,
    rows: Rows,
    k: int,
    *,
    filter_viewed: bool = True,
    allowed: Bool[Tensor, "items"] | None = None,
    batch: int | None = None,
    choose: Choose = top_items,
) -> Iterator[Best]:
    """The k best items of every row in order, a batch at a time.

    Args:
        scored: from :func:`scoring`.
        rows: what each user has, on the model's device.
        k: items a user.
        filter_viewed: leave out what the user has.
        allowed: recommend these items alone.
        batch: users scored at once; the default is as many as memory allows.
        choose: from scores, what is hidden and k to the items of each user.
    """
    before: Best | None = None
    for users in rows.batches(batch or users_at_once(rows.items), shuffle=False):
        scores, spread = scored(users)
        scores = scores.float()
        seen = which_items(users.user, users.item, scores.shape) if filter_viewed else None
        if allowed is not None:
            seen = ~allowed.expand(scores.shape) if seen is None else seen | ~allowed
        best = choose(scores, seen, k)
        place = best.clamp(min=0)
        spread = None if spread is None else spread.gather(1, place).float()
        # One batch behind: the device works on the next one while the host copies this one.
        if before is not None:
            yield _on_host(before)
        before = Best(best, scores.gather(1, place), spread)
    if before is not None:
        yield _on_host(before)


def _on_host(best: Best) -> Best:
    return Best(best.item.cpu(), best.score.cpu(), None if best.spread is None else best.spread.cpu())
