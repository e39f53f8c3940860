"""Checked columns of any library's dataframe as polars; and the positions of ids in a vocabulary, by a join."""

from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
import polars as pl
from jaxtyping import Float32, Int32, Int64
from narwhals.exceptions import DuplicateError

from lbdrop.errors import DropoutError

__all__ = [
    "Indices", "check_ids", "check_infinite", "check_missing", "check_summable", "check_vocabulary", "check_weights",
    "column_of", "distinct", "name_columns", "positions", "read_columns", "same_kind", "summable",
]  # fmt: skip

Indices = Int64[np.ndarray, "n"]

# ----------------------------------------------------------------------------------------------------------- columns


def read_columns(frame: Any, user: str, item: str, weight: str | None) -> pl.DataFrame:
    """The columns for users, items and weights, checked, as polars and under their default names."""
    try:
        wrapped = nw.from_native(frame)
        present = wrapped.collect_schema().names()
    except TypeError as error:
        kind = type(frame).__name__
        raise DropoutError(f"frame: want a dataframe such as polars' or pandas', got {kind}") from error
    except DuplicateError as error:
        raise DropoutError("frame: want each column once, got one name twice; rename or drop one of them") from error
    names = name_columns(present, user, item, weight)
    chosen = wrapped.select(*dict.fromkeys(names.values()))
    collected = chosen.collect() if isinstance(chosen, nw.LazyFrame) else chosen
    table = pl.DataFrame({name: _series(collected[column], column) for name, column in names.items()})
    for name in ("user_id", "item_id"):
        check_ids(table[name].dtype, names[name])
    if "weight" in names:
        weights = table["weight"]
        check_weights(weights.dtype, names["weight"])
        infinite = int(weights.is_infinite().sum()) if weights.dtype.is_float() else 0
        check_infinite(infinite, len(weights), names["weight"])
    return table


def name_columns(present: list[str], user: str, item: str, weight: str | None) -> dict[str, str]:
    """The names in the frame of ``user_id``, ``item_id`` and, if there is one, ``weight``; an error where one is missing."""
    missing = [name for name in (user, item) if name not in present]
    if missing:
        raise DropoutError(
            f"frame: want the columns {user!r} and {item!r}, got {present} without {missing}; rename them, or pass"
            " user=… and item=…"
        )
    if weight not in (
        None,
        "weight",
        *present,
    ):  # a column of the default name may be missing, one of another name may not
        raise DropoutError(
            f"weight: want the column {weight!r}, got {present} without it; name another, or pass weight=None to ignore"
            " weights"
        )
    return {"user_id": user, "item_id": item} | ({"weight": weight} if weight in present and weight else {})


def column_of(frame: Any, name: str) -> pl.Series:
    """One column of any library's dataframe, lazy or not, as polars."""
    wrapped = nw.from_native(frame)
    if name not in (present := wrapped.collect_schema().names()):
        raise DropoutError(f"frame: want the column {name!r}, got {present}; rename one of them")
    chosen = wrapped.select(name)
    return _series((chosen.collect() if isinstance(chosen, nw.LazyFrame) else chosen)[name], name)


def _series(column: Any, name: str) -> pl.Series:
    """A narwhals column as polars, without pyarrow; nulls and NaN are an error whatever library they come from."""
    bad = column.is_null()
    if column.dtype.is_float():
        bad = bad | column.is_nan()
    check_missing(int(bad.sum()), len(column), name)
    native = nw.to_native(column)
    if isinstance(native, pl.Series):
        return native
    try:
        return pl.Series(column.to_numpy() if column.dtype.is_numeric() else column.to_list())
    except (TypeError, pl.exceptions.PolarsError) as error:
        raise DropoutError(f"{name}: want values of one type, got a mix ({error}); cast them to text") from error


def check_missing(count: int, rows: int, name: str) -> None:
    """An error if values are missing."""
    if count:
        raise DropoutError(f"{name}: want no null and no NaN, got {count:,} in {rows:,} rows; drop these rows")


def check_ids(kind: pl.DataType, name: str) -> None:
    """An error unless these can be ids."""
    # Null is the type of a column without rows.
    if not (kind.is_integer() or kind in (pl.String, pl.Null, pl.Categorical, pl.Enum)):
        raise DropoutError(f"{name}: want whole numbers or text as ids, got {kind}; cast the column first")


def check_weights(kind: pl.DataType, name: str) -> None:
    """An error unless these are numbers."""
    if not (kind.is_numeric() or kind in (pl.Boolean, pl.Null)):
        raise DropoutError(f"{name}: want numbers, got {kind}; cast them, or pass weight=None to ignore them")


def check_infinite(count: int, rows: int, name: str) -> None:
    """An error if weights are infinite."""
    if count:
        raise DropoutError(f"{name}: want finite numbers, got {count:,} infinite in {rows:,} rows")


def check_summable(negative: int, rows: int, largest: Any) -> None:
    """An error unless weights may be added up in single precision."""
    if negative:
        raise DropoutError(
            f"weight: want at least 0, got {negative:,} negative in {rows:,} rows; pass at_least=… for ratings"
            " that can be negative"
        )
    with np.errstate(over="ignore"):
        if rows and not np.isfinite(np.float32(largest)):
            raise DropoutError(f"weight: want numbers below 3.4e38, got {largest}; scale them down")


def summable(weights: pl.Series) -> Float32[np.ndarray, "n"]:
    """Weights in single precision; an error if they may not be added up."""
    negative = int((weights < 0).sum()) if weights.dtype != pl.Boolean else 0
    check_summable(negative, len(weights), weights.max())
    return weights.cast(pl.Float32).to_numpy()


# --------------------------------------------------------------------------------------------------------------- ids


def _categories(ids: pl.Series) -> bool:
    return ids.dtype in (pl.Categorical, pl.Enum)


def distinct(ids: pl.Series) -> pl.Series:
    """Each id once, sorted; categories as their text."""
    unique = ids.unique()
    return (unique.cast(pl.String) if _categories(ids) else unique).sort()


def check_vocabulary(vocabulary: pl.Series) -> pl.Series:
    """The vocabulary itself; an error if it has repeats or nulls."""
    if vocabulary.n_unique() != len(vocabulary) or vocabulary.null_count():
        raise DropoutError(f"items: want each id once and no null, got {len(vocabulary):,} with repeats or nulls")
    return vocabulary


def same_kind(ids: pl.Series, vocabulary: pl.Series) -> bool:
    """Whether both are integers, or both text; otherwise no id can be in the vocabulary."""
    return ids.dtype.is_integer() == vocabulary.dtype.is_integer()


def positions(ids: pl.Series, vocabulary: pl.Series, name: str) -> Int32[np.ndarray, "n"]:
    """The position of each id in the vocabulary; −1 if it is not there."""
    if _categories(ids):  # looks up each text once, not in every row
        unique = ids.unique()
        return _join(ids.to_physical(), unique.to_physical(), positions(unique.cast(pl.String), vocabulary, name))
    if len(ids) and not same_kind(ids, vocabulary):
        raise DropoutError(
            f"{name}: want ids of type {vocabulary.dtype}, as in the data that was fitted, got {ids.dtype}; cast them"
        )
    # An id that does not fit into the vocabulary's type becomes null, and so unknown.
    return _join(ids.cast(vocabulary.dtype, strict=False), vocabulary, np.arange(len(vocabulary), dtype=np.int32))


def _join(ids: pl.Series, keys: pl.Series, places: np.ndarray) -> np.ndarray:
    lookup = pl.DataFrame({"id": ids})
    table = pl.DataFrame({"id": keys, "position": places})
    return lookup.join(table, on="id", how="left", maintain_order="left")["position"].fill_null(-1).to_numpy()
