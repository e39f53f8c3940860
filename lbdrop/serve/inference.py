r"""Queries to a recommender, and the results of many queries from one forward pass.

A query is about one history: its best items, or given items. With reasons, the history is also scored without each of its
items in turn, $e_j = s_i(x) - s_i(x \setminus j)$, in the same pass. Items are indices into the catalogue here; ids and
titles belong to :mod:`lbdrop.serve.catalogue`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lbdrop.metrics.ranking import top_items
from lbdrop.recommend.answer.diversity import diverse_items
from lbdrop.recommend.answer.new_items import extended, with_new_items
from lbdrop.recommend.answer.scoring import (
    Histories,
    Scored,
    batches_of,
    padding_rows,
    popularity_scores,
    scoring,
    without_each,
)
from lbdrop.recommend.linear.methods import Popularity
from lbdrop.recommend.recommender import Recommender
from lbdrop.recommend.train.evaluate import device_of

__all__ = ["EMPTY_HISTORY", "HistoryQuery", "InferenceEngine", "ItemIndices", "Result", "SimilarQuery"]

ItemIndices = Int64[np.ndarray, "n"]
EMPTY_HISTORY = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class HistoryQuery:
    """About one history, the sorted indices of its items."""

    history: ItemIndices
    k: int = 1
    """Best items to find."""
    filter_viewed: bool = True
    allowed: ItemIndices | None = None
    """Items to choose the best from; all if ``None``."""
    excluded: ItemIndices | None = None
    """Items never to recommend."""
    diversity: float = 0.0
    """From 0, the best scores, to 1, the items least alike."""
    targets: ItemIndices | None = None
    """Given items, instead of the best ones."""
    reasons: bool = False
    """Whether to compute how much each item of the history supports the items of the result."""

    @property
    def rows(self) -> int:
        """Histories to score."""
        return 1 + len(self.history) * self.reasons

    def histories(self) -> Histories:
        return chain([self.history], without_each(self.history) if self.reasons else ())


@dataclass(frozen=True)
class SimilarQuery:
    """The k items most similar to this one."""

    item: int
    k: int
    rows: int = 1


class Result(NamedTuple):
    """Items by index, the best first, with their scores."""

    items: list[int]
    scores: list[float]
    spread: list[float] | None = None
    """The standard deviation of each log probability over masks, NaN for an empty history."""
    effects: Float[np.ndarray, "history items"] | None = None
    """How much the score of each item falls without each item of the history, if requested."""


class InferenceEngine:
    """A fitted recommender that answers in batches; not thread-safe."""

    def __init__(self, recommender: Recommender):
        self.model, self.items = recommender.model_, len(recommender.items_)
        self.device = device_of(self.model)
        self.samples = recommender.samples()
        own = scoring(self.model, self.samples, recommender.seed)
        self.scoring = with_new_items(own, recommender.new_items_)
        popular = Scored(popularity_scores(recommender.likes_)[None].float().to(self.device))
        self.popularity_scores = extended(popular, recommender.new_items_).scores[0]
        self.can_compare = not isinstance(recommender.model_, Popularity)
        """Whether the method can compare items."""

    def __call__(self, queries: Sequence[HistoryQuery | SimilarQuery]) -> list[Result]:
        """The results in the order of the queries; the other queries of the batch do not change a result."""
        of_histories = [query for query in queries if isinstance(query, HistoryQuery)]
        of_items = [query for query in queries if isinstance(query, SimilarQuery)]
        results = iter(self._history_results(of_histories) if of_histories else ())
        similar = iter(self._similar_results(of_items) if of_items else ())
        return [next(results if isinstance(query, HistoryQuery) else similar) for query in queries]

    def _history_results(self, queries: Sequence[HistoryQuery]) -> list[Result]:
        rows = [row for query in queries for row in query.histories()]
        parts = [self.scoring(batch) for batch in batches_of(rows, self.items, self.device)]
        scores = torch.cat([part.scores for part in parts]).float()
        spreads = [part.spread for part in parts if part.spread is not None]
        spread = torch.cat(spreads) if spreads else None
        first_rows = np.cumsum([0, *(query.rows for query in queries)])[:-1]
        place = torch.from_numpy(first_rows).to(scores.device)
        # An empty history gets the most popular items; but a history of one item without that item is scored by the model.
        empty = place[[not len(query.history) for query in queries]]
        scores[empty] = self.popularity_scores
        if spread is not None:
            spread[empty] = torch.nan
        chosen = self._items_of(queries, scores[place])
        results = []
        for query, first, items in zip(queries, first_rows, chosen, strict=True):
            score = scores[first, items]
            effects = None
            if query.reasons:
                without = scores[first + 1 : first + query.rows, items]
                effects = (score.double() - without.double()).cpu().numpy()
            spreads = None if spread is None else spread[first, items].tolist()
            results.append(Result(items.tolist(), score.tolist(), spreads, effects))
        return results

    def _items_of(self, queries: Sequence[HistoryQuery], scores: Float[Tensor, "n items"]) -> list[Tensor]:
        """The items of each result: the given ones, or the best of those that may be recommended."""
        hidden = np.zeros(scores.shape, bool)
        by_length: dict[int, list[int]] = defaultdict(list)
        for place, query in enumerate(queries):
            if query.targets is None and not query.diversity:
                by_length[query.k].append(place)
            if query.allowed is not None:
                hidden[place] = True
                hidden[place, query.allowed] = False
            if query.excluded is not None:
                hidden[place, query.excluded] = True
            if query.filter_viewed:
                hidden[place, query.history] = True
        seen, chosen = torch.from_numpy(hidden).to(scores.device), {}
        # By length: among equal scores topk may choose other items for another k.
        for k, places in by_length.items():
            best = top_items(scores[places], seen[places], k)
            chosen |= {place: row[row >= 0] for place, row in zip(places, best, strict=True)}
        for place, query in enumerate(queries):
            if (
                query.targets is None and query.diversity
            ):  # alone, so that other queries do not change how sums are rounded
                one = slice(place, place + 1)
                row = diverse_items(self.model, scores[one], seen[one], query.k, query.diversity, self.items)[0]
                chosen[place] = row[row >= 0]
        return [
            chosen[place] if query.targets is None else torch.from_numpy(query.targets).to(scores.device)
            for place, query in enumerate(queries)
        ]

    @torch.no_grad()
    def _similar_results(self, queries: Sequence[SimilarQuery]) -> list[Result]:
        items = [query.item for query in queries]
        padded = torch.tensor(items + [0] * padding_rows(len(items)))  # for the same reason as histories
        scores = self.model.similarity(padded.to(self.device))[: len(items)].float().cpu()
        results = []
        for query, row in zip(queries, scores, strict=True):
            best = top_items(row[None], (torch.zeros(1, dtype=torch.long), torch.tensor([query.item])), query.k)[0]
            best = best[best >= 0]
            results.append(Result(best.tolist(), row[best].tolist()))
        return results
