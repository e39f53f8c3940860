"""Whom a question is about and what it asks: users by their ids, by their histories, or with something held out."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from jaxtyping import Int64
from scipy.sparse import csr_array, diags_array

from lbdrop.errors import DropoutError
from lbdrop.recommend.frames import Numbers, positions, same_kind
from lbdrop.recommend.interactions import Interactions
from lbdrop.recommend.splits import HeldOut, fold_in
from lbdrop.recommend.tables import as_list, columns_of, is_frame, library_of

__all__ = ["Asked", "Known", "Question", "likes_of"]


class Asked(NamedTuple):
    """The users a question is about."""

    rows: csr_array
    ids: pl.Series
    library: str


@dataclass(frozen=True)
class Question:
    """What is asked about every user, in plain numbers: it may travel as JSON."""

    k: int
    filter_viewed: bool = True
    items: tuple[int, ...] | None = None
    """Numbers of the items to choose from."""
    samples: int = 0
    batch: int | None = None


class Known(NamedTuple):
    """What a fitted recommender knows of ids and histories."""

    items: pl.Series
    interactions: Interactions | None
    at_least: float | None
    library: str

    def users(self, users: Any) -> Asked:
        """Users by ids, each once, all if ``None``; or a dataframe of histories."""
        if isinstance(users, Interactions) or is_frame(users):
            histories = self.encode(users)
            return Asked(histories.rows, histories.users, library_of(users) or self.library)
        if self.interactions is None:
            raise DropoutError(
                "users: want a dataframe of histories (user_id, item_id): this model was saved without those of its users"
            )
        if users is None:
            return Asked(self.interactions.rows, self.interactions.users, self.library)
        ids = as_list(users, "users", "user_id").unique(maintain_order=True)
        if not len(ids):
            raise DropoutError("users: want at least one, got none")
        numbers = self.user_numbers(ids)
        return Asked(
            self.interactions.rows[numbers], self.interactions.users.gather(numbers), library_of(users) or self.library
        )

    def history(self, user_or_history: Any) -> tuple[Int64[np.ndarray, "n"], str]:
        """The items of one user, by id, or of a dataframe or a list; unknown ones are left out."""
        library = library_of(user_or_history) or self.library
        if is_frame(user_or_history):
            present = columns_of(user_or_history)
            if "user_id" in present:
                rows = self.encode(user_or_history)
                if len(rows.users) != 1:
                    raise DropoutError(f"history: want that of one user, got {len(rows.users):,} users")
                numbers = rows.rows.indices
            elif "item_id" in present:
                numbers = self._known(as_list(user_or_history, "history"))
            else:
                raise DropoutError(f"history: want the column 'item_id', got {present}")
        elif isinstance(user_or_history, str | int | np.integer):
            numbers = self.users(user_or_history).rows.indices
        else:
            numbers = self._known(as_list(user_or_history, "history"))
        if not len(numbers):
            raise DropoutError("history: want at least one item that the model knows, got none; nothing to explain by")
        return np.asarray(numbers, dtype=np.int64), library

    def held_out(self, frame: Any, seed: int) -> HeldOut:
        """Known users with what they lack in their history, new users with a fifth of their items held out.

        Ids of another kind than those in fit, text or numbers, are of new users.
        """
        data = self.encode(frame)
        new = fold_in(data, seed)
        if self.interactions is None or not same_kind(data.users, self.interactions.users):
            return new
        numbers = positions(data.users, self.interactions.users, "user_id")
        if (numbers < 0).all():
            return new
        seen = numbers >= 0
        before = self.interactions.rows[np.where(seen, numbers, 0)]
        later = data.rows - data.rows.multiply(before)
        known, other = (diags_array(flags.astype(np.float32)) for flags in (seen, ~seen))
        return HeldOut(
            _clean(known @ before + other @ new.fold_in), _clean(known @ later + other @ new.held_out), data.users
        )

    def encode(self, histories: Any) -> Interactions:
        """A dataframe's users on the model's items; likes by the same rule as in training where there is a weight."""
        if isinstance(histories, Interactions):
            if histories.items.equals(self.items):
                return likes_of(histories)
            histories = histories.to_frame().drop("weight")
        rule = self.at_least if "weight" in columns_of(histories) else None
        rows = Interactions.from_frame(histories, items=self.items, at_least=rule)
        if not len(rows.users):
            raise DropoutError("users: want at least one row of a history, got an empty dataframe")
        return likes_of(rows)

    def user_numbers(self, ids: pl.Series) -> Numbers:
        assert self.interactions is not None
        instead = "; pass their histories as a dataframe with user_id and item_id"
        return _all_known(positions(ids, self.interactions.users, "user_id"), ids, "users", instead)

    def item_numbers(self, ids: pl.Series) -> Numbers:
        return _all_known(positions(ids, self.items, "item_id"), ids, "items")

    def _known(self, ids: pl.Series) -> Numbers:
        found = positions(ids, self.items, "item_id")
        return np.unique(found[found >= 0]).astype(np.int64)


def likes_of(interactions: Interactions) -> Interactions:
    """The same with 1 for every weight."""
    rows = interactions.rows
    ones = csr_array((np.ones(rows.nnz, np.float32), rows.indices, rows.indptr), shape=rows.shape)
    return Interactions(ones, interactions.users, interactions.items, interactions.unknown)


def _all_known(found: np.ndarray, ids: pl.Series, name: str, instead: str = "") -> Numbers:
    lost = np.flatnonzero(found < 0)
    if len(lost):
        first = ids[int(lost[0])]
        raise DropoutError(f"{name}: want those of fit, got {len(lost):,} unknown, the first {first!r}{instead}")
    return found.astype(np.int64)


def _clean(rows: Any) -> csr_array:
    rows = csr_array(rows, dtype=np.float32)
    rows.eliminate_zeros()
    rows.sort_indices()
    rows.data[:] = 1.0
    return rows
