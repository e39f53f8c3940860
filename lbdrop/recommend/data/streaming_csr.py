r"""A lazy frame of interactions, perhaps larger than the memory, as a row-compressed matrix on the disk.

    1. survey   one pass of polars' streaming engine: errors, rows of each user, ids of items
    2. spill    ids become indices, and rows go to files of a few million rows each, a user's rows to one file
    3. compress one part at a time: each pair once, sorted, as in :class:`lbdrop.recommend.data.interactions.Interactions`
    4. filter   items, then users; then write a single safetensors file

Memory holds the ids, a few numbers for each id, and one part: it grows with users and items, not with rows. The result has the
same bits as ``Interactions.from_frame`` of the same rows in the same order.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from jaxtyping import Bool, Int64

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.frames import (
    check_ids,
    check_infinite,
    check_missing,
    check_summable,
    check_weights,
    name_columns,
    positions,
)
from lbdrop.recommend.data.interactions import check_filters, compress, no_interactions

__all__ = ["Compressed", "Survey", "compress_rows", "survey"]

ROWS_PER_BATCH = 1_000_000
"""Rows that polars returns at a time."""
ROWS_PER_PART = 8_000_000
"""Rows of a part, which is sorted in memory; a user with more rows is a part of their own."""

Progress = Callable[[int, int], None]
"""Called with the work done so far and the work in all."""


class Survey(NamedTuple):
    """The result of one pass over all rows."""

    frame: pl.LazyFrame
    """user_id, item_id and perhaps weight of the likes."""
    binary: bool
    """Whether pairs have weight 1, or the sum of their weights."""
    rows: int
    """Rows of the frame, before any filter."""
    users: pl.Series
    likes: Int64[np.ndarray, "users"]
    """Rows of each user, with duplicates."""
    items: pl.Series


class Compressed(NamedTuple):
    """The result of :func:`compress_rows`."""

    users: pl.Series
    items: pl.Series
    entries: int


def compress_rows(
    found: Survey, path: Path, min_user_items: int = 0, min_item_users: int = 0, progress: Progress | None = None
) -> Compressed:
    """Write ``indptr``, ``indices`` and, where weights are added up, ``values`` to the safetensors file ``path``.

    Args:
        found: from :func:`survey`.
        path: the file; temporary parts are written beside it.
        min_user_items: leave out users with fewer distinct items, after the items' filter.
        min_item_users: leave out items with fewer distinct users.
        progress: called with the rows spilled so far and the rows in all.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as temporary:
        folder = Path(temporary)
        bounds = _bounds(found.likes, ROWS_PER_PART)
        _spill(found, bounds, folder, progress or (lambda done, total: None))
        files = _Files(folder, "all", values=not found.binary)
        counts = np.zeros(len(found.users), np.int64)
        for number, (first, last) in enumerate(pairwise(bounds)):
            counts[first:last] = _compress_part(folder / f"{number}.part", last - first, len(found.items), files)
        if not counts.any():
            raise DropoutError(f"weight: want at least one above 0, got {found.rows:,} rows of 0")
        users, items = found.users, found.items
        if min_user_items > 0 or min_item_users > 0:
            kept = _Kept.of(files, counts, len(items), min_user_items, min_item_users)
            check_filters(int(kept.counts.sum()), len(users), len(items), min_user_items, min_item_users)
            files, counts = kept.write(files, counts, _Files(folder, "kept", values=not found.binary)), kept.counts
            users, items = users.filter(pl.Series(kept.users)), items.filter(pl.Series(kept.items))
        indptr = np.concatenate([[0], np.cumsum(counts)])
        _write_arrays(path, indptr, files.indices, files.values)
    return Compressed(users, items, int(indptr[-1]))


# -------------------------------------------------------------------------------------------------------------- survey


def survey(frame: pl.LazyFrame, at_least: float | None, user: str, item: str, weight: str | None) -> Survey:
    """Check every row as :meth:`.Interactions.from_frame` does, with its arguments, and count."""
    schema = frame.collect_schema()
    names = name_columns(schema.names(), user, item, weight)
    for name in ("user_id", "item_id"):
        check_ids(schema[names[name]], names[name])
    weighted = "weight" in names
    if weighted:
        check_weights(schema[names["weight"]], names["weight"])
    if at_least is not None and not weighted:
        raise DropoutError(f"at_least: want a column {weight!r} to compare with {at_least:g}, got a frame without it")
    named = frame.select(pl.col(column).alias(name) for name, column in names.items())
    # As text, because the codes of categories differ between files.
    texts = [name for name in ("user_id", "item_id") if schema[names[name]] in (pl.Categorical, pl.Enum)]
    named = named.with_columns(pl.col(texts).cast(pl.String)) if texts else named
    w = pl.col("weight")
    fractions = weighted and schema[names["weight"]].is_float()
    missing = {name: pl.col(name).is_null().sum() for name in names}
    if fractions:
        missing["weight"] = missing["weight"] + w.is_nan().sum()
    checks = {"rows": pl.len(), **missing, "infinite": w.is_infinite().sum() if fractions else pl.lit(0)}
    binary = at_least is not None or not weighted
    if not binary:
        signed = schema[names["weight"]] != pl.Boolean
        checks |= {"negative": (w < 0).sum() if signed else pl.lit(0), "largest": w.max()}
    liked = named if at_least is None else named.filter(w >= at_least)
    counted, users, items = pl.collect_all(
        [
            named.select(**checks),
            liked.group_by("user_id").agg(likes=pl.len()),
            liked.select("item_id").unique(),
        ],
        engine="streaming",
    )
    sums = counted.row(0, named=True)
    for name, column in names.items():
        check_missing(sums[name], sums["rows"], column)
    check_infinite(sums["infinite"], sums["rows"], names.get("weight", ""))
    if not len(users):
        raise no_interactions(sums["rows"], at_least)
    if not binary:
        check_summable(sums["negative"], sums["rows"], sums["largest"])
    users = users.sort("user_id")
    likes = users["likes"].cast(pl.Int64).to_numpy()
    return Survey(liked, binary, sums["rows"], users["user_id"], likes, items["item_id"].sort())


# --------------------------------------------------------------------------------------------------------------- parts


def _bounds(counts: Int64[np.ndarray, "users"], limit: int) -> list[int]:
    """Where to cut the users so that each piece has about ``limit`` entries, or is one user."""
    ends, bounds = np.concatenate([[0], np.cumsum(counts)]), [0]
    while bounds[-1] < len(counts):
        last = int(np.searchsorted(ends, ends[bounds[-1]] + limit, side="right")) - 1
        bounds.append(min(max(last, bounds[-1] + 1), len(counts)))
    return bounds


def _record(values: bool) -> np.dtype:
    return np.dtype([("line", "i4"), ("column", "i4"), *([("weight", "f4")] if values else [])])


def _spill(found: Survey, bounds: list[int], folder: Path, progress: Progress) -> None:
    """Write every row as indices to the file of its user's part, in the order of the frame."""
    inner, done, total = np.array(bounds[1:-1]), 0, int(found.likes.sum())
    first = np.array(bounds)
    for number in range(len(bounds) - 1):
        (folder / f"{number}.part").touch()
    for batch in found.frame.collect_batches(chunk_size=ROWS_PER_BATCH, maintain_order=True, engine="streaming"):
        records = np.empty(len(batch), _record(not found.binary))
        line = positions(batch["user_id"], found.users, "user_id")
        part = np.searchsorted(inner, line, side="right").astype(np.uint16)
        records["line"] = line - first[part]
        records["column"] = positions(batch["item_id"], found.items, "item_id")
        if not found.binary:
            records["weight"] = batch["weight"].cast(pl.Float32).to_numpy()
        order = np.argsort(part, kind="stable")
        ends = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=len(bounds) - 1))])
        for number in np.flatnonzero(np.diff(ends)):
            with (folder / f"{number}.part").open("ab") as file:
                records[order[ends[number] : ends[number + 1]]].tofile(file)
        done += len(batch)
        progress(done, total)


class _Files:
    """The entries of a matrix in the order of its rows: a file of columns and, unless all are 1, a file of values."""

    def __init__(self, folder: Path, name: str, values: bool):
        self.indices = folder / f"{name}.indices"
        self.values = folder / f"{name}.values" if values else None
        for path in (self.indices, self.values):
            if path is not None:
                path.touch()

    def append(self, columns: np.ndarray, values: np.ndarray) -> None:
        with self.indices.open("ab") as file:
            columns.astype(np.int32).tofile(file)
        if self.values is not None:
            with self.values.open("ab") as file:
                values.astype(np.float32).tofile(file)

    def pieces(self, counts: Int64[np.ndarray, "users"]) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """First and last user of a piece, its columns and values."""
        bounds = _bounds(counts, ROWS_PER_PART)
        with self.indices.open("rb") as columns, (self.values or self.indices).open("rb") as values:
            for first, last in pairwise(bounds):
                n = int(counts[first:last].sum())
                read = np.fromfile(columns, np.int32, n)
                yield first, last, read, read if self.values is None else np.fromfile(values, np.float32, n)


def _compress_part(path: Path, users: int, items: int, files: _Files) -> Int64[np.ndarray, "users"]:
    """Sort a part, append it to the files, and return how many entries each of its users has."""
    records = np.fromfile(path, _record(files.values is not None))
    path.unlink()
    weights = None if files.values is None else records["weight"].copy()
    rows = compress(records["line"].copy(), records["column"].copy(), weights, (users, items))
    files.append(rows.indices, rows.data)
    return np.diff(rows.indptr).astype(np.int64)


# ------------------------------------------------------------------------------------------------------------- filters


class _Kept(NamedTuple):
    """What the filters keep: items with enough users, users with enough of these items, items that still have a user."""

    users: Bool[np.ndarray, "users"]
    items: Bool[np.ndarray, "items"]
    counts: Int64[np.ndarray, "kept"]
    """Entries of each user who is kept."""

    @classmethod
    def of(cls, files: _Files, counts: np.ndarray, items: int, min_user_items: int, min_item_users: int) -> "_Kept":
        enough_users = _popularity(files, counts, items) >= min_item_users
        remaining = np.zeros_like(counts)
        for first, last, columns, _ in files.pieces(counts):
            remaining[first:last] = _per_user(enough_users[columns], counts[first:last])
        users = remaining >= max(min_user_items, 1)
        return cls(users, enough_users & (_popularity(files, counts, items, users) > 0), remaining[users])

    def write(self, files: _Files, counts: np.ndarray, out: _Files) -> _Files:
        """Write the kept entries, with new indices of columns."""
        index = np.cumsum(self.items) - 1
        for first, last, columns, values in files.pieces(counts):
            kept = np.repeat(self.users[first:last], counts[first:last]) & self.items[columns]
            out.append(index[columns[kept]], values[kept])
        return out


def _popularity(files: _Files, counts: np.ndarray, items: int, users: np.ndarray | None = None) -> np.ndarray:
    """How many of these users have each item."""
    total = np.zeros(items, np.int64)
    for first, last, columns, _ in files.pieces(counts):
        kept = slice(None) if users is None else np.repeat(users[first:last], counts[first:last])
        total += np.bincount(columns[kept], minlength=items)
    return total


def _per_user(flags: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.diff(np.concatenate([[0], np.cumsum(flags)])[np.concatenate([[0], np.cumsum(counts)])])


# ---------------------------------------------------------------------------------------------------------------- file


def _write_arrays(path: Path, indptr: Int64[np.ndarray, "n"], indices: Path, values: Path | None) -> None:
    """One safetensors file of an array in memory and raw files, which are copied in pieces."""
    parts = {"indptr": ("I64", len(indptr), indptr.nbytes)}
    # Larger types first, so that every array is aligned.
    for name, kind, file in (("values", "F32", values), ("indices", "I32", indices)):
        if file is not None:
            size = file.stat().st_size
            parts[name] = (kind, size // 4, size)
    header, end = {}, 0
    for name, (kind, length, size) in parts.items():
        header[name] = {"dtype": kind, "shape": [length], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        indptr.astype("<i8").tofile(out)
        for file in (values, indices):
            if file is not None:
                with file.open("rb") as source:
                    shutil.copyfileobj(source, out, 1 << 22)
