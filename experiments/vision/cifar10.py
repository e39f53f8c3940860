"""CIFAR-10: 60,000 images of 32 × 32 pixels in ten classes, from the official archives or from .npz parts.

    cifar-10-binary.tar.gz   six files of 10,000 rows: 1 byte of class, then 3 × 1,024 bytes of red, green and blue
    cifar-10-python.tar.gz   the same as Python 2 pickles of numpy arrays
    cifar10-0.npz, …         arrays x (n, 3, 32, 32) of uint8 and y (n,); over the parts, in order of their number,
                             come 50,000 rows of the train set and then 10,000 of the test set

A pickle can run any code, so the Python version is read without letting it name anything but arrays.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import hashlib
import http.client
import io
import os
import pickle
import pickletools
import re
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from torch import Tensor

from experiments.archives import members, read_npz
from lbdrop.errors import DropoutError, first_line

__all__ = [
    "CLASSES",
    "OFFICIAL",
    "Archive",
    "Images",
    "Release",
    "Split",
    "load",
]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32
PIXELS = 3 * SIDE * SIDE
TRAIN_FILES = tuple(f"data_batch_{i}" for i in range(1, 6))
FILES = (*TRAIN_FILES, "test_batch")
CHUNK = 1 << 20

Rows = tuple[UInt8[np.ndarray, "n 3 32 32"], Int64[np.ndarray, "n"]]
Moved = TypeVar("Moved", "Images", "Split")


@dataclass(frozen=True)
class Archive:
    """One of the two official files."""

    url: str
    sha256: str
    folder: str
    """The folder inside the archive."""
    suffix: str
    """What follows ``data_batch_1`` in the names of its files."""

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Release:
    """What complete files look like."""

    train: int
    test: int
    archives: tuple[Archive, ...]
    """The first is the one to download."""

    def count(self, file: str) -> int:
        return self.test if file == "test_batch" else self.train // len(TRAIN_FILES)


HOME = "https://www.cs.toronto.edu/~kriz/"
OFFICIAL = Release(
    train=50_000,
    test=10_000,
    archives=(
        Archive(
            HOME + "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            "cifar-10-batches-bin",
            ".bin",
        ),
        Archive(
            HOME + "cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            "cifar-10-batches-py",
            "",
        ),
    ),
)


# ------------------------------------------------------------------------------------------------------------ images


@dataclass(frozen=True)
class Split:
    """The train set divided in two, and the test set as it is."""

    train: UInt8[Tensor, "train 3 32 32"]
    train_labels: Int64[Tensor, "train"]
    validation: UInt8[Tensor, "validation 3 32 32"]
    validation_labels: Int64[Tensor, "validation"]
    test: UInt8[Tensor, "test 3 32 32"]
    test_labels: Int64[Tensor, "test"]
    classes: tuple[str, ...] = CLASSES

    def to(self, device: str | torch.device) -> "Split":
        """The same images on another device."""
        return _moved(self, device)


@dataclass(frozen=True)
class Images:
    """The whole data set, as bytes."""

    train: UInt8[Tensor, "train 3 32 32"]
    train_labels: Int64[Tensor, "train"]
    test: UInt8[Tensor, "test 3 32 32"]
    test_labels: Int64[Tensor, "test"]
    classes: tuple[str, ...] = CLASSES

    def to(self, device: str | torch.device) -> "Images":
        """The same images on another device."""
        return _moved(self, device)

    def split(self, validation: int = 5_000, seed: int = 0) -> Split:
        """Hold ``validation`` random train images out; the same ones for the same seed on every device."""
        if not 0 < validation < len(self.train):
            raise DropoutError(f"validation: want 1 to {len(self.train) - 1:,} of the train images, got {validation:,}")
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(seed)).to(self.train.device)
        held, rest = order[:validation], order[validation:]
        return Split(
            self.train[rest], self.train_labels[rest], self.train[held], self.train_labels[held],
            self.test, self.test_labels, self.classes,
        )  # fmt: skip


def _moved(images: Moved, device: str | torch.device) -> Moved:
    tensors = {f.name: getattr(images, f.name) for f in fields(images)}
    return replace(images, **{name: t.to(device) for name, t in tensors.items() if isinstance(t, Tensor)})


def load(
    path: str | Path = "data/cifar10", *, download: bool = True, progress: bool = True, release: Release = OFFICIAL
) -> Images:
    """Read CIFAR-10 from what is at ``path``, or download it there.

    Args:
        path: a folder with one of: ``cifar-10-batches-bin`` or ``cifar-10-batches-py`` (or their files), one of the two
            official archives, the parts ``cifar10-0.npz``, …; or an archive itself.
        download: fetch the official binary archive (162 MiB) into the folder where none of these is there.
        progress: show a bar while downloading.
        release: what to expect; another one only for files of the same format and other sizes.
    """
    path = Path(path)
    try:
        if path.is_file():
            return _assembled(path, _from_archive(path, release), release)
        for archive in release.archives:
            for folder in (path / archive.folder, path):
                if (folder / f"{FILES[0]}{archive.suffix}").is_file():
                    return _assembled(folder, _from_folder(folder, archive, release), release)
        for archive in release.archives:
            if (path / archive.file).is_file():
                return _assembled(path / archive.file, _from_archive(path / archive.file, release), release)
        parts = {int(m[1]): p for p in path.glob("cifar10-*.npz") if (m := re.fullmatch(r"cifar10-(\d+)\.npz", p.name))}
        if parts:
            return _assembled(path, _from_parts([parts[i] for i in sorted(parts)], release), release)
    except OSError as error:
        raise DropoutError(f"{path}: could not be read ({error}); check that it is yours to read") from error
    if not download:
        names = [archive.file for archive in release.archives]
        raise DropoutError(
            f"{path}: want {', '.join(names)} or cifar10-0.npz, … there, got none of them; put one there, or pass download=True"
        )
    fetched = _download(release.archives[0], path, progress)
    return _assembled(fetched, _from_archive(fetched, release), release)


def _assembled(path: Path, rows: Sequence[Rows], release: Release) -> Images:
    x, y = (
        torch.from_numpy(np.concatenate([x for x, _ in rows])),
        torch.from_numpy(np.concatenate([y for _, y in rows])),
    )
    want = release.train + release.test
    if len(y) != want:
        raise DropoutError(
            f"{path}: want {want:,} images, got {len(y):,}; a part is missing or twice there: fetch them again"
        )
    n = release.train
    return Images(x[:n], y[:n], x[n:], y[n:])


def _from_folder(folder: Path, archive: Archive, release: Release) -> list[Rows]:
    contents = {}
    for name in FILES:
        file = folder / f"{name}{archive.suffix}"
        if not file.is_file():
            raise DropoutError(
                f"{file}: want this batch beside the others, got no such file; extract {archive.file} again"
            )
        contents[name] = file.read_bytes()
    return _batches(folder, contents, archive, release)


def _from_parts(parts: Sequence[Path], release: Release) -> list[Rows]:
    rows: list[Rows] = []
    for part in parts:
        rows.append(_npz(part))
        if sum(len(y) for _, y in rows) > release.train + release.test:
            break  # enough to be refused; the others may hold any number
    return rows


def _from_archive(path: Path, release: Release) -> list[Rows]:
    got = _sha256(path)
    archive = next((a for a in release.archives if a.sha256 == got), None)
    if archive is None:
        named = [a for a in release.archives if a.file == path.name] or release.archives
        want = " or ".join(f"SHA-256 {a.sha256} ({a.file})" for a in named)
        raise DropoutError(
            f"{path}: want {want}, got {got} in {path.stat().st_size:,} bytes; delete it and download it again from"
            f" {named[0].url}"
        )
    wanted = {f"{archive.folder}/{name}{archive.suffix}": name for name in FILES}
    contents: dict[str, bytes] = {}
    with members(path) as found:
        for one in found:
            name = wanted.get(one.name)
            if name is not None and one.size <= 2 * (PIXELS + 1) * release.count(name) + CHUNK:
                with one.open() as file:
                    contents[name] = file.read()
    for member, name in wanted.items():
        if name not in contents:
            raise DropoutError(f"{path}: want {member} in it, got none of a fitting size; download {archive.url} again")
    return _batches(path, contents, archive, release)


def _batches(path: Path, contents: Mapping[str, bytes], archive: Archive, release: Release) -> list[Rows]:
    parse = _binary if archive.suffix else _pickled
    return [parse(f"{path}: {name}{archive.suffix}", contents[name], release.count(name)) for name in FILES]


def _binary(name: str, data: bytes, count: int) -> Rows:
    want = count * (PIXELS + 1)
    if len(data) != want:
        raise DropoutError(f"{name}: want {want:,} bytes ({count:,} images), got {len(data):,}; fetch it again")
    rows = np.frombuffer(data, np.uint8).reshape(count, PIXELS + 1)
    return _checked(name, rows[:, 1:], rows[:, 0])


def _npz(path: Path) -> Rows:
    try:
        x, y = read_npz(path, ("x", "y")).values()
    except DropoutError as error:
        raise DropoutError(f"{path}: want an .npz with arrays x and y, got {error}; fetch it again") from error
    if x.dtype != np.uint8 or x.shape[1:] != (3, SIDE, SIDE) or y.shape != x.shape[:1] or y.dtype.kind not in "iu":
        raise DropoutError(
            f"{path}: want x (n, 3, 32, 32) of uint8 and y (n,) of whole numbers, got x {x.shape} of {x.dtype} and y"
            f" {y.shape} of {y.dtype}; fetch it again"
        )
    return _checked(str(path), x, y)


def _checked(name: str, x: np.ndarray, y: np.ndarray) -> Rows:
    wrong = (y < 0) | (y >= len(CLASSES))
    if wrong.any():
        at = int(wrong.argmax())
        raise DropoutError(f"{name}: want labels 0 to 9, got {y[at]} for image {at}; fetch it again")
    return x.reshape(-1, 3, SIDE, SIDE), y.astype(np.int64)


# ----------------------------------------------------------------------------------------------- pickles, kept harmless


class _Inert:
    """Stands for an array or a dtype of a pickle: keeps what is said of it, and runs nothing."""

    def __init__(self, *said: Any):
        self.said = said
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")  # how Python 3 writes bytes in an old pickle; no other encoding is honoured


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Inert,
    ("numpy._core.multiarray", "_reconstruct"): _Inert,
    ("numpy", "ndarray"): _Inert,
    ("numpy", "dtype"): _Inert,
    ("_codecs", "encode"): _latin1,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in ALLOWED:
            raise DropoutError(f"want nothing but arrays in the pickle, got {module_name}.{global_name}")
        return ALLOWED[module_name, global_name]


def _check_opcodes(data: bytes) -> None:
    """Only what Python 2 could write, and no place in the memo so far out that filling up to it takes all memory."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.proto > 2 or (opcode.name.endswith("PUT") and argument is not None and argument > len(data)):
            raise DropoutError(f"want a pickle of protocol 2, got {opcode.name}")


def _pickled(name: str, data: bytes, count: int) -> Rows:
    try:
        _check_opcodes(data)
        batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except DropoutError as error:
        raise DropoutError(f"{name}: {error}; do not open this file, fetch the official one") from None
    except Exception as error:  # a damaged pickle can fail in any way at all
        raise DropoutError(
            f"{name}: want a pickled batch, got {type(error).__name__}: {first_line(error)}; fetch it again"
        ) from error
    batch = batch if isinstance(batch, dict) else {}
    batch = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    x, labels = _array(name, batch.get("data"), count), batch.get("labels")
    if not isinstance(labels, list) or len(labels) != count or not all(type(label) is int for label in labels):
        got = f"{len(labels):,} entries" if isinstance(labels, list) else type(labels).__name__
        raise DropoutError(f"{name}: want a list of {count:,} whole numbers as labels, got {got}; fetch it again")
    return _checked(name, x, np.array([min(max(label, -1), len(CLASSES)) for label in labels]))


def _array(name: str, data: Any, count: int) -> UInt8[np.ndarray, "n 3072"]:
    """The bytes of a pickled array of images; its state is (version, shape, dtype, in Fortran's order, bytes)."""
    match data:
        case _Inert(state=(_, tuple() as shape, _Inert(said=("u1" | b"u1", *_)), fortran, bytes() as raw)):
            pass
        case _:
            raise DropoutError(f"{name}: want an array of uint8 as data, got {_described(data)}; fetch it again")
    if shape != (count, PIXELS) or len(raw) != count * PIXELS:
        raise DropoutError(
            f"{name}: want data of shape {(count, PIXELS)}, got {shape} in {len(raw):,} bytes; fetch it again"
        )
    return np.frombuffer(raw, np.uint8).reshape(count, PIXELS, order="F" if fortran else "C")


def _described(data: Any) -> str:
    return "another kind of array" if isinstance(data, _Inert) else type(data).__name__


# ------------------------------------------------------------------------------------------------------- downloading


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(archive: Archive, folder: Path, progress: bool) -> Path:
    """Fetch beside the target, check, then rename: what has the official name is whole."""
    target, beside = folder / archive.file, folder / f"{archive.file}.{os.getpid()}.part"
    by_hand = f"fetch {archive.url} by other means into {folder}, or give the folder that has it"
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    try:
        with (
            urllib.request.urlopen(archive.url, timeout=30) as answer,
            _opened(beside) as file,
            Progress(*columns, console=Console(stderr=True), disable=not progress) as bar,
        ):
            length = answer.headers.get("Content-Length")
            task = bar.add_task(archive.file, total=int(length) if length else None)
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                bar.advance(task, len(chunk))
        got, size = _sha256(beside), beside.stat().st_size
        if got != archive.sha256:
            cut = f" of {int(length):,} announced" if length else ""
            raise DropoutError(
                f"{archive.url}: want SHA-256 {archive.sha256}, got {got} in {size:,} bytes{cut}; try again, or {by_hand}"
            )
        beside.replace(target)
    except (OSError, http.client.HTTPException) as error:
        raise DropoutError(f"{archive.url}: could not be downloaded into {folder} ({error}); {by_hand}") from error
    finally:
        beside.unlink(missing_ok=True)
    return target


def _opened(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")
