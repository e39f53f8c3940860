"""Read zip, tar and .npz files from untrusted sources, in memory and within bounds.

Nothing is extracted to disk, no link is followed, nothing is unpickled. Sizes that an archive states are checked before
anything is read. Only a compression whose output can be bounded is accepted in a zip. A tar is read in pieces of at most
`MAX_PIECE`, its own headers included. Names of members select what is read and never become paths; links and devices are
skipped.
"""

import bz2
import gzip
import io
import lzma
import math
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from lbdrop.errors import DropoutError, first_line

__all__ = [
    "BROKEN",
    "Member",
    "members",
    "read_npz",
]

MAX_PIECE = 1 << 26
"""Bytes read from a tar at once."""
MAX_TAR = 1 << 34
"""Bytes of a tar, unpacked; the largest official one has 2³¹."""
MAX_FILES = 200_000
"""Members of a tar: their headers compress to almost nothing."""
MAX_ARRAYS = 1 << 30
"""Bytes of all arrays of an .npz together."""
MAX_DEFLATE_RATIO = 1032
"""Bytes that one byte of deflate can stand for, at most."""
BROKEN = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
    RuntimeError, struct.error, UnicodeError, OverflowError,
)  # fmt: skip
"""What reading a damaged archive can raise, beside OSError without a number."""
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
UNPACK: dict[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


# ----------------------------------------------------------------------------------------------------------- zip, tar


class Member(NamedTuple):
    """A regular file in an archive, not yet open."""

    name: str
    size: int
    """Reading returns at most this many bytes."""
    open: Callable[[], IO[bytes]]


@contextmanager
def members(path: Path) -> Iterator[list[Member]]:
    """The regular files of a zip or tar, and of the tars in a tar; damage found in the block is a ``DropoutError`` too."""
    try:
        with ExitStack() as stack:
            with path.open("rb") as file:
                start = file.read(6)
            if start.startswith(b"PK"):
                yield [_zipped(packed, entry) for packed in [stack.enter_context(zipfile.ZipFile(path))]
                       for entry in packed.infolist() if not entry.is_dir()]  # fmt: skip
            else:
                unpack = next((way for magic, way in UNPACK.items() if start.startswith(magic)), None)
                raw = stack.enter_context(path.open("rb") if unpack is None else unpack(path))
                yield _tarred(raw, stack)
    except (*BROKEN, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk, not of the archive
        raise DropoutError(f"{path}: want a whole zip or tar, got {first_line(error)}; fetch it again") from error


def _zipped(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    def opened() -> IO[bytes]:
        _check_entry(entry)
        return packed.open(entry)

    return Member(entry.filename, entry.file_size, opened)


def _check_entry(entry: zipfile.ZipInfo) -> None:
    """Refuse what could unpack to more than it states: other compressions unpack chunks of unbounded size."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"{entry.filename} in a compression other than deflate")
    if entry.file_size > entry.compress_size * MAX_DEFLATE_RATIO:
        raise zipfile.BadZipFile(f"{entry.filename} of {entry.file_size:,} bytes in {entry.compress_size:,}")


def _tarred(raw: IO[bytes], stack: ExitStack, depth: int = 1) -> list[Member]:
    tar = stack.enter_context(tarfile.TarFile(fileobj=_Bounded(raw)))  # pyright: ignore[reportArgumentType]
    files: list[Member] = []
    for number, member in enumerate(tar):
        if number >= MAX_FILES or member.offset_data + member.size > MAX_TAR:
            raise tarfile.ReadError(f"more than {MAX_FILES:,} files or {MAX_TAR:,} bytes")
        if not member.isreg():
            continue
        if depth and member.name.endswith(".tar"):  # as Netflix's training_set.tar
            inner = tar.extractfile(member)
            files += [
                Member(f"{member.name}/{one.name}", one.size, one.open)
                for one in _tarred(inner or io.BytesIO(), stack, depth - 1)
            ]
        else:
            read = lambda member=member: tar.extractfile(member) or io.BytesIO()  # noqa: E731
            files.append(Member(member.name, member.size, read))
    return files


class _Bounded:
    """A stream that refuses to return much at once: the headers of a tar may ask for gigabytes."""

    def __init__(self, raw: IO[bytes]):
        self.raw, self.tell, self.seekable = raw, raw.tell, raw.seekable

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_PIECE:
            raise tarfile.ReadError(f"a piece of {size:,} bytes")
        return self.raw.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        if not 0 <= place <= MAX_TAR:
            raise tarfile.ReadError(f"a place {place:,} bytes into it")
        return self.raw.seek(place, whence)


# --------------------------------------------------------------------------------------------------------------- npz


def read_npz(
    file: Path | IO[bytes], names: Collection[str] | None = None, largest: int = MAX_ARRAYS
) -> dict[str, np.ndarray]:
    """Arrays of numbers or text by name; a ``DropoutError`` says what the file has instead.

    Args:
        file: the .npz.
        names: the arrays to read, by default all.
        largest: the most bytes that all of them may have together.
    """
    try:
        with zipfile.ZipFile(file) as packed:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in packed.infolist()}
            if missing := [name for name in names or () if name not in entries]:
                raise DropoutError(f"{_names_of(entries)} without {', '.join(missing)}")
            chosen = {name: entries[name] for name in (entries if names is None else names)}
            if (size := sum(entry.file_size for entry in chosen.values())) > largest:
                raise DropoutError(f"arrays of {size:,} bytes where at most {largest:,} are allowed")
            return {name: _array(packed, entry) for name, entry in chosen.items()}
    except DropoutError:
        raise
    except Exception as error:  # a damaged zip or header can fail in any way
        raise DropoutError(first_line(error)) from error


def _array(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    _check_entry(entry)
    with packed.open(entry) as member:
        version = np.lib.format.read_magic(member)
        if version not in HEADERS:
            raise DropoutError(f"{entry.filename} of format {version}")
        shape, fortran, dtype = HEADERS[version](member)
        if dtype.hasobject:
            raise DropoutError(f"Object arrays in {entry.filename}, which could run code")
        if dtype.kind not in "biufcUS" or not dtype.itemsize:
            raise DropoutError(f"{entry.filename} of {dtype}")
        # Memory is taken only if the file states as many bytes as the array needs.
        size, stated = math.prod(shape) * dtype.itemsize, entry.file_size - member.tell()
        if min(shape, default=0) < 0 or size != stated:
            raise DropoutError(f"{entry.filename} of shape {shape} and {dtype} in {stated:,} bytes")
        flat, done = np.empty(math.prod(shape), dtype), 0
        view = flat.view(np.uint8)
        while piece := member.read(MAX_PIECE):
            view[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done += len(piece)
        if done != size:
            raise DropoutError(f"{entry.filename} cut short")
    return flat.reshape(shape, order="F" if fortran else "C")


def _names_of(names: Collection[str]) -> str:
    shown = [ascii(name)[1:-1][:60] for name in sorted(names)]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "") or "nothing"
