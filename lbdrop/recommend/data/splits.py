r"""Held-out users: train on some users, show the model most items of the others, and test whether it finds the rest.

The protocol of Liang et al., with the same random draws. Users sorted by id are permuted; the last $H$ are for the test, the
$H$ before for validation. The catalogue is the items of the training users; other items are removed from held-out rows. Of
a held-out user with $n \ge 5$ items

$$ \lfloor 0.2\, n \rfloor $$

are held out, chosen without replacement, and the others are the user's fold-in. With fewer than 5 items all are fold-in, and
the user is not evaluated. The random stream is numpy's legacy one, seeded anew for the permutation, for validation and for
test. A user's items are taken in order of their ids, as MovieLens-20M's file has them.

Liang, Krishnan, Hoffman and Jebara, Variational Autoencoders for Collaborative Filtering, WWW 2018.
"""

from typing import Any, NamedTuple

import narwhals.stable.v1 as nw
import numpy as np
import polars as pl
from scipy.sparse import csr_array

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.frames import column_of, positions, read_columns
from lbdrop.recommend.data.interactions import Interactions

__all__ = ["SEED", "HeldOut", "Split", "fold_in", "fold_in_by_time", "hidden_fifth", "split_by_time", "split_users"]

SEED = 98765
HELD_OUT_SHARE = 0.2
MIN_ITEMS = 5
"""Of a user who has items held out."""


class HeldOut(NamedTuple):
    """Users not in training: the items that the model is shown, and the items that it should find."""

    fold_in: csr_array
    held_out: csr_array
    users: pl.Series

    @property
    def scored(self) -> int:
        """Users with held-out items; the others have no recall and are left out of every mean."""
        return int((np.diff(self.held_out.indptr) > 0).sum())


class Split(NamedTuple):
    """Columns are those of ``train`` in all three."""

    train: Interactions
    validation: HeldOut
    test: HeldOut


def split_users(interactions: Interactions, held_out_users: int, seed: int = SEED) -> Split:
    """Divide users into train, validation and test, with ``held_out_users`` in each of the last two.

    Every held-out user keeps a row, even without items; see :attr:`HeldOut.scored`.
    """
    users = len(interactions.users)
    if held_out_users < 1 or 2 * held_out_users >= users:
        raise DropoutError(
            f"held_out_users: want 1 to {max((users - 1) // 2, 0):,}, so that some of the {users:,} users remain for training,"
            f" got {held_out_users:,}"
        )
    order = np.random.RandomState(seed).permutation(users)
    train = interactions.select(order[: users - 2 * held_out_users])
    kept = np.flatnonzero(np.bincount(train.rows.indices, minlength=len(train.items)))
    if not len(kept):
        raise DropoutError("interactions: want items among the training users, got none; filter empty users first")
    train = Interactions(train.rows[:, kept], train.users, train.items.gather(kept))

    def held(numbers: np.ndarray) -> HeldOut:
        chosen = interactions.select(numbers)
        return fold_in(Interactions(chosen.rows[:, kept], chosen.users, train.items), seed)

    validation = held(order[users - 2 * held_out_users : users - held_out_users])
    return Split(train, validation, held(order[users - held_out_users :]))


def split_by_time(frame: Any, at: Any, *, time: str = "datetime") -> tuple[Any, Any]:
    """The rows before a moment, to fit to, and those from then on, to evaluate on; dataframes of the caller's library.

    So a recommender is judged by what its users did next, and not by what it could have known. ``evaluate`` takes all later
    rows: it looks for what users of fit did not have then, and for a fifth of the items of new users.

    Args:
        frame: a row for each pair of user and item.
        at: the first moment of the later rows, as a value of the column, or text such as "2003-02-01" for a column of dates;
            or a share of all rows, the earliest, such as 0.8. Rows of one moment stay together.
        time: the name of the column.

    >>> rows = pl.DataFrame({"user_id": [1, 1, 2], "item_id": ["a", "b", "a"], "datetime": [10, 30, 20]})
    >>> before, later = split_by_time(rows, 20)
    >>> before["item_id"].to_list(), later["item_id"].to_list()
    (['a'], ['b', 'a'])
    """
    when = column_of(frame, time)
    if when.dtype == pl.String:
        try:
            when = when.str.to_datetime()
        except pl.exceptions.PolarsError as error:
            raise DropoutError(
                f"{time}: want dates, times or numbers, got text that is none; cast the column"
            ) from error
    first = _moment(when, at, time)
    early = (when < first).to_numpy()
    if early.all() or not early.any():
        raise DropoutError(
            f"at: want a moment between {when.min()} and {when.max()}, so that rows are on both sides, got {at!r}"
        )
    wrapped = nw.from_native(frame)
    wrapped = wrapped.collect() if isinstance(wrapped, nw.LazyFrame) else wrapped
    return wrapped.filter(early.tolist()).to_native(), wrapped.filter((~early).tolist()).to_native()


def _moment(when: pl.Series, at: Any, time: str) -> Any:
    """The moment as a value of the column."""
    if isinstance(at, float) and 0 < at < 1:
        return when.sort()[min(int(at * len(when)), len(when) - 1)]
    try:
        if when.dtype.is_temporal():
            at = pl.Series([at]).str.to_datetime() if isinstance(at, str) else pl.Series([at])
            zone = getattr(when.dtype, "time_zone", None)
            return (at.cast(when.dtype) if zone is None else at.dt.replace_time_zone(zone).cast(when.dtype))[0]
        return float(at) if when.dtype.is_float() else int(at)
    except (TypeError, ValueError, AttributeError, pl.exceptions.PolarsError) as error:
        raise DropoutError(
            f"at: want a moment of {time!r}, which is {when.dtype}, or a share below 1, got {at!r}"
        ) from error


def fold_in(interactions: Interactions, seed: int = SEED) -> HeldOut:
    """Hold out a fifth of the items of every user with at least five items."""
    return hidden_fifth(interactions.rows, interactions.users, seed)


def fold_in_by_time(interactions: Interactions, frame: Any, time: str) -> HeldOut:
    """As :func:`fold_in`, but the newest fifth is held out: what a user did last is to be found from what was before."""
    table = read_columns(frame, "user_id", "item_id", None).with_columns(when=column_of(frame, time).rank("ordinal"))
    first = table.group_by("user_id", "item_id").agg(pl.col("when").min())  # a pair counts from when it came
    rows, columns = (
        positions(first["user_id"], interactions.users, "user_id"),
        positions(first["item_id"], interactions.items, "item_id"),
    )
    known = (rows >= 0) & (columns >= 0)
    when = csr_array(
        (first["when"].to_numpy()[known].astype(float), (rows[known], columns[known])), shape=interactions.rows.shape
    )
    when = when.multiply(interactions.rows != 0).tocsr()  # of likes alone, in their order
    when.sort_indices()
    return hidden_fifth(interactions.rows, interactions.users, when=when.data)


def hidden_fifth(rows: csr_array, users: Any = None, seed: int = SEED, *, when: np.ndarray | None = None) -> HeldOut:
    """As :func:`fold_in`, for rows without ids; with the times of the entries, the newest."""
    random = np.random.RandomState(seed)
    out = np.zeros(rows.nnz, bool)
    for start, end in zip(rows.indptr[:-1].tolist(), rows.indptr[1:].tolist(), strict=True):
        if (n := end - start) >= MIN_ITEMS:
            count = int(HELD_OUT_SHARE * n)
            chosen = (
                random.choice(n, count, replace=False) if when is None else np.argsort(when[start:end])[n - count :]
            )
            out[start + chosen] = True
    return HeldOut(_masked(rows, ~out), _masked(rows, out), users)


def _masked(rows: csr_array, kept: np.ndarray) -> csr_array:
    ends = np.concatenate([[0], np.cumsum(kept)])[rows.indptr].astype(rows.indptr.dtype)
    return csr_array((rows.data[kept], rows.indices[kept], ends), shape=rows.shape)
