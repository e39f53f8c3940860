"""Tables that go back in the library their question came in, and ids in whatever a user holds them."""

import importlib.util
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
import polars as pl

from lbdrop.errors import DropoutError
from lbdrop.recommend.frames import check_ids, column_of
from lbdrop.recommend.scoring import Best

__all__ = ["as_list", "columns_of", "is_frame", "library_of", "ranked", "table"]

LIBRARIES = ("polars", "pandas", "pyarrow", "modin", "cudf")


def is_frame(value: Any) -> bool:
    return isinstance(nw.from_native(value, pass_through=True), nw.DataFrame | nw.LazyFrame)


def columns_of(frame: Any) -> list[str]:
    """The names of a dataframe's columns."""
    return nw.from_native(frame).collect_schema().names()


def library_of(value: Any) -> str | None:
    """The library of a dataframe or a series, if tables can be made in it."""
    wrapped = nw.from_native(value, pass_through=True, allow_series=True)
    if not isinstance(wrapped, nw.DataFrame | nw.LazyFrame | nw.Series):
        return None
    name = wrapped.implementation.value
    return name if name in LIBRARIES else None


def as_list(ids: Any, name: str, column: str = "item_id") -> pl.Series:
    """Ids as polars: of a series or an array of any library, a list, one alone, or that column of a dataframe."""
    if is_frame(ids):
        found = column_of(ids, column)
    elif isinstance(ids, pl.Series):
        found = ids
    else:
        try:
            found = pl.Series([ids] if isinstance(ids, str | int | np.integer) else list(ids))
        except (TypeError, pl.exceptions.PolarsError) as error:
            raise DropoutError(f"{name}: want an id, or a list of ids of one type, got {_shown(ids)}") from error
    check_ids(found.dtype, name)
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else type(value).__name__


def table(columns: dict[str, pl.Series], library: str) -> Any:
    """A dataframe of the library; of polars where that library is not installed."""
    if library == "polars" or importlib.util.find_spec(library) is None:
        return pl.DataFrame(columns)
    return nw.from_dict({name: column.to_numpy() for name, column in columns.items()}, backend=library).to_native()  # pyright: ignore[reportArgumentType]


def ranked(best: Best, users: pl.Series, items: pl.Series, spread: bool) -> dict[str, pl.Series]:
    """A row for every recommended item: whose, which, its score, its rank from 1 and, if asked for, how uncertain."""
    number, score = best.item.numpy(), best.score.numpy()
    there = number >= 0
    who, rank = np.nonzero(there)
    columns = {
        "user_id": users.gather(who),
        "item_id": items.gather(number[there]),
        "score": pl.Series(score[there]),
        "rank": pl.Series(rank + 1),
    }
    if spread:
        values = np.full(len(who), np.nan, np.float32) if best.spread is None else best.spread.numpy()[there]
        columns["uncertainty"] = pl.Series(values).fill_nan(None)
    return columns
