r"""A table of items as a matrix of features, by a plan that is plain JSON and so can be saved with a model.

    text, booleans     a column of 0 and 1 for every value; "Action|Comedy" has two values
    lists of text      the same, for tags
    numbers            how near they are to each of ten quantiles (linear between two), and whether there is none
    lists of numbers   an embedding, divided so that all its columns together have a variance of 1

Values that fewer than two of the items have tell nothing about others and are left out. Of new items, values that are not in
the plan are ignored.
"""

import warnings
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
import polars as pl
from jaxtyping import Float64

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.frames import check_ids, column_of

__all__ = ["encode", "feature_table", "make_plan"]

Plan = list[dict[str, Any]]
Features = Float64[np.ndarray, "items features"]
KNOTS, MIN_ITEMS, MAX_FEATURES = 10, 2, 10_000


def feature_table(frame: Any) -> pl.DataFrame:
    """A dataframe of any library as polars, with each ``item_id`` once."""
    ids = column_of(frame, "item_id")
    check_ids(ids.dtype, "item_id")
    wrapped = nw.from_native(frame)
    collected = wrapped.collect() if isinstance(wrapped, nw.LazyFrame) else wrapped
    native = nw.to_native(collected)
    if not isinstance(native, pl.DataFrame):
        native = pl.DataFrame({name: collected[name].to_list() for name in collected.columns}, strict=False)
    if ids.n_unique() != len(ids):
        raise DropoutError(f"item_features: want each item once, got {len(ids) - ids.n_unique():,} repeats of item_id")
    return native.with_columns(item_id=ids.cast(pl.String) if ids.dtype in (pl.Categorical, pl.Enum) else ids)


def make_plan(table: pl.DataFrame) -> Plan:
    """How to turn each column of these items into features; an error where no column says anything."""
    plan = [step for name in table.columns if name != "item_id" for step in _steps(table[name])]
    if not plan:
        raise DropoutError(
            f"item_features: want a column beside item_id whose values items share, got {table.columns}; add categories,"
            " tags, numbers or embeddings"
        )
    if (width := sum(map(_width, plan))) > MAX_FEATURES:
        raise DropoutError(
            f"item_features: want at most {MAX_FEATURES:,} features, got {width:,}; leave out the columns with the most values"
        )
    return plan


def encode(plan: Plan, table: pl.DataFrame) -> Features:
    """The features of these items."""
    if missing := [step["name"] for step in plan if step["name"] not in table.columns]:
        raise DropoutError(f"item_features: want the columns of fit, got {table.columns} without {missing}; add them")
    return np.concatenate([np.zeros((len(table), 0)), *(_encoded(step, table[step["name"]]) for step in plan)], axis=1)


def _steps(column: pl.Series) -> Plan:
    kind = column.dtype
    if kind.is_numeric():
        values = column.cast(pl.Float64).to_numpy()
        values = values[np.isfinite(values)]
        knots = np.unique(np.quantile(values, np.linspace(0, 1, KNOTS))).tolist() if len(values) else []
        return [{"name": column.name, "kind": "number", "knots": knots}]
    if isinstance(kind, pl.List | pl.Array) and kind.inner.is_float():
        rows = _vectors(column)
        total = rows.var(axis=0).sum()
        return [{"name": column.name, "kind": "embedding", "size": rows.shape[1], "scale": float(total**0.5) or 1.0}]
    tags = _tags(column).explode("tag").drop_nulls()
    values = tags.group_by("tag").len().filter(pl.col("len") >= MIN_ITEMS)["tag"].sort().to_list()
    if not values:
        warnings.warn(
            f"item_features: want values that two items share, got none in {column.name!r}; the column is left out",
            stacklevel=2,
        )
    return [{"name": column.name, "kind": "tags", "values": values}] if values else []


def _width(step: dict[str, Any]) -> int:
    return {"number": lambda: len(step["knots"]) + 1, "embedding": lambda: step["size"],
            "tags": lambda: len(step["values"])}[step["kind"]]()  # fmt: skip


def _encoded(step: dict[str, Any], column: pl.Series) -> Features:
    if step["kind"] == "number":
        if not column.dtype.is_numeric() and column.dtype != pl.Null:
            raise DropoutError(f"{column.name}: want numbers, as in fit, got {column.dtype}; cast the column")
        values = column.cast(pl.Float64).to_numpy()
        known, knots = np.isfinite(values), step["knots"]
        near = [np.interp(values, knots, each) for each in np.eye(len(knots))]
        return np.where(known, np.stack([*near, ~known], 0), (np.arange(len(knots) + 1) == len(knots))[:, None]).T
    if step["kind"] == "embedding":
        rows = _vectors(column)
        if rows.shape[1] != step["size"]:
            raise DropoutError(f"{column.name}: want embeddings of {step['size']} numbers, got {rows.shape[1]}")
        return rows / step["scale"]
    tags = _tags(column).explode("tag")
    place = {value: index for index, value in enumerate(step["values"])}
    found = np.zeros((len(column), len(place)))
    for row, tag in tags.iter_rows():
        if tag in place:
            found[row, place[tag]] = 1.0
    return found


def _tags(column: pl.Series) -> pl.DataFrame:
    """``row`` and its list of values ``tag``, as text."""
    kind = column.dtype
    if isinstance(kind, pl.List | pl.Array):
        tags = column.cast(pl.List(pl.String))
    elif kind in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null):
        tags = column.cast(pl.String).str.split("|")
    else:
        raise DropoutError(
            f"{column.name}: want text, tags, numbers or embeddings, got {kind}; cast the column, or leave it out"
        )
    return pl.DataFrame({"tag": tags}).with_row_index("row")


def _vectors(column: pl.Series) -> Features:
    """Lists of numbers as rows; a missing one is 0."""
    rows = [[] if each is None else list(each) for each in column.to_list()]
    sizes = {len(each) for each in rows if each}
    if len(sizes) != 1 or any(not np.isfinite(np.array(each, np.float64)).all() for each in rows):
        raise DropoutError(
            f"{column.name}: want embeddings of finite numbers and one length, got lengths {sorted(sizes)[:4]}"
        )
    (size,) = sizes
    return np.array([each or [0.0] * size for each in rows], np.float64)
