"""Tables of interactions on disk, one file or many parts, as lazy frames; ids stay what they are: 05 is not 5.

Text files do not say what an id is. A column whose every id comes back from a whole number as it was, is of whole numbers,
any other is text. Parts are read in the order of their names; columns that nobody asked for are not read.
"""

import glob
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import polars as pl

from lbdrop.errors import DropoutError
from lbdrop.recommend.polars_panics import as_interrupt

__all__ = ["find_parts", "reading", "scan_parts", "survives", "whole_numbers"]

KINDS = (".parquet", ".csv", ".tsv")

Text = TypeVar("Text", pl.Series, pl.Expr)


def find_parts(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files of a table: a file, a folder of parts, a pattern such as ``events/*.parquet``, or several of these."""
    sources = [source] if isinstance(source, str | Path) else list(source)
    found = [part for each in sources for part in _parts_of(Path(each))]
    kinds = sorted({_kind(part) for part in found})
    if len(kinds) != 1:
        shown = ", ".join(map(str, sources[:3])) + (" …" if len(sources) > 3 else "")
        raise DropoutError(f"{shown}: want files of one kind, got {', '.join(kinds) or 'none'}")
    return found


def scan_parts(files: Sequence[Path], ids: tuple[str, str], weight: str | None) -> pl.LazyFrame:
    """The files as one lazy frame, in order; of text files ids are text and weights numbers, see :func:`whole_numbers`."""
    kind = _kind(files[0])
    if kind == ".parquet":
        return pl.scan_parquet(list(files), glob=False, hive_partitioning=False, extra_columns="ignore")
    kinds = dict.fromkeys(ids, pl.String) | ({} if weight is None else {weight: pl.Float64})
    return pl.scan_csv(
        list(files), separator="\t" if kind == ".tsv" else ",", schema_overrides=kinds, infer_schema=False, glob=False
    )


def whole_numbers(frame: pl.LazyFrame, ids: tuple[str, str]) -> pl.LazyFrame:
    """Columns of ids of a text file as whole numbers, if every one of theirs comes back as it was."""
    names = list(dict.fromkeys(ids))
    whole = frame.select(survives(pl.col(name)).all().alias(name) for name in names).collect(engine="streaming")
    return frame.with_columns(pl.col(name).cast(pl.Int64) for name in names if whole[name].item())


def survives(text: Text) -> Text:
    """Whether each comes back from a whole number as it was: 7 does, 07 does not."""
    return text.cast(pl.Int64, strict=False).cast(pl.String).eq_missing(text)


@contextmanager
def reading(path: str | Path, *, writing: bool = False) -> Iterator[None]:
    """What goes wrong with a file is one line that names it; where others are written, the disk's errors are theirs."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        if as_interrupt(error) is not error:
            raise KeyboardInterrupt from None
        if writing and isinstance(error, OSError):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DropoutError(f"{path}: cannot be read as a table: {reason}") from error


def _parts_of(source: Path) -> list[Path]:
    if source.is_dir():
        if not (found := sorted(part for part in source.rglob("*") if part.is_file() and _kind(part) in KINDS)):
            raise DropoutError(f"{source}: want a folder of files that end in {', '.join(KINDS)}, got none there")
        return found
    if not source.exists() and glob.has_magic(str(source)):
        if not (found := sorted(map(Path, glob.glob(str(source), recursive=True)))):
            raise DropoutError(f"{source}: want files of these names, got none")
        return [part for each in found for part in _parts_of(each)]
    if _kind(source) not in KINDS:
        raise DropoutError(f"{source}: want a file that ends in {', '.join(KINDS)} or .csv.gz, got {source.name}")
    if not source.is_file():
        raise DropoutError(f"{source}: want a file, got nothing there")
    return [source]


def _kind(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
