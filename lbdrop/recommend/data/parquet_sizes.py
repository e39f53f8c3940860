"""How large a table becomes: of Parquet from its footer and the headers of its pages, before anything is decoded.

A page of a megabyte may declare to unfold to two gigabytes, and its reader takes them at once; what it declares is all that
polars takes. A value repeated a billion times takes eight bytes each. Both places are numbers in Thrift's compact protocol
(https://github.com/apache/parquet-format, ``parquet.thrift``), read here as dicts by field number.
"""

import gzip
import os
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lbdrop.errors import DropoutError, first_line
from lbdrop.io.files import check_plain

__all__ = ["check_fits", "check_ids_fit", "check_pieces_fit", "declared"]

MAGIC, MAX_FOOTER, PAGE_HEADER = b"PAR1", 1 << 26, 1 << 14
SLACK, ROOM, PIECE = 1 << 20, 1 << 26, 1 << 22
GZIP, OTHERS = b"\x1f\x8b", (b"\x78\x01", b"\x78\x9c", b"\x78\xda", b"\x28\xb5\x2f\xfd")
"""How compressed text begins, whatever the name of its file: polars unfolds these, too."""


class Declared(NamedTuple):
    """Rows, bytes after decompression, and values."""

    rows: int
    bytes: int
    values: int = 0


def check_fits(path: Path, most: int | None = None) -> int:
    """The rows of a Parquet file, 0 of text; an error if it would take more than ``most`` bytes, by default all memory."""
    most = _memory() if most is None else most
    size = check_plain(path)
    found = declared(path) if path.suffix == ".parquet" else Declared(0, _text_bytes(path, size, most))
    if (needed := max(found.bytes, 8 * found.values)) > most:
        raise DropoutError(
            f"{path}: want a table of at most {most:,} bytes, got {size:,} that unfold to {needed:,} or more; lbdrop data"
            " prepare own reads large tables a part at a time"
        )
    return found.rows


def check_pieces_fit(path: Path, most: int | None = None) -> None:
    """An error if a row group, of a file read piece by piece, takes more than ``most`` bytes, by default all memory."""
    most = _memory() if most is None else most
    for number, group in enumerate(_groups(path)):
        if (needed := max(group.bytes, 8 * group.values)) > most:
            raise DropoutError(
                f"{path}: want row groups of at most {most:,} bytes, got {needed:,} or more in group {number}; write it again"
                " with smaller ones"
            )


def check_ids_fit(path: Path, partner: Path, bytes_each: int) -> int:
    """The rows of a table of ids, each of which has so many bytes in a file beside it: both bound what it may unfold to."""
    size = partner.stat().st_size
    rows = check_fits(path, ROOM + 16 * size)
    if rows * bytes_each > size:
        raise DropoutError(
            f"{path}: want ids of what is in {partner.name}, got {rows:,} for {size:,} bytes; write it again"
        )
    return rows


def declared(path: Path) -> Declared:
    """What a file declares; an error if its pages declare more than its footer does."""
    groups = _groups(path)
    return Declared(*map(sum, zip(*groups, strict=True))) if groups else Declared(0, 0)


def _groups(path: Path) -> list[Declared]:
    """What each row group of a file declares."""
    found = []
    try:
        with path.open("rb") as file:
            footer = _footer(file)
            for group in footer.get(4, []):
                chunks = [chunk[3] for chunk in group[1]]
                said, pages = sum(chunk[6] for chunk in chunks), sum(_pages(file, chunk) for chunk in chunks)
                if pages > 2 * said + SLACK:
                    raise DropoutError(
                        f"{path}: want pages of {said:,} bytes, as it declares, got {pages:,}; write it again"
                    )
                found.append(Declared(group[3], max(said, pages), sum(chunk[5] for chunk in chunks)))
            if footer[3] != sum(group.rows for group in found):
                raise ValueError("another number of rows than its groups have")
    except DropoutError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, RecursionError, OverflowError, struct.error) as error:
        raise DropoutError(
            f"{path}: cannot be read as a table: a damaged Parquet file ({first_line(error)})"
        ) from error
    return found


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 40


def _text_bytes(path: Path, size: int, most: int) -> int:
    """The bytes of a text file when it is unfolded, counted up to ``most``."""
    with path.open("rb") as file:
        head = file.read(4)
    if head.startswith(OTHERS):
        raise DropoutError(f"{path}: want text, or gzip of it, got text compressed in another way; unfold it first")
    if not head.startswith(GZIP):
        return size
    try:
        with gzip.open(path) as unfolded:
            total = 0
            while total <= most and (piece := unfolded.read(PIECE)):
                total += len(piece)
            return total
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DropoutError(f"{path}: cannot be read as a table: damaged gzip ({first_line(error)})") from error


def _footer(file: BinaryIO) -> dict[int, Any]:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - 8, 0))
    length, magic = struct.unpack("<I4s", file.read(8))
    if magic != MAGIC or length > min(MAX_FOOTER, end - 8):
        raise ValueError("no footer of Parquet")
    file.seek(end - 8 - length)
    return _struct(file.read(length), 0)[0]


def _pages(file: BinaryIO, chunk: dict[int, Any]) -> int:
    """Bytes of the pages of a column in a row group; 2: decompressed, 3: in the file."""
    place, total = min(chunk[9], chunk.get(11) or chunk[9]), 0
    end = place + chunk[7]
    while 0 <= place < end:
        file.seek(place)
        header, length = _struct(file.read(PAGE_HEADER), 0)
        if header[2] < 0 or header[3] < 0:
            raise ValueError("a page of a negative size")
        total, place = total + header[2], place + length + header[3]
    return total


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    found, field = {}, 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _signed(data, at)
        found[field], at = _value(data, at, head & 15)
    return found, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2:
            return kind == 1, at
        case 3:
            return data[at], at + 1
        case 4 | 5 | 6:
            return _signed(data, at)
        case 7:
            return None, at + 8
        case 8:
            length, at = _varint(data, at)
            return data[at : at + length], at + length
        case 9 | 10:
            head, at = data[at], at + 1
            count, at = (head >> 4, at) if head >> 4 < 15 else _varint(data, at)
            if count > len(data):
                raise ValueError("a list longer than the file")
            items = []
            for _ in range(count):
                each, at = _value(data, at, 3 if head & 15 in (1, 2) else head & 15)
                items.append(each)
            return items, at
        case 12:
            return _struct(data, at)
    raise ValueError(f"type {kind} of Thrift")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128 or shift > 63:
            return value, at
        shift += 7


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at
