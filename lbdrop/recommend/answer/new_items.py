r"""Scores of items that nobody has had yet, from what items are: ridge regression of a user's scores on items' features.

$$ \hat s_{uc} = \bar s_u + \sum_j s_{uj}\, f_j^\top (F^\top F + \lambda I)^{-1} f_c $$

$s_{uj}$ is the user's score of item $j$ by any method, $f$ are features minus their means. So the score of a new item is a
weighted sum of scores: where these are linear in vectors of the items (EASE, EDLAE, factorisations), it is the score of the
vector that ridge regression predicts for the item. λ is the one with the least squared error for items held out, one at a
time, in closed form: the error of item $i$ is its residual divided by $1 - h_{ii}$. It uses fitted users, with a fifth of
their items hidden.

The scores of new items are means of what is known, and so nearer to each other than those of others.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.recommend.answer.scoring import Scored, Scoring
from lbdrop.recommend.data.frames import positions, same_kind
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.item_features import Plan, encode, feature_table, make_plan
from lbdrop.recommend.data.rows import Rows, users_at_once
from lbdrop.recommend.data.splits import fold_in

__all__ = ["NewItems", "extended", "learn_new_items", "with_new_items"]

USERS = 500
"""Whose scores choose the ridge."""
RIDGES = np.logspace(-1, 4, 16)
MIN_ITEMS = 10
"""With features, to learn from."""


@dataclass(frozen=True, eq=False)
class NewItems:
    """What features say about scores, and items that are known by their features alone."""

    plan: Plan
    mean: Float[np.ndarray, "features"]
    from_scores: Float[Tensor, "items factors"]
    """Scores of fitted items times this, times ``features`` transposed, are the scores of the new ones."""
    ids: pl.Series
    features: Float[Tensor, "new factors"]
    ridge: float

    def to(self, device: torch.device) -> "NewItems":
        """The same on this device."""
        return replace(self, from_scores=self.from_scores.to(device), features=self.features.to(device))

    def replaced(self, frame: Any, items: pl.Series) -> "NewItems":
        """The same for other new items: those of a table that are not among ``items``."""
        table = feature_table(frame)
        if not same_kind(table["item_id"], items):
            raise DropoutError(
                f"item_id: want ids of type {items.dtype}, as in the data that was fitted, got {table['item_id'].dtype};"
                " cast them"
            )
        new = table.filter(positions(table["item_id"], items, "item_id") < 0)
        features = encode(self.plan, new) - self.mean if len(new) else np.zeros((0, len(self.mean)))
        columns = torch.from_numpy(np.concatenate([features, np.ones((len(new), 1))], 1)).to(self.from_scores)
        return replace(self, ids=new["item_id"].cast(items.dtype), features=columns)


def learn_new_items(frame: Any, data: Interactions, scored: Scoring, device: torch.device, seed: int) -> NewItems:
    """Learn from the features of fitted items; items of the table that nobody has are the new ones."""
    table = feature_table(frame)
    place = (
        positions(table["item_id"], data.items, "item_id") if same_kind(table["item_id"], data.items) else np.array([])
    )
    fitted = table.filter(place >= 0) if len(place) else table.clear()
    if len(fitted) < MIN_ITEMS:
        raise DropoutError(
            f"item_features: want at least {MIN_ITEMS} items of fit to learn from, got {len(fitted)} among {len(table):,} rows;"
            " pass all items, not the new ones alone"
        )
    plan, place = make_plan(fitted), place[place >= 0]
    features = encode(plan, fitted)
    mean = features.mean(0)
    features -= mean
    values, vectors = np.linalg.eigh(features.T @ features)
    values, rotated = values.clip(min=0), features @ vectors
    scores = _sample(data, scored, device, seed)[:, place]
    scores -= scores.mean(1, keepdims=True)
    projected = scores @ rotated

    def error(ridge: float) -> float:
        shrunk = rotated / (values + ridge)
        leverage = 1 / len(rotated) + (rotated * shrunk).sum(1)
        return float((((scores - projected @ shrunk.T) / (1 - leverage).clip(min=1e-6)) ** 2).mean())

    ridge = float(min(RIDGES, key=error))
    weights = np.zeros((len(data.items), features.shape[1] + 1))
    weights[place, :-1] = rotated / (values + ridge) @ vectors.T
    weights[place, -1] = 1 / len(place)
    on_device = torch.from_numpy(weights).float().to(device)
    empty = NewItems(plan, mean, on_device, data.items[:0], on_device[:0], ridge)
    return empty.replaced(table, data.items)


def _sample(data: Interactions, scored: Scoring, device: torch.device, seed: int) -> np.ndarray:
    """Scores of some users by a part of their items."""
    users = np.random.default_rng(seed).permutation(len(data.users))[:USERS]
    shown = Rows.from_csr(fold_in(data.select(users), seed % 2**32).fold_in, device)
    batches = shown.batches(users_at_once(shown.items), shuffle=False)
    with torch.no_grad():
        return torch.cat([scored(batch).scores.cpu() for batch in batches]).double().numpy()


def with_new_items(scored: Scoring, new: NewItems | None) -> Scoring:
    """The same, with columns for the new items."""
    return scored if new is None else lambda batch: extended(scored(batch), new)


def extended(found: Scored, new: NewItems | None) -> Scored:
    """Scores with columns for the new items, which have no uncertainty."""
    if new is None:
        return found
    scores = found.scores.float()
    more = scores @ new.from_scores @ new.features.T
    spread = None if found.spread is None else torch.cat([found.spread, torch.full_like(more, torch.nan)], 1)
    return Scored(torch.cat([scores, more], 1), spread)
