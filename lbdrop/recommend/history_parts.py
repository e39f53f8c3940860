"""Whose scores are wanted, part by part: ranges of rows that are in memory, or a lazy frame sorted into parts on the disk.

Which user is in which part follows from the question alone, so that a part can be made again anywhere and comes out the same.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from lbdrop.errors import DropoutError
from lbdrop.io.files import replacing
from lbdrop.recommend.checkpoints import fingerprint
from lbdrop.recommend.frames import name_columns, read_columns
from lbdrop.recommend.interactions import Interactions
from lbdrop.recommend.queries import Asked, Known

__all__ = ["Histories", "Ranges", "Spool", "histories_of", "of_ids"]

INTERACTIONS = 4_000_000
"""Rows of a lazy frame in one part at most, on average; a frame with no more is read into memory."""
ROWS = 1_000_000
"""Rows taken from polars at once."""


class Histories(Protocol):
    """Users with what they have, in parts."""

    def __len__(self) -> int:
        """How many parts."""
        ...

    def __getitem__(self, number: int) -> Asked:
        """The users of a part."""
        ...

    def identity(self) -> list[str]:
        """What tells these users and this way to part them from any others."""
        ...


@dataclass(frozen=True)
class Ranges:
    """Users in memory, so many to a part."""

    asked: Asked
    size: int

    def __len__(self) -> int:
        return -(-len(self.asked.ids) // self.size)

    def __getitem__(self, number: int) -> Asked:
        part = slice(number * self.size, (number + 1) * self.size)
        return Asked(self.asked.rows[part], self.asked.ids[part], self.asked.library)

    def identity(self) -> list[str]:
        rows = self.asked.rows
        return ["ranges", str(self.size), fingerprint(rows.indptr, rows.indices), of_ids(self.asked.ids)]


@dataclass(frozen=True)
class Spool:
    """A lazy frame, sorted by a hash of the user once; then every part is read with no more memory than it needs."""

    known: Known
    frame: pl.LazyFrame | None
    """``None`` where the folder has been filled already."""
    parts: int
    content: str
    """The number of rows and sums of two hashes of them, whatever their order."""
    folder: Path | None = None

    def __len__(self) -> int:
        return self.parts

    def __getitem__(self, number: int) -> Asked:
        assert self.folder is not None
        rows = pl.scan_parquet(self.folder / "*.parquet").filter(pl.col("part") == number).drop("part").collect()
        if not len(rows):  # no user's hash led here
            nobody = Interactions.from_frame(rows, items=self.known.items)
            return Asked(nobody.rows, nobody.users, "polars")
        return self.known.users(rows)

    def identity(self) -> list[str]:
        return ["spool", str(self.parts), self.content]

    def fill(self, folder: Path, progress: Callable[[int], None] = lambda rows: None) -> "Spool":
        """Sort the frame into the folder, unless that was done before; progress is told of rows."""
        if not folder.exists():
            assert self.frame is not None
            with replacing(folder) as beside, _reading():
                beside.mkdir()
                batches = self.frame.collect_batches(chunk_size=ROWS, maintain_order=False, engine="streaming")
                for number, batch in enumerate(batches):
                    rows = read_columns(batch, "user_id", "item_id", "weight")
                    part = pl.col("user_id").hash(0) % self.parts
                    # Sorted, so that of every file a part needs a row group or two; the others are passed over.
                    rows.with_columns(part=part).sort("part").write_parquet(
                        beside / f"{number:06d}.parquet", row_group_size=max(len(rows) // self.parts, 1_000)
                    )
                    progress(len(rows))
        return Spool(self.known, None, self.parts, self.content, folder)


def histories_of(users: Any, known: Known, size: int) -> Histories:
    """The users of a question: of a polars LazyFrame with many rows a :class:`Spool`, of anything else :class:`Ranges`."""
    if isinstance(users, pl.LazyFrame):
        names = list(name_columns(users.collect_schema().names(), "user_id", "item_id", "weight"))
        # A category's number is its own file's affair: as text it is the same in every batch.
        labels = [name for name, kind in users.collect_schema().items() if kind in (pl.Categorical, pl.Enum)]
        users = users.select(names).with_columns(pl.col(name).cast(pl.String) for name in labels if name in names)
        with _reading():
            row = pl.struct(names)
            found = users.select(rows=pl.len(), first=row.hash(0).sum(), second=row.hash(1).sum()).collect(
                engine="streaming"
            )
        rows = found["rows"].item()
        if rows > INTERACTIONS:
            content = " ".join(map(str, found.row(0)))
            return Spool(known, users, -(-rows // INTERACTIONS), content)
    return Ranges(known.users(users), size)


def of_ids(ids: pl.Series) -> str:
    """What tells a column of ids from any other."""
    digest = hashlib.sha256(f"{ids.dtype} {len(ids)}".encode())
    digest.update(ids.hash(0).to_numpy().tobytes())
    return digest.hexdigest()[:16]


class _reading:
    """What polars finds wrong with the rows of a lazy frame is one line; what the disk says is left to others."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, pl.exceptions.PolarsError) and "(os error" not in str(error):
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise DropoutError(f"users: cannot be read as a table: {reason}") from error
