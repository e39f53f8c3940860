r"""A dataframe of interactions as a sparse matrix of users × items, and back.

$$ x_{ui} = \sum_{\text{rows of } (u, i)} w \qquad\text{or}\qquad x_{ui} = 1\big[\max_{\text{rows of } (u, i)} w \ge a\big] $$

Polars (also lazy), pandas and whatever else narwhals reads, with the columns ``user_id``, ``item_id`` and, if there is
one, ``weight``. Other columns, ``datetime`` among them, are ignored. The rules:

- Ids are whole numbers or text; categories count as their text. Rows and columns of the matrix are sorted by id.
- A pair that occurs twice is one like if binary, and has the sum of its weights otherwise.
- Without ``weight`` every pair is a like of 1. With it, weights are at least 0, and a pair of weight 0 is no interaction;
  a user with only such pairs stays as an empty row.
- ``at_least`` keeps pairs of at least this weight, as likes of 1; then weights may be negative.
- The filters run once, items first, then users, as in Liang et al., Variational Autoencoders for Collaborative
  Filtering, 2018. So an item can end below ``min_item_users`` after users were removed.
- Nulls, NaN, infinite weights, missing columns and frames without interactions are errors.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float32, Int32
from scipy.sparse import coo_array, csr_array

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.frames import (
    Indices,
    check_vocabulary,
    distinct,
    positions,
    read_columns,
    summable,
)

__all__ = ["Interactions", "check_filters", "compress", "no_interactions", "warn_of_ratings"]


def compress(
    lines: Int32[np.ndarray, "n"],
    columns: Int32[np.ndarray, "n"],
    weights: Float32[np.ndarray, "n"] | None,
    shape: tuple[int, int],
) -> csr_array:
    """Pairs of row and column as a matrix: each pair once, with the sum of its weights, or 1 without weights; no zeros."""
    values = np.ones(len(lines), np.float32) if weights is None else weights
    rows = csr_array(coo_array((values, (lines, columns)), shape=shape))  # sums duplicates
    if weights is None:
        rows.data[:] = 1.0
    rows.eliminate_zeros()
    rows.sort_indices()
    return rows


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """A users × items matrix with the ids of its rows and columns.

    >>> frame = pl.DataFrame({"user_id": ["eve", "eve", "bob"], "item_id": [7, 3, 7], "weight": [5, 2, 4]})
    >>> Interactions.from_frame(frame)
    Interactions(2 users × 2 items, 3 entries)
    >>> Interactions.from_frame(frame, at_least=4).to_frame().rows()
    [('bob', 7, 1.0), ('eve', 7, 1.0)]
    """

    rows: csr_array
    """float32, sorted, no pair twice, no zeros; 1 for a like, or its weight."""
    users: pl.Series
    """The id of each row, sorted."""
    items: pl.Series
    """The id of each column, sorted."""
    unknown: int = 0
    """Rows of the frame that were left out because their item is not in the vocabulary."""

    def __post_init__(self) -> None:
        if self.rows.shape != (len(self.users), len(self.items)):
            raise DropoutError(
                f"rows: want a matrix of {len(self.users):,} users × {len(self.items):,} items, as there are ids, got"
                f" {self.rows.shape}"
            )

    def __repr__(self) -> str:
        return f"Interactions({len(self.users):,} users × {len(self.items):,} items, {self.rows.nnz:,} entries)"

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        at_least: float | None = None,
        min_user_items: int = 0,
        min_item_users: int = 0,
        items: pl.Series | None = None,
        user: str = "user_id",
        item: str = "item_id",
        weight: str | None = "weight",
    ) -> "Interactions":
        """Read a dataframe.

        Args:
            frame: polars, a LazyFrame, pandas, or another library that narwhals supports; each row is an interaction.
            at_least: keep weights of at least this, as likes of 1.
            min_user_items: leave out users with fewer distinct items, after the items' filter.
            min_item_users: leave out items with fewer distinct users.
            items: a fixed vocabulary, the ids of the columns in their order, such as another's ``items``. Rows of other items
                are dropped and counted in ``unknown``; every user of the frame stays, perhaps as an empty row.
            user: name of the column of users; ``item`` and ``weight`` likewise. A column ``weight`` may be missing, one of
                another name may not. ``weight=None`` ignores weights.
        """
        table = read_columns(frame, user, item, weight)
        if at_least is not None and "weight" not in table.columns:
            raise DropoutError(
                f"at_least: want a column {weight!r} to compare with {at_least:g}, got a frame without it"
            )
        binary = at_least is not None or "weight" not in table.columns
        liked = table if at_least is None else table.filter(pl.col("weight") >= at_least)
        if items is None:
            if not len(liked):
                raise no_interactions(len(table), at_least)
            users, vocabulary = distinct(liked["user_id"]), distinct(liked["item_id"])
        else:
            if min_user_items or min_item_users:
                raise DropoutError("items: want no filters with a fixed vocabulary, got some; filter the training data")
            users, vocabulary = distinct(table["user_id"]), check_vocabulary(items)
        columns = positions(liked["item_id"], vocabulary, "item_id")
        unknown = int((columns < 0).sum())
        lines = positions(liked["user_id"], users, "user_id")
        weights = None if binary else summable(liked["weight"])
        if unknown:
            known = columns >= 0
            lines, columns = lines[known], columns[known]
            weights = None if weights is None else weights[known]
        rows = compress(lines, columns, weights, (len(users), len(vocabulary)))
        if items is None and not rows.nnz:
            raise DropoutError(f"weight: want at least one above 0, got {len(table):,} rows of 0")
        return cls(rows, users, vocabulary, unknown)._filtered(min_user_items, min_item_users)

    def encode(
        self,
        frame: Any,
        *,
        at_least: float | None = None,
        user: str = "user_id",
        item: str = "item_id",
        weight: str | None = "weight",
    ) -> "Interactions":
        """Histories of other users on this vocabulary: ``from_frame(frame, items=self.items)``.

        >>> shop = Interactions.from_frame(pl.DataFrame({"user_id": [1, 2], "item_id": ["tea", "salt"]}))
        >>> seen = shop.encode(pl.DataFrame({"user_id": [8, 8, 9], "item_id": ["tea", "gold", "gold"]}))
        >>> seen.rows.toarray().tolist(), seen.users.to_list(), seen.unknown
        ([[0.0, 1.0], [0.0, 0.0]], [8, 9], 2)
        """
        return self.from_frame(frame, at_least=at_least, items=self.items, user=user, item=item, weight=weight)

    def to_frame(self) -> pl.DataFrame:
        """The entries as ``user_id``, ``item_id``, ``weight``, sorted; users without entries have no row."""
        lines = np.repeat(np.arange(len(self.users)), np.diff(self.rows.indptr))
        return pl.DataFrame(
            {
                "user_id": self.users.gather(lines),
                "item_id": self.items.gather(self.rows.indices),
                "weight": self.rows.data,
            }
        )

    def select(self, indices: Indices) -> "Interactions":
        """The users of these rows, sorted by id."""
        indices = np.sort(indices)
        return Interactions(self.rows[indices], self.users.gather(indices), self.items)

    def _filtered(self, min_user_items: int, min_item_users: int) -> "Interactions":
        rows, users, items = self.rows, self.users, self.items
        if min_item_users > 0:
            kept = np.flatnonzero(np.bincount(rows.indices, minlength=len(items)) >= min_item_users)
            rows, items = rows[:, kept], items.gather(kept)
        if min_user_items > 0 or min_item_users > 0:
            kept = np.flatnonzero(np.diff(rows.indptr) >= max(min_user_items, 1))
            rows, users = rows[kept], users.gather(kept)
            # An item without users leaves the catalogue.
            kept = np.flatnonzero(np.bincount(rows.indices, minlength=len(items)))
            rows, items = rows[:, kept], items.gather(kept)
        check_filters(rows.nnz, len(self.users), len(self.items), min_user_items, min_item_users)
        return Interactions(rows, users, items, self.unknown)


def warn_of_ratings(interactions: Interactions) -> None:
    """A warning if the weights look like stars, each of which is about to count as a like."""
    values = np.unique(interactions.rows.data)
    if len(values) > 2 and 0.5 <= values[0] < 2 and values[-1] == 5 and not (values * 2 % 1).any():
        warnings.warn(
            f"weight: want likes, got what looks like ratings from {values[0]:g} to 5, of which all count as likes; pass"
            " at_least=4 (--at-least 4) so that only good ones do, or at_least=0.5 to keep all without this warning",
            stacklevel=3,
        )


def no_interactions(rows: int, at_least: float | None) -> DropoutError:
    """The error of a frame without likes."""
    rule = f" with a weight of at least {at_least:g}" if rows and at_least is not None else ""
    return DropoutError(f"frame: want at least one interaction{rule}, got none in {rows:,} rows")


def check_filters(entries: int, users: int, items: int, min_user_items: int, min_item_users: int) -> None:
    """An error if the filters left nothing of so many users and items."""
    if not entries and min_user_items + min_item_users > 0:
        raise DropoutError(
            f"filters: want users with {min_user_items:,} items of {min_item_users:,} users each, got none among"
            f" {users:,} users and {items:,} items; lower the filters"
        )
