"""Ranking measures as a torchmetric: update with batches of users, compute once, over any number of processes.

Only sums are stored, in double precision: of each measure, of its square, and how often each item was recommended. So
memory does not grow with the users, and several processes give the same sums as one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.metrics import ranking
from lbdrop.metrics.ranking import Pairs
from lbdrop.metrics.streams import Scalars, _Stream

__all__ = ["Ranking"]


class Ranking(_Stream):
    """Recall@k and NDCG@k, averaged over the users with held-out items, their standard errors, coverage, popularity.

    Args:
        likes: of each item in training; its length is the catalogue's.
        recall: the k of Recall@k.
        ndcg: the k of NDCG@k.
        shown: the k of coverage and popularity.
    """

    higher_is_better = True
    total: Tensor
    square: Tensor
    users: Tensor
    popularity: Tensor
    shown_users: Tensor
    times: Tensor
    percentile: Tensor

    def __init__(
        self,
        likes: Int[Tensor, "items"] | Float[Tensor, "items"],
        recall: Sequence[int] = (20, 50),
        ndcg: Sequence[int] = (100,),
        shown: int = 20,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if not (recall or ndcg) or min((*recall, *ndcg, shown)) < 1:
            raise DropoutError(f"k: want at least one, each at least 1, got {[*recall]} and {[*ndcg]}, shown {shown}")
        self.measures = [(f"recall@{k}", ranking.recall_at_k, k) for k in recall]
        self.measures += [(f"ndcg@{k}", ranking.ndcg_at_k, k) for k in ndcg]
        self.shown = shown
        self._sum("total", "square", shape=(len(self.measures),))
        self._sum("users", "shown_users", dtype=torch.long)
        self._sum("popularity")
        self._sum("times", shape=(len(likes),), dtype=torch.long)
        self.register_buffer("percentile", ranking.popularity_percentile(likes), persistent=False)

    def update(
        self,
        scores: Float[Tensor, "users items"],
        seen: Bool[Tensor, "users items"] | Pairs | None,
        relevant: Bool[Tensor, "users items"],
    ) -> None:
        """Add some users: their scores, their seen items, and their held-out items."""
        ranked = ranking.top_items(scores, seen, max(self.shown, *(k for _, _, k in self.measures)))
        values = torch.stack([measure(ranked, relevant, k) for _, measure, k in self.measures]).double()
        has_held_out = relevant.any(1)
        self.total += values.nan_to_num(0.0).sum(1)
        self.square += values.nan_to_num(0.0).square().sum(1)
        self.users += has_held_out.sum()
        shown = ranking.popularity_at_k(ranked, self.percentile, self.shown)
        self.popularity += shown.double().nan_to_num(0.0).sum()
        self.shown_users += (~shown.isnan()).sum()
        self.times += ranking.times_recommended(ranked, len(self.times), self.shown)

    def compute(self) -> Scalars:
        mean = self.total / self.users
        error = ((self.square / self.users - mean.square()).clamp(min=0) / (self.users - 1)).sqrt()
        names = [name for name, _, _ in self.measures]
        return {
            **dict(zip(names, mean, strict=True)),
            **dict(zip((f"{name}_error" for name in names), error, strict=True)),
            f"coverage@{self.shown}": ranking.coverage(self.times),
            f"popularity@{self.shown}": self.popularity / self.shown_users,
        }
