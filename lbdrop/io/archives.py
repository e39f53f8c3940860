"""Zip, tar and .npz of anybody's making: read in memory and within bounds; nothing is extracted, followed or unpickled.

What an archive says about itself is not believed. A size is checked before it is read; a zip's compression is one whose
output can be bounded; a tar is asked for pieces, and no piece, its own headers' among them, is larger than `PIECE`. Names
choose what is read and never a place on the disk; links and devices are no files.
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

from lbdrop.errors import DropoutError

__all__ = ["BROKEN", "Member", "members", "read_npz", "why"]

PIECE = 1 << 26
"""Bytes of a tar in one go."""
TAR = 1 << 34
"""Bytes of a tar, unpacked; the largest official one has 2."""
FILES = 200_000
"""Members of a tar, whose headers compress to almost nothing."""
NPZ = 1 << 30
"""Bytes of all arrays of an .npz together."""
DEFLATE = 1032
"""No byte of deflate's stands for more."""
BROKEN = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
    RuntimeError, struct.error, UnicodeError, OverflowError,
)  # fmt: skip
"""What reading a damaged archive can raise, beside OSError without a number."""
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
UNPACK: dict[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


def why(error: BaseException) -> str:
    """The first line of what went wrong, or its kind."""
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__


# ----------------------------------------------------------------------------------------------------------- zip, tar


class Member(NamedTuple):
    """A plain file in an archive, not yet open."""

    name: str
    size: int
    """Reading gives no more than this, whatever the archive says elsewhere."""
    open: Callable[[], IO[bytes]]


@contextmanager
def members(path: Path) -> Iterator[list[Member]]:
    """The plain files of a zip or tar, and of the tars in a tar. What is broken in it is one line, also in the block."""
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
            raise  # the disk's, not the archive's
        raise DropoutError(f"{path}: want a whole zip or tar, got {why(error)}; fetch it again") from error


def _zipped(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    def opened() -> IO[bytes]:
        _check_entry(entry)
        return packed.open(entry)

    return Member(entry.filename, entry.file_size, opened)


def _check_entry(entry: zipfile.ZipInfo) -> None:
    """The other methods unpack a whole chunk at once, which can be anything."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"{entry.filename} in a compression other than deflate")
    if entry.file_size > entry.compress_size * DEFLATE:
        raise zipfile.BadZipFile(f"{entry.filename} of {entry.file_size:,} bytes in {entry.compress_size:,}")


def _tarred(raw: IO[bytes], stack: ExitStack, depth: int = 1) -> list[Member]:
    tar = stack.enter_context(tarfile.TarFile(fileobj=_Bounded(raw)))  # pyright: ignore[reportArgumentType]
    files: list[Member] = []
    for number, member in enumerate(tar):
        if number >= FILES or member.offset_data + member.size > TAR:
            raise tarfile.ReadError(f"more than {FILES:,} files or {TAR:,} bytes")
        if not member.isreg():
            continue
        if depth and member.name.endswith(".tar"):  # Netflix's training_set.tar lies in the tar of everything
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
    """A stream that refuses to give much at once: a tar's own headers may ask for gigabytes."""

    def __init__(self, raw: IO[bytes]):
        self.raw, self.tell, self.seekable = raw, raw.tell, raw.seekable

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= PIECE:
            raise tarfile.ReadError(f"a piece of {size:,} bytes")
        return self.raw.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        if not 0 <= place <= TAR:
            raise tarfile.ReadError(f"a place {place:,} bytes into it")
        return self.raw.seek(place, whence)


# --------------------------------------------------------------------------------------------------------------- npz


def read_npz(file: Path | IO[bytes], names: Collection[str] | None = None, largest: int = NPZ) -> dict[str, np.ndarray]:
    """Arrays of numbers or text by name, all or those asked for; a DropoutError tells what it found instead.

    Args:
        file: the .npz.
        names: the arrays to read; others are not looked at.
        largest: bytes of all of them together.
    """
    try:
        with zipfile.ZipFile(file) as packed:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in packed.infolist()}
            if missing := [name for name in names or () if name not in entries]:
                raise DropoutError(f"{_some(entries)} without {', '.join(missing)}")
            chosen = {name: entries[name] for name in (entries if names is None else names)}
            if (size := sum(entry.file_size for entry in chosen.values())) > largest:
                raise DropoutError(f"arrays of {size:,} bytes where at most {largest:,} are wanted")
            return {name: _array(packed, entry) for name, entry in chosen.items()}
    except DropoutError:
        raise
    except Exception as error:  # a damaged zip or header can fail in any way at all
        raise DropoutError(why(error)) from error


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
        # No memory is asked for unless the bytes to fill it are said to be there.
        size, said = math.prod(shape) * dtype.itemsize, entry.file_size - member.tell()
        if min(shape, default=0) < 0 or size != said:
            raise DropoutError(f"{entry.filename} of shape {shape} and {dtype} in {said:,} bytes")
        flat, done = np.empty(math.prod(shape), dtype), 0
        view = flat.view(np.uint8)
        while piece := member.read(PIECE):
            view[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done += len(piece)
        if done != size:
            raise DropoutError(f"{entry.filename} cut short")
    return flat.reshape(shape, order="F" if fortran else "C")


def _some(names: Collection[str]) -> str:
    shown = [ascii(name)[1:-1][:60] for name in sorted(names)]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "") or "nothing"
