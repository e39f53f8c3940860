r"""Scores of every item for some users, their uncertainty, and the best items, a bounded number of users at a time.

$$ s_{ui} = \log \frac1S \sum_{s=1}^{S} p(i \mid x_u \odot z^{(s)}), \qquad z^{(s)}_i \sim \mathrm{Ber}(\sigma(\alpha_i)) $$

The one way from a fitted model to numbers: recommendations, explanations, files of scores and the service come from here. The
$S$ masks are drawn once, with an entry for every item of the catalogue, and are the same for all users. Each user still has
$S$ independent masks, and the result of a user does not depend on the other users. As many masks share a pass as fit into one
table of scores: all of them for a few users, since ten products of a few rows take longer than one product of ten times the
rows; one by one for many.

A product may round differently with the number of its rows, and some activations in the last entries of a table. So ``PADDING``
empty rows are added, and more up to the next multiple of it. With one thread of torch on a CPU, a result then has the same bits
in every batch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
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
    "Best", "Histories", "Scored", "Scoring", "batches_of", "best_items", "padding_rows", "popularity_scores", "scoring",
    "users_at_once", "with_fallback", "without_each",
]  # fmt: skip

PADDING = 4


class Scored(NamedTuple):
    """Scores of some users, and their uncertainty."""

    scores: Float[Tensor, "users items"]
    spread: Float[Tensor, "users items"] | None = None
    """The standard deviation of the log probability over masks; ``None`` with fewer than two masks."""


Scoring = Callable[[Batch], Scored]
Choose = Callable[[Tensor, Tensor | None, int], Tensor]
Histories = Iterable[Int64[np.ndarray, "_"]]
"""Of each user, the sorted indices of the items."""


class Best(NamedTuple):
    """The best items of some users, best first, on the host; item −1 if a user has no further item."""

    item: Int64[Tensor, "users k"]
    score: Float[Tensor, "users k"]
    spread: Float[Tensor, "users k"] | None

    @classmethod
    def cat(cls, parts: "Sequence[Best]") -> "Best":
        """One for all of these users."""
        spreads = [part.spread for part in parts if part.spread is not None]
        items, scores = torch.cat([part.item for part in parts]), torch.cat([part.score for part in parts])
        return cls(items, scores, torch.cat(spreads) if spreads else None)


def scoring(model: VAE | Linear | Product, samples: int, seed: int) -> Scoring:
    """The model as a function of a batch, under ``samples`` masks; with 0 runs once without masks."""
    if isinstance(model, nn.Module):
        model.eval()
    masks = model.shared_masks(samples, seed)

    @torch.no_grad()
    def scored(batch: Batch) -> Scored:
        padded = _padded(batch)
        if masks is None:
            return Scored(model.plain_scores(padded)[: batch.size])
        first = total = mean = squares = torch.empty(0)
        for index, each in enumerate(_under(model, masks, padded)):
            if not index:
                first, total, mean, squares = each, each.clone(), torch.zeros_like(each), torch.zeros_like(each)
                continue
            total = torch.logaddexp(total, each)
            each -= first  # a difference of similar values keeps their digits
            mean += each / samples
            squares += each.square_()
        scores = total - math.log(samples) if model.averages_masks else model.plain_scores(padded)
        if samples == 1:
            return Scored(scores[: batch.size])
        variance = squares.sub_(mean.square_(), alpha=samples).clamp_(min=0) / (samples - 1)
        return Scored(scores[: batch.size], variance.sqrt_()[: batch.size])

    return scored


def _under(model: VAE | Linear | Product, masks: Tensor, batch: Batch) -> Iterator[Float[Tensor, "users items"]]:
    """The scores under each mask, as many masks in a pass as fit into one table."""
    for some in masks.split(max(1, users_at_once(batch.items) // batch.size)):
        found = model.masked_scores(_repeated(batch, len(some)), some.index_select(1, batch.item).flatten(0, 1))
        yield from found.view(len(some), batch.size, -1)


def padding_rows(rows: int) -> int:
    """How many empty rows to add."""
    return PADDING + -rows % PADDING


def _padded(batch: Batch) -> Batch:
    """The batch with empty rows at its end."""
    extra = padding_rows(batch.size)

    def longer(each: Tensor, value: int = 0) -> Tensor:
        return torch.cat([each, each.new_full((extra,), value)])

    return replace(
        batch, size=batch.size + extra, number=longer(batch.number), counts=longer(batch.counts),
        offsets=longer(batch.offsets, len(batch.item)),
    )  # fmt: skip


def _repeated(batch: Batch, times: int) -> Batch:
    """The batch several times, one after the other."""
    if times == 1:
        return batch
    copy = torch.arange(times, device=batch.device)[:, None]
    user, item = (batch.user + copy * batch.size).flatten(), batch.item.repeat(times)
    return Batch(
        user=user, item=item, size=times * batch.size, items=batch.items, number=batch.number.repeat(times),
        counts=batch.counts.repeat(times), offsets=(batch.offsets + copy * len(batch.item)).flatten(),
        cell=torch.add(item, user, alpha=batch.items),
    )  # fmt: skip


def batches_of(histories: Histories, items: int, device: torch.device | str | None) -> Iterator[Batch]:
    """These histories, as many at once as fit into one table of scores."""
    left = iter(histories)
    while some := list(islice(left, users_at_once(items))):
        starts = np.concatenate([[0], np.cumsum([len(history) for history in some])])
        rows = Rows(starts, torch.from_numpy(np.concatenate(some)), items, device=device)
        yield rows.batch(range(len(some)))


def without_each(history: Int64[np.ndarray, "n"]) -> Iterator[Int64[np.ndarray, "_"]]:
    """The history without each of its items in turn."""
    return (np.delete(history, each) for each in range(len(history)))


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
