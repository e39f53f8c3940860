r"""EDLAE and iALS together: the scores of the one plus a share of the other's, both without a network.

$$ \text{scores} = X B + c\, U V^\top $$

$B$ has a weight for each pair of items that somebody has together; $V$ has a short vector for each item, so that it also tells
of pairs that nobody has. Both are scaled as probabilities of a like are, so one share fits all users. The ridge of iALS and the
share are the best for NDCG@100 of validation users; the share is 0 where iALS does not help them.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csr_array, vstack
from torch import Tensor

from lbdrop.recommend.data.rows import Batch
from lbdrop.recommend.data.splits import HeldOut, hidden_fifth
from lbdrop.recommend.linear.closed_form import EDLAE
from lbdrop.recommend.linear.factors import IALS
from lbdrop.recommend.train.weights import best_weight, ndcg_of_each, some_users

__all__ = ["Blend"]

FACTORS, SWEEPS, UNOBSERVED = 128, 8, 0.3
RIDGES = (0.0025, 0.005, 0.01, 0.02)
MANY_LIKES = 200_000
"""With more, the largest ridge is too large; with fewer, the smallest is too small."""
SHARES = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)
SPEED = {"cpu": 2e5, "cuda": 2e7}
"""Likes that are factorised in a second."""
MOST_SECONDS = 250.0
"""If nobody gives a budget; where iALS would take longer, EDLAE is alone."""
MIN_JUDGES, FOLDS = 500, 3
"""With fewer held-out users, training users judge as well, in so many parts that were not fitted to them."""


class Blend(EDLAE):
    """EDLAE plus a share of iALS, by validation users; the arguments are EDLAE's."""

    name = "blend"

    @property
    def learns_from_held_out(self) -> bool:
        """Whatever is given of EDLAE, held-out users choose the share."""
        return True

    @property
    def share(self) -> float:
        """How much the scores of iALS count; 0 where they do not help."""
        return float(self.state["factors"][0]) if "factors" in self.state else 0.0

    def fit(self, matrix: Any, held_out: HeldOut | None = None) -> "Blend":
        if held_out is None or not held_out.scored:
            warnings.warn(
                "blend: want held-out users to choose the share of iALS, got none; EDLAE is alone (method 'edlae' is it)",
                stacklevel=3,
            )
            super().fit(matrix, held_out)
        else:
            self.release(self.begin(matrix, held_out), matrix, held_out)
        return self

    def begin(self, rows: Any, held_out: HeldOut, seconds: float | None = None) -> Any:
        gram = super().begin(rows, held_out)
        work = len(RIDGES) * rows.nnz / SPEED.get(self.device.type, SPEED["cpu"])
        if work <= (MOST_SECONDS if seconds is None else seconds):
            ridges = RIDGES[:-1] if rows.nnz > MANY_LIKES else RIDGES[1:]
            found = torch.cat([self._judged(*each, ridges) for each in self._parts(rows, held_out)], 2)
            ridge = int(found.mean((1, 2)).argmax())
            chosen = best_weight(found[ridge], found[ridge, 0])
            if chosen.gain > 0 and chosen.place:
                self._add(self._factorised(rows, ridges[ridge]), SHARES[chosen.place])
        return gram

    def _parts(self, rows: Any, held_out: HeldOut) -> Iterator[tuple[EDLAE, Any, HeldOut]]:
        """What is fitted to whom, and who judges it: where held-out users are few, training users in turn as well."""
        yield self, rows, held_out
        users = rows.shape[0]
        if held_out.scored < MIN_JUDGES and users >= 2 * FOLDS:
            fold = np.random.default_rng(0).permutation(users) % FOLDS
            for number in range(FOLDS):
                others, judges = (csr_array(rows[np.flatnonzero(each)]) for each in (fold != number, fold == number))
                model = EDLAE(
                    self.rate, self.regularisation, max_items=self.max_items, balance=self.balance, device=self.device
                )
                model.ridge = self.ridge
                model.solve(model.counted(others))
                yield model, others, hidden_fifth(judges)

    def _judged(
        self, pairs: EDLAE, rows: Any, held_out: HeldOut, ridges: Sequence[float]
    ) -> Float[Tensor, "ridges shares users"]:
        """NDCG@100 of held-out users for each ridge of iALS and each share of it."""
        tried = [self._factorised(rows, ridge) for ridge in ridges]

        def tables(batch: Batch) -> Iterator[Tensor]:
            scores = pairs.scores(batch)
            for model in tried:
                factors = model.scores(batch)
                yield from (scores + share * factors for share in SHARES)

        return ndcg_of_each(tables, some_users(held_out, self.device)).view(len(ridges), len(SHARES), -1)

    def release(self, gram: Any, rows: Any, held_out: HeldOut) -> "Blend":
        share, ridge = (self.share, float(self.state["factors"][1])) if self.share else (0.0, 0.0)
        super().release(gram, rows, held_out)
        if share:
            everybody = csr_array(vstack([rows, held_out.fold_in + held_out.held_out]))
            self._add(self._factorised(everybody, ridge), share)
        return self

    def scores(self, batch: Batch) -> Float[Tensor, "size items"]:
        pairs = super().scores(batch)
        if "factors" not in self.state:
            return pairs
        share, ridge = self.state["factors"].tolist()
        model = IALS(1, UNOBSERVED, ridge, device=self.device).restore({"items": self.state["items"]})
        return pairs + share * model.scores(batch)

    def _factorised(self, rows: Any, ridge: float) -> IALS:
        return IALS(FACTORS, UNOBSERVED, ridge, epochs=SWEEPS, device=self.device).fit(rows)

    def _add(self, model: IALS, share: float) -> None:
        numbers = torch.tensor([share, model.regularisation], dtype=torch.float64, device=self.device)
        self.state |= {"items": model.state["items"], "factors": numbers}
