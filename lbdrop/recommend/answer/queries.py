"""Users of a query: by their ids, by their histories, or with held-out items; and the query itself."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Int64
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.recommend.answer.tables import column_names, id_series, is_frame, library_of
from lbdrop.recommend.data.frames import Indices, positions, same_kind
from lbdrop.recommend.data.interactions import Interactions, warn_of_ratings
from lbdrop.recommend.data.splits import HeldOut, fold_in, fold_in_by_time
from lbdrop.recommend.number_checks import check_number

__all__ = ["FittedIds", "Query", "SelectedUsers", "binarised", "likes_of"]


class SelectedUsers(NamedTuple):
    """The users of a query."""

    rows: csr_array
    ids: pl.Series
    library: str
    """The library of the dataframe to answer with."""


@dataclass(frozen=True)
class Query:
    """What to compute for every user, in plain numbers: it can travel as JSON."""

    k: int
    filter_viewed: bool = True
    items: tuple[int, ...] | None = None
    """Indices of the items to choose from."""
    samples: int = 0
    batch: int | None = None
    excluded: tuple[int, ...] = ()
    """Indices of the items never to recommend."""
    diversity: float = 0.0
    """Between 0, the best scores, and 1, the items least alike."""

    def allowed(self, catalogue: int) -> Bool[Tensor, "items"] | None:
        """Which items of the catalogue may be recommended; ``None`` for all."""
        if self.items is None and not self.excluded:
            return None
        found = torch.full((catalogue,), self.items is None)
        found[list(self.items or ())] = True
        found[list(self.excluded)] = False
        return found


class FittedIds(NamedTuple):
    """Ids and histories of a fitted recommender."""

    items: pl.Series
    interactions: Interactions | None
    at_least: float | None
    library: str

    def query(
        self,
        catalogue: pl.Series,
        k: int,
        filter_viewed: bool,
        allowed: Any,
        excluded: Any,
        diversity: float,
        samples: int,
        batch: int | None = None,
    ) -> Query:
        """The query of these arguments, with ids of items, of which unknown ones are ignored."""
        check_number("diversity", diversity, minimum=0, maximum=1)

        def indices_of(ids: Any, name: str) -> tuple[int, ...]:
            indices = positions(id_series(ids, name), catalogue, name)
            return tuple(np.unique(indices[indices >= 0]).tolist())

        chosen = None if allowed is None else indices_of(allowed, "items_to_recommend")
        if chosen == ():
            raise DropoutError(f"items_to_recommend: want items of fit, got none among {len(id_series(allowed, '')):,}")
        never = () if excluded is None else indices_of(excluded, "items_to_exclude")
        if never and not set(range(len(catalogue)) if chosen is None else chosen) - set(never):
            raise DropoutError(
                "items_to_exclude: want an item left to recommend, got all of them; leave some out of the list"
            )
        return Query(k, filter_viewed, chosen, samples, batch, never, float(diversity))

    def users(self, users: Any) -> SelectedUsers:
        """Users by ids, each once, all if ``None``; or a dataframe of histories."""
        if isinstance(users, Interactions) or is_frame(users):
            histories = self.encode(users)
            return SelectedUsers(histories.rows, histories.users, library_of(users) or self.library)
        if self.interactions is None:
            raise DropoutError(
                "users: want a dataframe of histories (user_id, item_id): this model was saved without those of its users"
            )
        if users is None:
            return SelectedUsers(self.interactions.rows, self.interactions.users, self.library)
        ids = id_series(users, "users", "user_id").unique(maintain_order=True)
        if not len(ids):
            raise DropoutError("users: want at least one, got none")
        indices = self.user_indices(ids)
        return SelectedUsers(
            self.interactions.rows[indices], self.interactions.users.gather(indices), library_of(users) or self.library
        )

    def history(self, user_or_history: Any) -> tuple[Int64[np.ndarray, "n"], str]:
        """The items of one user, by id, or of a dataframe or a list; unknown items are left out."""
        library = library_of(user_or_history) or self.library
        if is_frame(user_or_history):
            present = column_names(user_or_history)
            if "user_id" in present:
                rows = self.encode(user_or_history)
                if len(rows.users) != 1:
                    raise DropoutError(f"history: want that of one user, got {len(rows.users):,} users")
                indices = rows.rows.indices
            elif "item_id" in present:
                indices = self._known_items(id_series(user_or_history, "history"))
            else:
                raise DropoutError(f"history: want the column 'item_id', got {present}")
        elif isinstance(user_or_history, str | int | np.integer):
            indices = self.users(user_or_history).rows.indices
        else:
            indices = self._known_items(id_series(user_or_history, "history"))
        if not len(indices):
            raise DropoutError("history: want at least one item that the model knows, got none; pass items of fit")
        return np.asarray(indices, dtype=np.int64), library

    def held_out(self, given: Any, seed: int) -> tuple[HeldOut, int]:
        """Users with items to find, of whom there must be some, and how many rows are of items that the model does not have."""
        held, unknown = (given, 0) if isinstance(given, HeldOut) else self._split(given, seed)
        if held.fold_in.shape != (shape := (len(held.users), len(self.items))):
            raise DropoutError(
                f"held_out: want rows of shape {shape}, on this model's items, got {held.fold_in.shape}; pass a dataframe"
            )
        if not held.scored:
            raise DropoutError(
                f"held_out: want users with items to find, got none among {len(held.users):,}; new users need five known"
                " items, known ones an item they did not have"
            )
        return held, unknown

    def _split(self, frame: Any, seed: int) -> tuple[HeldOut, int]:
        """Fitted users with the items they did not have in fit; new users with a fifth of their items held out, the newest if
        there is a column ``datetime``.

        If ids are text here and numbers in fit, or the other way round, all users are new.
        """
        data = self.encode(frame)
        dated = is_frame(frame) and "datetime" in column_names(frame)
        new = fold_in_by_time(data, frame, "datetime") if dated else fold_in(data, seed)
        indices = self._rows_of(data.users)
        if self.interactions is None or (indices < 0).all():
            return new, data.unknown
        fitted = indices >= 0
        before = self.interactions.rows[np.where(fitted, indices, 0)]
        later = data.rows - data.rows.multiply(before)
        fitted_rows, new_rows = (diags_array(flags.astype(np.float32)) for flags in (fitted, ~fitted))
        held = HeldOut(
            _binary_csr(fitted_rows @ before + new_rows @ new.fold_in),
            _binary_csr(fitted_rows @ later + new_rows @ new.held_out),
            data.users,
        )
        return held, data.unknown

    def kinds(self, held: HeldOut, unknown: int) -> dict[str, int]:
        """Users with items to find, of fit and new ones, users without, and rows of unknown items."""
        fitted, scored = self._rows_of(held.users) >= 0, np.diff(held.held_out.indptr) > 0
        return {"of fit": int((fitted & scored).sum()), "new": int((~fitted & scored).sum()),
                "nothing to find": int((~scored).sum()), "unknown items": unknown}  # fmt: skip

    def _rows_of(self, users: pl.Series) -> Indices:
        """The rows of these users in fit; −1 for new ones."""
        if self.interactions is None or not same_kind(users, self.interactions.users):
            return np.full(len(users), -1)
        return positions(users, self.interactions.users, "user_id").astype(np.int64)

    def encode(self, histories: Any) -> Interactions:
        """A dataframe's users on the model's items; weights become likes by the rule of fit."""
        if isinstance(histories, Interactions):
            if histories.items.equals(self.items):
                return binarised(histories)
            histories = histories.to_frame().drop("weight")
        at_least = self.at_least if "weight" in column_names(histories) else None
        rows = Interactions.from_frame(histories, items=self.items, at_least=at_least)
        if not len(rows.users):
            raise DropoutError("users: want at least one row of a history, got an empty dataframe")
        return binarised(rows)

    def user_indices(self, ids: pl.Series) -> Indices:
        assert self.interactions is not None
        instead = "; pass their histories as a dataframe with user_id and item_id"
        return _all_found(positions(ids, self.interactions.users, "user_id"), ids, "users", instead)

    def item_indices(self, ids: pl.Series) -> Indices:
        return _all_found(positions(ids, self.items, "item_id"), ids, "items")

    def _known_items(self, ids: pl.Series) -> Indices:
        found = positions(ids, self.items, "item_id")
        return np.unique(found[found >= 0]).astype(np.int64)


def likes_of(interactions: Any, at_least: float | None) -> tuple[Interactions, str]:
    """The likes of a dataframe, or of :class:`Interactions`, and the library of the dataframe."""
    if isinstance(interactions, Interactions):
        if at_least is not None:
            raise DropoutError("at_least: want a dataframe, got Interactions; pass it to Interactions.from_frame")
        return binarised(interactions), "polars"
    data = Interactions.from_frame(interactions, at_least=at_least)
    if at_least is None:
        warn_of_ratings(data)
    return binarised(data), library_of(interactions) or "polars"


def binarised(interactions: Interactions) -> Interactions:
    """The same with 1 for every weight."""
    rows = interactions.rows
    ones = csr_array((np.ones(rows.nnz, np.float32), rows.indices, rows.indptr), shape=rows.shape)
    return Interactions(ones, interactions.users, interactions.items, interactions.unknown)


def _all_found(indices: np.ndarray, ids: pl.Series, name: str, instead: str = "") -> Indices:
    unknown = np.flatnonzero(indices < 0)
    if len(unknown):
        first = ids[int(unknown[0])]
        raise DropoutError(f"{name}: want those of fit, got {len(unknown):,} unknown, the first {first!r}{instead}")
    return indices.astype(np.int64)


def _binary_csr(rows: Any) -> csr_array:
    rows = csr_array(rows, dtype=np.float32)
    rows.eliminate_zeros()
    rows.sort_indices()
    rows.data[:] = 1.0
    return rows
