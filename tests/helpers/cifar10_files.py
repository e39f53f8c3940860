"""Small files of every format of CIFAR-10, written as the official ones are."""

import hashlib
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.vision.cifar10 import FILES, OFFICIAL, Release

TRAIN, TEST = 10, 3
Contents = dict[str, bytes]


class Python2(pickle._Pickler):  # pyright: ignore[reportAttributeAccessIssue]
    """Writes bytes as Python 2 wrote its strings, as in the official files."""

    def save_bytes(self, data: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(data)

    dispatch = {**pickle._Pickler.dispatch, bytes: save_bytes}  # noqa: RUF012  # pyright: ignore[reportAttributeAccessIssue]


def by_python_2(batch: object) -> bytes:
    file = io.BytesIO()
    Python2(file, protocol=2).dump(batch)
    # The module of numpy's arrays had another name in the days of the official files.
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def by_python_3(batch: object) -> bytes:
    return pickle.dumps(batch, protocol=2)


def rows_of(file: str) -> slice:
    n = TRAIN // 5
    return slice(TRAIN, None) if file == "test_batch" else slice(n * FILES.index(file), n * (FILES.index(file) + 1))


def binary(x: np.ndarray, y: np.ndarray) -> Contents:
    rows = np.concatenate([y[:, None].astype(np.uint8), x], 1)
    return {f"{file}.bin": rows[rows_of(file)].tobytes() for file in FILES}


def pickled(x: np.ndarray, y: np.ndarray, dump: Callable[[object], bytes] = by_python_2) -> Contents:
    return {
        file: dump({b"batch_label": b"a batch", b"labels": y[rows_of(file)].tolist(), b"data": x[rows_of(file)]})
        for file in FILES
    }


def packed(path: Path, folder: str, contents: Contents) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in {"readme.html": b"hello", **contents}.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def release_of(*paths: Path) -> Release:
    """The official release, but as small as the test's files, and downloaded from their folder."""
    by_file = {path.name: path for path in paths}
    archives = [
        replace(a, url=by_file[a.file].as_uri(), sha256=hashlib.sha256(by_file[a.file].read_bytes()).hexdigest())
        if a.file in by_file
        else a
        for a in OFFICIAL.archives
    ]
    return Release(TRAIN, TEST, tuple(archives))


SMALL = Release(TRAIN, TEST, OFFICIAL.archives)
BINARY, PYTHON = OFFICIAL.archives


def extracted(folder: Path, contents: Contents) -> Path:
    folder.mkdir(parents=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return folder


def parts(folder: Path, x: np.ndarray, y: np.ndarray, sizes: tuple[int, ...] = (5, 5, 3)) -> Path:
    folder.mkdir(exist_ok=True)
    cuts = np.cumsum(sizes)[:-1]
    pairs = zip(np.split(x.reshape(-1, 3, 32, 32), cuts), np.split(y, cuts), strict=True)
    for i, (part, its) in enumerate(pairs):
        np.savez_compressed(folder / f"cifar10-{i}.npz", x=part, y=its)
    return folder
