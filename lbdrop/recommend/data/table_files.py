"""Tables of interactions on disk, one file or many, as lazy frames.

Text files have no types. A column of ids becomes integers only if each of its ids survives the conversion: 7 does, 07 does not.
Files are read in the order of their names, and only the columns that are needed.
"""

import glob
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import polars as pl

from lbdrop.errors import DropoutError, first_line
from lbdrop.io.files import check_plain
from lbdrop.recommend.data.parquet_sizes import check_fits, check_pieces_fit
from lbdrop.recommend.data.polars_panics import interrupt_or_itself

__all__ = ["find_table_files", "ids_as_integers", "read_titles", "reading", "scan_table_files", "survives_as_integer"]

SUFFIXES = (".parquet", ".csv", ".tsv")
TITLE_SUFFIXES = (".csv", ".parquet")

Text = TypeVar("Text", pl.Series, pl.Expr)


def find_table_files(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files of a table: a file, a folder of files, a pattern such as ``events/*.parquet``, or several of these."""
    sources = [source] if isinstance(source, str | Path) else list(source)
    found = [file for each in sources for file in _files_of(Path(each))]
    suffixes = sorted({_suffix(file) for file in found})
    if len(suffixes) != 1:
        shown = ", ".join(map(str, sources[:3])) + (" …" if len(sources) > 3 else "")
        raise DropoutError(f"{shown}: want files of one kind, got {', '.join(suffixes) or 'none'}")
    return found


def scan_table_files(files: Sequence[Path], ids: tuple[str, str], weight: str | None) -> pl.LazyFrame:
    """The files as one lazy frame, in order; in text files ids are text, see :func:`ids_as_integers`."""
    suffix = _suffix(files[0])
    if suffix == ".parquet":
        for file in files:
            check_pieces_fit(file)
        return pl.scan_parquet(list(files), glob=False, hive_partitioning=False, extra_columns="ignore")
    types = dict.fromkeys(ids, pl.String) | ({} if weight is None else {weight: pl.Float64})
    return pl.scan_csv(
        list(files), separator="\t" if suffix == ".tsv" else ",", schema_overrides=types, infer_schema=False, glob=False
    )


def ids_as_integers(frame: pl.LazyFrame, ids: tuple[str, str]) -> pl.LazyFrame:
    """The columns of ids of a text file as integers, if each id in the column survives that."""
    names = list(dict.fromkeys(ids))
    integers = frame.select(survives_as_integer(pl.col(name)).all().alias(name) for name in names)
    survives = integers.collect(engine="streaming")
    return frame.with_columns(pl.col(name).cast(pl.Int64) for name in names if survives[name].item())


def survives_as_integer(text: Text) -> Text:
    """Whether each text is the same after conversion to an integer and back: 7 is, 07 is not."""
    return text.cast(pl.Int64, strict=False).cast(pl.String).eq_missing(text)


@contextmanager
def reading(path: str | Path, *, writing: bool = False) -> Iterator[None]:
    """Turn errors about a file into one line that names it; with ``writing``, leave errors of the disk to the caller."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        if interrupt_or_itself(error) is not error:
            raise KeyboardInterrupt from None
        if writing and isinstance(error, OSError):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DropoutError(f"{path}: cannot be read as a table: {reason}") from error


def read_titles(path: Path) -> dict[str, str]:
    """The title of each id, both as text, from a CSV or Parquet file with ``item_id`` and ``title``."""
    if path.suffix not in TITLE_SUFFIXES:
        raise DropoutError(f"{path}: want a file of titles that ends in {' or '.join(TITLE_SUFFIXES)}, got {path.name}")
    if not path.exists():
        raise DropoutError(f"{path}: want a file of titles, got nothing there")
    check_fits(path)
    try:
        table = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DropoutError(f"{path}: cannot be read as a table: {first_line(error)}") from error
    if missing := {"item_id", "title"} - set(table.columns):
        raise DropoutError(f"{path}: want the columns item_id and title, got {table.columns} without {sorted(missing)}")
    rows = table.select(pl.col("item_id", "title").cast(pl.String)).drop_nulls()
    return dict(rows.iter_rows())


def _files_of(source: Path) -> list[Path]:
    if source.is_dir():
        if not (found := sorted(file for file in source.rglob("*") if file.is_file() and _suffix(file) in SUFFIXES)):
            raise DropoutError(f"{source}: want a folder of files that end in {', '.join(SUFFIXES)}, got none there")
        return found
    if not source.exists() and glob.has_magic(str(source)):
        if not (found := sorted(map(Path, glob.glob(str(source), recursive=True)))):
            raise DropoutError(f"{source}: want files of these names, got none")
        return [file for each in found for file in _files_of(each)]
    if _suffix(source) not in SUFFIXES:
        raise DropoutError(f"{source}: want a file that ends in {', '.join(SUFFIXES)} or .csv.gz, got {source.name}")
    if not source.exists():
        raise DropoutError(f"{source}: want a file, got nothing there")
    check_plain(source)
    return [source]


def _suffix(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
