"""The users to score, in parts: ranges of rows in memory, or a lazy frame sorted into parts on the disk.

The query alone decides which user is in which part, so every part can be made again anywhere and is the same.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from lbdrop.errors import DropoutError
from lbdrop.io.files import replacing
from lbdrop.recommend.answer.queries import FittedIds, SelectedUsers
from lbdrop.recommend.data.frames import name_columns, read_columns
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.train.checkpoints import fingerprint

__all__ = ["HistoryParts", "RangeParts", "SpooledParts", "data_identity", "ids_fingerprint", "split_into_parts"]

ROWS_PER_PART = 4_000_000
"""Rows of a lazy frame in a part, on average; a frame with no more rows is read into memory."""
ROWS_PER_BATCH = 1_000_000
"""Rows that polars returns at a time."""


class HistoryParts(Protocol):
    """Users with their histories, in parts."""

    def __len__(self) -> int:
        """How many parts."""
        ...

    def __getitem__(self, number: int) -> SelectedUsers:
        """The users of a part."""
        ...

    def identity(self) -> list[str]:
        """Differs for other users, and for another split into parts."""
        ...


@dataclass(frozen=True)
class RangeParts:
    """Users in memory, ``size`` in each part."""

    users: SelectedUsers
    size: int

    def __len__(self) -> int:
        return -(-len(self.users.ids) // self.size)

    def __getitem__(self, number: int) -> SelectedUsers:
        part = slice(number * self.size, (number + 1) * self.size)
        return SelectedUsers(self.users.rows[part], self.users.ids[part], self.users.library)

    def identity(self) -> list[str]:
        rows = self.users.rows
        return ["ranges", str(self.size), fingerprint(rows.indptr, rows.indices), ids_fingerprint(self.users.ids)]


@dataclass(frozen=True)
class SpooledParts:
    """A lazy frame, sorted once by a hash of the user; then each part is read within the memory of one part."""

    fitted: FittedIds
    frame: pl.LazyFrame | None
    """``None`` if the folder is complete."""
    parts: int
    content: str
    """The number of rows and sums of two hashes of them, in any order."""
    folder: Path | None = None

    def __len__(self) -> int:
        return self.parts

    def __getitem__(self, number: int) -> SelectedUsers:
        assert self.folder is not None
        rows = pl.scan_parquet(self.folder / "*.parquet").filter(pl.col("part") == number).drop("part").collect()
        if not len(rows):  # no user has this hash
            empty = Interactions.from_frame(rows, items=self.fitted.items)
            return SelectedUsers(empty.rows, empty.users, "polars")
        return self.fitted.users(rows)

    def identity(self) -> list[str]:
        return ["spool", str(self.parts), self.content]

    def fill(self, folder: Path, progress: Callable[[int], None] = lambda rows: None) -> "SpooledParts":
        """Sort the frame into the folder, unless it exists already; calls ``progress`` with numbers of rows."""
        if not folder.exists():
            assert self.frame is not None
            with replacing(folder) as temporary, _one_line_errors():
                temporary.mkdir()
                batches = self.frame.collect_batches(
                    chunk_size=ROWS_PER_BATCH, maintain_order=False, engine="streaming"
                )
                for number, batch in enumerate(batches):
                    rows = read_columns(batch, "user_id", "item_id", "weight")
                    part = pl.col("user_id").hash(0) % self.parts
                    # Sorted, so that a part needs one or two row groups of each file and skips the others.
                    rows.with_columns(part=part).sort("part").write_parquet(
                        temporary / f"{number:06d}.parquet", row_group_size=max(len(rows) // self.parts, 1_000)
                    )
                    progress(len(rows))
        return SpooledParts(self.fitted, None, self.parts, self.content, folder)


def split_into_parts(users: Any, fitted: FittedIds, size: int) -> HistoryParts:
    """:class:`SpooledParts` of a polars LazyFrame with many rows, :class:`RangeParts` of anything else."""
    if isinstance(users, pl.LazyFrame):
        names = list(name_columns(users.collect_schema().names(), "user_id", "item_id", "weight"))
        # The codes of categories differ between batches; their text does not.
        categories = [name for name, kind in users.collect_schema().items() if kind in (pl.Categorical, pl.Enum)]
        users = users.select(names).with_columns(pl.col(name).cast(pl.String) for name in categories if name in names)
        with _one_line_errors():
            row = pl.struct(names)
            found = users.select(rows=pl.len(), first=row.hash(0).sum(), second=row.hash(1).sum()).collect(
                engine="streaming"
            )
        rows = found["rows"].item()
        if rows > ROWS_PER_PART:
            content = " ".join(map(str, found.row(0)))
            return SpooledParts(fitted, users, -(-rows // ROWS_PER_PART), content)
    return RangeParts(fitted.users(users), size)


def data_identity(data: Interactions) -> dict[str, Any]:
    """Differs for other interactions, users or items."""
    return {
        "interactions": fingerprint(data.rows.indptr, data.rows.indices),
        "ids": [ids_fingerprint(data.users), ids_fingerprint(data.items)],
    }


def ids_fingerprint(ids: pl.Series) -> str:
    """16 hexadecimal digits that differ for another column of ids."""
    digest = hashlib.sha256(f"{ids.dtype} {len(ids)}".encode())
    digest.update(ids.hash(0).to_numpy().tobytes())
    return digest.hexdigest()[:16]


class _one_line_errors:
    """Turns polars' errors about a lazy frame into one line, but leaves errors of the disk alone."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, pl.exceptions.PolarsError) and "(os error" not in str(error):
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise DropoutError(f"users: cannot be read as a table: {reason}") from error
