"""Results as a dataframe of the caller's library; and ids in whatever form a caller passes them."""

import importlib.util
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
import polars as pl

from lbdrop.errors import DropoutError
from lbdrop.recommend.answer.scoring import Best
from lbdrop.recommend.data.frames import check_ids, column_of

__all__ = ["column_names", "id_series", "is_frame", "library_of", "ranked_columns", "to_frame"]

LIBRARIES = ("polars", "pandas", "pyarrow", "modin", "cudf")


def is_frame(value: Any) -> bool:
    return isinstance(nw.from_native(value, pass_through=True), nw.DataFrame | nw.LazyFrame)


def column_names(frame: Any) -> list[str]:
    return nw.from_native(frame).collect_schema().names()


def library_of(value: Any) -> str | None:
    """The library of a dataframe or a series, if :func:`to_frame` supports it."""
    wrapped = nw.from_native(value, pass_through=True, allow_series=True)
    if not isinstance(wrapped, nw.DataFrame | nw.LazyFrame | nw.Series):
        return None
    name = wrapped.implementation.value
    return name if name in LIBRARIES else None


def id_series(ids: Any, name: str, column: str = "item_id") -> pl.Series:
    """Ids as polars: from a series or an array of any library, a list, a single id, or a column of a dataframe."""
    if is_frame(ids):
        found = column_of(ids, column)
    elif isinstance(ids, pl.Series):
        found = ids
    else:
        try:
            found = pl.Series([ids] if isinstance(ids, str | int | np.integer) else list(ids))
        except (TypeError, pl.exceptions.PolarsError) as error:
            raise DropoutError(f"{name}: want an id, or a list of ids of one type, got {_shortened(ids)}") from error
    check_ids(found.dtype, name)
    return found


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else type(value).__name__


def to_frame(columns: dict[str, pl.Series], library: str) -> Any:
    """A dataframe of this library; of polars if the library is not installed."""
    if library == "polars" or importlib.util.find_spec(library) is None:
        return pl.DataFrame(columns)
    return nw.from_dict({name: column.to_numpy() for name, column in columns.items()}, backend=library).to_native()  # pyright: ignore[reportArgumentType]


def ranked_columns(
    best: Best, users: pl.Series, items: pl.Series, spread: bool, names: tuple[str, str] = ("user_id", "item_id")
) -> dict[str, pl.Series]:
    """A row for every recommended item: user, item, score, rank from 1 and, with ``spread``, the uncertainty."""
    index, score = best.item.numpy(), best.score.numpy()
    present = index >= 0
    row, rank = np.nonzero(present)
    columns = {
        names[0]: users.gather(row),
        names[1]: items.gather(index[present]),
        "score": pl.Series(score[present]),
        "rank": pl.Series(rank + 1),
    }
    if spread:
        values = np.full(len(row), np.nan, np.float32) if best.spread is None else best.spread.numpy()[present]
        columns["uncertainty"] = pl.Series(values).fill_nan(None)
    return columns
