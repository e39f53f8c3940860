"""Every format of CIFAR-10 gives the same images, and what is missing is downloaded, checked and kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.cifar10_files import (
    BINARY,
    PYTHON,
    SMALL,
    TEST,
    TRAIN,
    binary,
    by_python_2,
    by_python_3,
    extracted,
    packed,
    parts,
    pickled,
    release_of,
    rows_of,
)

from experiments.vision import Images, cifar10
from experiments.vision.cifar10 import FILES, OFFICIAL, Release
from lbdrop import DropoutError


def assert_read(images: Images, x: np.ndarray, y: np.ndarray) -> None:
    assert np.array_equal(images.train.numpy(), x[:TRAIN].reshape(-1, 3, 32, 32))
    assert np.array_equal(images.test.numpy(), x[TRAIN:].reshape(-1, 3, 32, 32))
    assert images.train_labels.tolist() == y[:TRAIN].tolist()
    assert images.test_labels.tolist() == y[TRAIN:].tolist()
    assert images.classes[3] == "cat"


# -------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("inside", [True, False], ids=["folder above", "folder itself"])
def test_extracted_binary_files_are_read(tmp_path: Path, pixels: np.ndarray, labels: np.ndarray, inside: bool) -> None:
    folder = extracted(tmp_path / BINARY.folder, binary(pixels, labels))
    assert_read(cifar10.load(tmp_path if inside else folder, release=SMALL), pixels, labels)


@pytest.mark.parametrize("dump", [by_python_2, by_python_3])
def test_extracted_pickles_are_read(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray, dump: Callable[[object], bytes]
) -> None:
    extracted(tmp_path / PYTHON.folder, pickled(pixels, labels, dump))
    assert_read(cifar10.load(tmp_path, release=SMALL), pixels, labels)


def test_pickled_arrays_in_fortrans_order_are_read(tmp_path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    contents = {
        file: by_python_2(
            {b"labels": labels[rows_of(file)].tolist(), b"data": np.asfortranarray(pixels[rows_of(file)])}
        )
        for file in FILES
    }
    extracted(tmp_path / PYTHON.folder, contents)
    assert_read(cifar10.load(tmp_path, release=SMALL), pixels, labels)


@pytest.mark.parametrize("archive", [BINARY, PYTHON], ids=["binary", "python"])
def test_archives_are_read_by_folder_and_by_name(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray, archive: cifar10.Archive
) -> None:
    contents = binary(pixels, labels) if archive is BINARY else pickled(pixels, labels)
    path = packed(tmp_path / archive.file, archive.folder, contents)
    release = release_of(path)
    assert_read(cifar10.load(tmp_path, release=release), pixels, labels)
    assert_read(cifar10.load(path, release=release), pixels, labels)
    assert [p.name for p in tmp_path.iterdir()] == [archive.file]  # nothing was extracted


def test_npz_parts_are_read_in_the_order_of_their_numbers(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray
) -> None:
    parts(tmp_path, pixels, labels, sizes=(1,) * (TRAIN + TEST))  # cifar10-10 comes after cifar10-9
    assert_read(cifar10.load(tmp_path, release=SMALL), pixels, labels)


def test_official_release_is_expected_unless_told_otherwise(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray
) -> None:
    parts(tmp_path, pixels, labels)
    with pytest.raises(DropoutError, match="want 60,000 images, got 13"):
        cifar10.load(tmp_path)
    assert [OFFICIAL.count(file) for file in FILES] == [10_000] * 6


# ---------------------------------------------------------------------------------------------------------- downloading


def test_missing_archive_is_downloaded_checked_and_kept(tmp_path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    source = packed(tmp_path / BINARY.file, BINARY.folder, binary(pixels, labels))
    home = tmp_path / "data" / "cifar10"
    assert_read(cifar10.load(home, release=release_of(source)), pixels, labels)
    assert [p.name for p in home.iterdir()] == [BINARY.file]
    release = release_of(source)
    source.unlink()
    assert_read(cifar10.load(home, release=release), pixels, labels)  # from the copy


def test_download_with_another_checksum_leaves_nothing_behind(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray
) -> None:
    source = packed(tmp_path / BINARY.file, BINARY.folder, binary(pixels, labels))
    release = release_of(source)
    source.write_bytes(source.read_bytes()[:-9])
    home = tmp_path / "data"
    with pytest.raises(
        DropoutError, match=r"cifar-10-binary.tar.gz: want SHA-256 \w+, got \w+ in .* bytes of .* announced; try again"
    ):
        cifar10.load(home, release=release, progress=False)
    assert list(home.iterdir()) == []


def test_failed_download_says_what_to_fetch_by_hand(tmp_path: Path) -> None:
    nowhere = replace(BINARY, url=(tmp_path / "gone" / BINARY.file).as_uri())
    with pytest.raises(DropoutError, match="could not be downloaded into .*; fetch file:.* by other means"):
        cifar10.load(tmp_path / "data", release=Release(TRAIN, TEST, (nowhere,)), progress=False)
    assert list(tmp_path.iterdir()) == []


def test_error_without_download_lists_the_names_searched_for(tmp_path: Path) -> None:
    with pytest.raises(
        DropoutError, match=r"want cifar-10-binary.tar.gz, cifar-10-python.tar.gz or cifar10-0.npz.*download=True"
    ):
        cifar10.load(tmp_path / "none", download=False)
