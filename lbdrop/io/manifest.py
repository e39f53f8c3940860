"""A folder of ours is sealed: its JSON names kind, format, versions, and bytes and SHA-256 of each file, itself included.

    "kind": "lbdrop recommender", "format": 2, …, "versions": {"lbdrop": "0.1.0", "torch": "2.13.0"},
    "files": {"weights.safetensors": {"bytes": 248, "sha256": "5a0e…"}, …},
    "seal": SHA-256 of this text with 64 zeros in place of the seal

So a changed bit, a file of another folder, or a FIFO in place of a file is seen before anything is parsed. It is no signature:
who can write the folder can seal it again, and so what is in it is checked as well.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lbdrop.errors import DropoutError, first_line
from lbdrop.io.files import MAX_HOLES, check_plain
from lbdrop.io.records import package_version, parse_json

__all__ = ["Kind", "faults_of_files", "header_of", "is_ours", "read_header", "reading", "sealed", "write_header"]

MAX_HEADER, MAX_KNOWN_HOLES = 1 << 24, 1 << 31
BLANK = "0" * 64
SEAL = re.compile(rb'(?<="seal": ")[0-9a-f]{64}(?="\n}\n\Z)')

Json = dict[str, Any]


class Kind(NamedTuple):
    """A kind of folder."""

    name: str
    header: str
    """The name of its JSON."""
    files: str
    """The names of all other files, as a pattern."""
    format: int
    oldest: int
    """The oldest format that can be read."""
    what: str
    again: str
    """What to do where one is damaged."""
    keys_without_kind: frozenset[str] = frozenset()
    """Keys in the header of a folder from before kinds were written."""


def write_header(folder: Path, kind: Kind, content: Json) -> Json:
    """Seal a folder, as the last thing written to it; what :func:`read_header` will return."""
    files = {each.name: {"bytes": each.stat().st_size, "sha256": _digest(each)} for each in sorted(folder.iterdir())}
    versions = {"lbdrop": package_version("lbdrop"), "torch": torch.__version__}
    header = {"kind": kind.name, "format": kind.format, "versions": versions, **content, "files": files}
    (folder / kind.header).write_bytes(sealed(header))
    return header


def sealed(header: Json) -> bytes:
    """The text of a header with its seal, which is last."""
    header = {name: value for name, value in header.items() if name != "seal"}
    blank = (json.dumps({**header, "seal": BLANK}, indent=1, ensure_ascii=False) + "\n").encode()
    return SEAL.sub(hashlib.sha256(blank).hexdigest().encode(), blank)


def read_header(folder: Path, kind: Kind) -> Json:
    """The header, if all files of the folder are what was saved."""
    header = header_of(folder, kind)
    for fault in faults_of_files(folder, kind, header):
        raise DropoutError(f"{fault}; {kind.again}")
    header.pop("seal", None)
    return header


def header_of(folder: Path, kind: Kind) -> Json:
    """The header, if it is what was saved; a notice if an earlier version saved it, without a seal."""
    path = folder / kind.header
    try:
        size = check_plain(path, folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DropoutError(f"{folder}: want {kind.what}, got no {kind.header} there; {kind.again}") from error
    if size > MAX_HEADER:
        raise DropoutError(f"{path}: want at most {MAX_HEADER:,} bytes, got {size:,}; {kind.again}")
    data = path.read_bytes()
    header = parse_json(path, data)
    found = header.get("format") if isinstance(header, dict) else None
    if not _is_kind(header, kind) or type(found) is not int:
        raise DropoutError(f"{path}: want {kind.what}, got something else; {kind.again}")
    if not kind.oldest <= found <= kind.format:
        by = header.get("versions")
        raise DropoutError(
            f"{path}: want format {kind.format}, got {found!r:.60}, saved by lbdrop"
            f" {by.get('lbdrop') if isinstance(by, dict) else None!r:.60};"
            f" {'use that version or a later one' if found > kind.format else kind.again}"
        )
    if (found == kind.format or "seal" in header) and not _is_whole(data):
        raise DropoutError(
            f"{path}: want what was saved, got a damaged or edited file (its seal differs); {kind.again}"
        )
    if found < kind.format:
        warnings.warn(
            f"{folder}: saved by an earlier version of lbdrop, format {found}, without all checksums: some damage would not be"
            " seen; save it again",
            stacklevel=4,
        )
    return header


def faults_of_files(folder: Path, kind: Kind, header: Json) -> Iterator[str]:
    """What is wrong with the files of a folder, one after the other."""
    listed = header.get("files", {})
    if isinstance(old := header.get("sha256"), dict):  # of format 1 of a prepared data set
        listed = {name: {"sha256": digest} for name, digest in old.items()}
    there = {each.name for each in folder.iterdir() if re.fullmatch(kind.files, each.name)}
    if not isinstance(listed, dict) or not all(re.fullmatch(kind.files, name) for name in listed):
        yield f"{folder / kind.header}: want names of its files, got {listed!r:.60}"
        return
    for name in sorted(there | listed.keys()):
        path, entry = folder / name, listed.get(name)
        try:
            size = check_plain(path, folder, MAX_HOLES if entry is None else MAX_KNOWN_HOLES)
        except FileNotFoundError:
            yield f"{folder}: want {kind.what}, got no {name} there"
        except DropoutError as error:
            yield str(error).rpartition(";")[0] or str(error)
        else:
            if entry is None and listed:
                yield f"{path}: want only what was saved together, got a file of another folder"
            elif isinstance(entry, dict) and entry.get("bytes", size) != size:
                yield f"{path}: want {entry['bytes']!r:.60} bytes, got {size:,}: cut off, or of another folder"
            elif entry is not None and (not isinstance(entry, dict) or entry.get("sha256") != _digest(path)):
                yield f"{path}: want what was saved, got another content (its SHA-256 differs)"


@contextmanager
def reading(path: Path, again: str) -> Iterator[None]:
    """One line that names ``path`` for whatever a file raises that is damaged, or forged and sealed again."""
    try:
        yield
    except DropoutError:
        raise
    except Exception as error:  # such files fail in many ways
        raise DropoutError(f"{path}: cannot be read ({first_line(error)}); {again}") from error


def is_ours(folder: Path, kind: Kind) -> bool:
    """Whether a folder's header says that it is of this kind; other programs use such names too."""
    path = folder / kind.header
    try:
        return check_plain(path) <= MAX_HEADER and _is_kind(parse_json(path, path.read_bytes()), kind)
    except (DropoutError, OSError):
        return False


def _is_kind(header: Any, kind: Kind) -> bool:
    if not isinstance(header, dict):
        return False
    return header.get("kind") == kind.name or (bool(kind.keys_without_kind) and header.keys() >= kind.keys_without_kind)


def _is_whole(data: bytes) -> bool:
    seal = SEAL.search(data)
    return seal is not None and hashlib.sha256(SEAL.sub(BLANK.encode(), data)).hexdigest().encode() == seal[0]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
