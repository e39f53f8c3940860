"""Official files wherever they lie: in a folder, in a zip or tar, even a tar in a tar; read in blocks, never extracted.

Nothing in an archive can choose a place on the disk, for nothing is written. Large files pass in blocks of whole lines, so
that memory is a block and what was made of the others; a line that is not as the format says is named by file and number.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import polars as pl

from experiments.archives import members
from lbdrop.errors import DropoutError
from lbdrop.recommend.data.streaming_csr import Progress

__all__ = ["Block", "File", "Format", "Progress", "Ratings", "blocks", "check_count", "find", "parsed", "text_lines"]

BLOCK = 1 << 26
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
TEXT, SMALL = 1 << 32, 1 << 28
"""Bytes of ratings, of which the largest official files have 3 billion, and of titles."""


class File(NamedTuple):
    """A file of a source, not yet open."""

    name: str
    """For messages: its path, or the archive's and its own in there."""
    base: str
    """Its name without folders."""
    size: int
    open: Callable[[], IO[bytes]]


class Ratings(NamedTuple):
    """What every reader returns: a data set as its files have it, before any filter."""

    frame: pl.DataFrame
    """``user_id``, ``item_id`` and, unless the source has likes alone, ``weight``: the rating or the number of plays."""
    titles: pl.DataFrame | None
    """``item_id``, ``title``; None without a file of titles."""
    files: tuple[tuple[str, int], ...]
    """Name and bytes of each file read."""
    note: str = ""
    """What a reader of results should know about this source."""


class Block(NamedTuple):
    """Whole lines of a file."""

    file: str
    line: int
    """The number of its first line, from 1."""
    data: bytes


class Format(NamedTuple):
    """What each line of a file must look like."""

    line: re.Pattern[bytes]
    words: str
    home: str
    """Where whole files are to be had."""


# ------------------------------------------------------------------------------------------------------------ finding


@contextmanager
def find(path: str | Path, wanted: str, described: str, home: str) -> Iterator[list[File]]:
    """The files below ``path`` whose names match ``wanted``; looks into archives where no plain file matches.

    ``path`` is a folder, searched two levels deep, an archive, or one of the files, beside which the others may lie.
    """
    path = Path(path)
    with ExitStack() as stack:
        try:
            if not path.exists():
                raise DropoutError(f"{path}: want {described}, got nothing there; check the path, or see {home}")
            found = _matching(path, re.compile(wanted), stack)
            if not found:
                raise DropoutError(f"{path}: want {described}, got none of it there; see {home}")
            yield found
        except OSError as error:
            raise DropoutError(
                f"{path}: could not be read ({error.strerror or error}); check it, or see {home}"
            ) from error


def _matching(path: Path, wanted: re.Pattern[str], stack: ExitStack) -> list[File]:
    if path.is_file() and path.name.lower().endswith(ARCHIVES):
        return [file for file in _archived(path, stack) if wanted.fullmatch(file.base)]
    if path.is_file():
        beside = sorted(p for p in path.parent.iterdir() if p != path and p.is_file() and wanted.fullmatch(p.name))
        return [_plain(p) for p in (path, *beside)]
    inside = sorted(p for depth in ("*", "*/*") for p in path.glob(depth) if p.is_file())
    plain = [_plain(p) for p in inside if wanted.fullmatch(p.name)]
    packed = (p for p in inside if p.name.lower().endswith(ARCHIVES))
    return plain or next((found for p in packed if (found := _matching(p, wanted, stack))), [])


def _plain(path: Path) -> File:
    return File(str(path), path.name, path.stat().st_size, lambda: path.open("rb"))


def _archived(path: Path, stack: ExitStack) -> list[File]:
    inside = stack.enter_context(members(path))
    return [File(f"{path}: {one.name}", _base(one.name), one.size, one.open) for one in inside]


def _base(member: str) -> str:
    return PurePosixPath(member).name


# ------------------------------------------------------------------------------------------------------------ reading


def blocks(files: Iterable[File], progress: Progress | None = None, size: int = BLOCK) -> Iterator[list[Block]]:
    """Lists of blocks of together about ``size`` bytes: many small files at once, or a piece of a large one."""
    files = list(files)
    total, done = sum(file.size for file in files), 0
    if total > TEXT:
        raise DropoutError(f"{files[0].name}: want at most {TEXT:,} bytes of ratings, got {total:,}; fetch it again")
    group: list[Block] = []
    waiting = 0
    for file in files:
        line, rest = 1, b""
        with file.open() as stream:
            while chunk := stream.read(size):
                done += len(chunk)
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                if newline:
                    group.append(Block(file.name, line, whole + newline))
                    line, waiting = line + whole.count(b"\n") + 1, waiting + len(whole)
                elif len(rest) >= size:
                    raise DropoutError(f"{file.name}: want lines, got {len(rest):,} bytes without an end of line")
                if waiting >= size:
                    yield group
                    group, waiting = [], 0
                if progress is not None:
                    progress(done, total)
        if rest:
            group.append(Block(file.name, line, rest + b"\n"))
            waiting += len(rest)
    if group:
        yield group


def parsed(
    group: list[Block],
    form: Format,
    separator: str,
    schema: dict[str, pl.DataType],
    valid: pl.Expr,
    rewrite: tuple[bytes, bytes] | None = None,
) -> pl.DataFrame:
    """The lines of these blocks as a table in which ``valid`` holds everywhere, or an error that names the first bad one.

    ``rewrite`` replaces what the fast parser cannot take, such as a separator of two letters, by what it can.
    """
    data = b"".join(block.data for block in group)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    if rewrite is not None:
        data = data.replace(*rewrite)
    try:
        table = pl.read_csv(data, has_header=False, separator=separator, schema=schema, quote_char=None)
        if table.select(valid.fill_null(False).all()).item():
            return table
        reason = "values out of range"
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).splitlines()[0]
    for block in group:
        for number, line in enumerate(block.data.splitlines(), block.line):
            if line and not form.line.fullmatch(line):
                raise DropoutError(
                    f"{block.file}, line {number:,}: want {form.words}, got {_shown(line)}; if the file was cut short or"
                    f" changed, fetch it again: {form.home}"
                )
    raise DropoutError(f"{group[0].file}: want {form.words} in each line, got {reason}; see {form.home}")


def text_lines(file: File, encoding: str) -> Iterator[tuple[int, str]]:
    """Numbered lines of a small text, without their ends."""
    if file.size > SMALL:
        raise DropoutError(f"{file.name}: want at most {SMALL:,} bytes of titles, got {file.size:,}; fetch it again")
    with file.open() as stream:
        content = stream.read()
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise DropoutError(f"{file.name}, line {number:,}: want text in {encoding}, got other bytes") from error
    return ((number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def check_count(where: str, found: int, wanted: int, allow_partial: bool, home: str) -> None:
    """Complain about missing or surplus ratings."""
    if found != wanted and not allow_partial:
        difference = f"{wanted - found:,} fewer" if found < wanted else f"{found - wanted:,} more"
        raise DropoutError(
            f"{where}: want {wanted:,} ratings, as the complete data has, got {found:,}, {difference}; fetch it again: {home},"
            " or go on with allow_partial=True (--allow-partial)"
        )


def _shown(line: bytes) -> str:
    text = line[:60].decode("utf-8", "replace")
    return repr(text) + ("…" if len(line) > 60 else "")
