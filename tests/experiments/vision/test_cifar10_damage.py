"""Damaged and hostile files of CIFAR-10 are named, and nothing that they say is run."""

import os
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers.cifar10_files import (
    BINARY,
    PYTHON,
    SMALL,
    TRAIN,
    Contents,
    binary,
    by_python_3,
    extracted,
    packed,
    parts,
    pickled,
    release_of,
)

from experiments.vision import cifar10
from lbdrop import DropoutError

# -------------------------------------------------------------------------------------------- archives and binary files


def test_archive_with_another_checksum_is_refused(tmp_path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    path = packed(tmp_path / PYTHON.file, PYTHON.folder, pickled(pixels, labels))
    with pytest.raises(
        DropoutError,
        match=f"want SHA-256 {PYTHON.sha256} .*, got .* bytes; delete it and download it again from {PYTHON.url}",
    ):
        cifar10.load(path)
    other = path.rename(tmp_path / "renamed.tgz")
    with pytest.raises(DropoutError, match=f"SHA-256 {BINARY.sha256} .* or SHA-256 {PYTHON.sha256}"):
        cifar10.load(other)


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"not an archive"], ids=["cut", "other"]
)
def test_damaged_archive_that_passes_the_checksum_is_named(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray, damage: Callable[[bytes], bytes]
) -> None:
    path = packed(tmp_path / BINARY.file, BINARY.folder, binary(pixels, labels))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DropoutError, match="cifar-10-binary.tar.gz: want"):
        cifar10.load(path, release=release_of(path))


def test_links_and_huge_members_of_an_archive_are_not_read(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray
) -> None:
    huge = {**binary(pixels, labels), "test_batch.bin": b"\0" * (3 << 20)}
    path = packed(tmp_path / BINARY.file, BINARY.folder, huge)
    with pytest.raises(
        DropoutError, match="want cifar-10-batches-bin/test_batch.bin in it, got none of a fitting size"
    ):
        cifar10.load(path, release=release_of(path))
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo(f"{BINARY.folder}/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
    with pytest.raises(
        DropoutError, match="want cifar-10-batches-bin/data_batch_1.bin in it, got none of a fitting size"
    ):
        cifar10.load(path, release=release_of(path))


def test_cut_or_missing_binary_file_is_named(tmp_path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    folder = extracted(tmp_path / BINARY.folder, binary(pixels, labels))
    whole = (folder / "data_batch_3.bin").read_bytes()
    (folder / "data_batch_3.bin").write_bytes(whole[:-1])
    with pytest.raises(
        DropoutError, match=r"data_batch_3.bin: want 6,146 bytes \(2 images\), got 6,145; fetch it again"
    ):
        cifar10.load(tmp_path, release=SMALL)
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(DropoutError, match="data_batch_3.bin: want this batch beside the others"):
        cifar10.load(tmp_path, release=SMALL)


@pytest.mark.parametrize("make", [binary, pickled])
def test_label_beyond_nine_is_named(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray, make: Callable[..., Contents]
) -> None:
    labels[TRAIN + 1] = 10
    extracted(tmp_path / (BINARY if make is binary else PYTHON).folder, make(pixels, labels))
    with pytest.raises(DropoutError, match="test_batch.*: want labels 0 to 9, got 10 for image 1"):
        cifar10.load(tmp_path, release=SMALL)


# -------------------------------------------------------------------------------------------------------------- pickles


class Malicious:
    """Would write a file if it were unpickled as pickles usually are."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.mark),))


def test_pickle_that_names_anything_but_arrays_is_refused_and_not_run(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray
) -> None:
    mark = tmp_path / "was here"
    contents = pickled(pixels, labels)
    contents["data_batch_2"] = by_python_3({b"labels": [0, 0], b"data": Malicious(mark)})
    extracted(tmp_path / PYTHON.folder, contents)
    with pytest.raises(
        DropoutError, match=r"data_batch_2: want nothing but arrays in the pickle, got posix.mkdir; do not open"
    ):
        cifar10.load(tmp_path, release=SMALL)
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["os system", "builtins eval", "numpy load", "numpy.core.multiarray fromfile", "_codecs decode"]
)
def test_pickle_cannot_name_builtins_or_the_rest_of_numpy(name: str) -> None:
    module, function = name.split()
    with pytest.raises(DropoutError, match=f"got {module}.{function}; do not open"):
        cifar10._pickled("batch", f"c{module}\n{function}\n(S'x'\ntR.".encode(), 2)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([1, 2], "want an array of uint8 as data, got NoneType"),
        ({b"labels": [0, 1]}, "want an array of uint8 as data, got NoneType"),
        (
            {b"labels": [0, 1], b"data": np.zeros((2, 3072))},
            "want an array of uint8 as data, got another kind of array",
        ),
        ({b"labels": [0, 1], b"data": np.zeros((2, 3072), "O")}, "got another kind of array"),
        (
            {b"labels": [0, 1], b"data": np.zeros((3, 3072), np.uint8)},
            r"want data of shape \(2, 3072\), got \(3, 3072\)",
        ),
        (
            {b"labels": [0], b"data": np.zeros((2, 3072), np.uint8)},
            "want a list of 2 whole numbers as labels, got 1 entries",
        ),
        ({b"labels": [0, "1"], b"data": np.zeros((2, 3072), np.uint8)}, "want a list of 2 whole numbers as labels"),
        ({b"labels": [0, 2**70], b"data": np.zeros((2, 3072), np.uint8)}, "want labels 0 to 9"),
        ({b"labels": np.zeros(2), b"data": np.zeros((2, 3072), np.uint8)}, "want a list of 2 whole numbers as labels"),
    ],
)
def test_pickle_of_something_else_says_what_was_wanted(batch: object, words: str) -> None:
    with pytest.raises(DropoutError, match=f"batch: .*{words}"):
        cifar10._pickled("batch", by_python_3(batch), 2)


def test_pickle_damaged_anywhere_is_an_error_of_ours(pixels: np.ndarray, labels: np.ndarray) -> None:
    data = pickled(pixels, labels)["data_batch_1"]
    rng = np.random.default_rng(0)
    for cut in (0, 1, 10, len(data) // 2, len(data) - 1):
        with pytest.raises(DropoutError, match="batch: "):
            cifar10._pickled("batch", data[:cut], 2)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[int(rng.integers(0, 150))] = int(rng.integers(0, 256))
        with suppress(DropoutError):  # some damage is harmless; none may end otherwise
            cifar10._pickled("batch", bytes(damaged), 2)


@pytest.mark.parametrize(
    "data", [b"\x80\x02Nr\xff\xff\xff\xff.", b"N" + b"p4294967295\n.", b"\x96" + b"\xff" * 7 + b"\x00."]
)
def test_pickle_cannot_allocate_all_memory(data: bytes) -> None:
    with pytest.raises(DropoutError, match="batch: want a pickle"):
        cifar10._pickled("batch", data, 2)


# ------------------------------------------------------------------------------------------------------------ npz parts


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((5, 3, 32, 32), np.uint8)}, "want an .npz with arrays x and y"),
        ({"x": np.zeros((5, 3, 32, 32), np.float32), "y": np.zeros(5, int)}, "got x .* of float32"),
        ({"x": np.zeros((5, 32, 32, 3), np.uint8), "y": np.zeros(5, int)}, r"got x \(5, 32, 32, 3\)"),
        ({"x": np.zeros((5, 3, 32, 32), np.uint8), "y": np.zeros(4, int)}, r"and y \(4,\)"),
        ({"x": np.zeros((5, 3, 32, 32), np.uint8), "y": np.full(5, -1)}, "want labels 0 to 9, got -1 for image 0"),
        (
            {"x": np.array([Malicious(Path("x"))]), "y": np.zeros(5, int)},
            "want an .npz with arrays x and y, got Object arrays",
        ),
    ],
)
def test_npz_part_of_another_kind_is_named(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray, arrays: dict[str, np.ndarray], words: str
) -> None:
    parts(tmp_path, pixels, labels)
    np.savez(tmp_path / "cifar10-1.npz", **arrays)
    with pytest.raises(DropoutError, match=f"cifar10-1.npz: .*{words}"):
        cifar10.load(tmp_path, release=SMALL)


def test_cut_or_missing_npz_parts_are_named(tmp_path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    part = parts(tmp_path, pixels, labels) / "cifar10-2.npz"
    whole = part.read_bytes()
    for damaged in (whole[:100], b"", b"no zip"):
        part.write_bytes(damaged)
        with pytest.raises(DropoutError, match="cifar10-2.npz: want an .npz with arrays x and y"):
            cifar10.load(tmp_path, release=SMALL)
    part.unlink()
    with pytest.raises(DropoutError, match="want 13 images, got 10; a part is missing"):
        cifar10.load(tmp_path, release=SMALL)
