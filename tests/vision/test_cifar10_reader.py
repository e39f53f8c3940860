"""Every format of CIFAR-10 gives the same images, damaged or hostile files are named, and batches hold each image once."""

import hashlib
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lbdrop import DropoutError
from lbdrop.vision import Batches, Images, cifar10
from lbdrop.vision.batches import as_input, crop_and_flip
from lbdrop.vision.cifar10 import FILES, OFFICIAL, Release

TRAIN, TEST = 10, 3
Contents = dict[str, bytes]


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (TRAIN + TEST, 3072), dtype=np.uint8)


@pytest.fixture
def labels() -> np.ndarray:
    return np.arange(TRAIN + TEST) % 10


# ------------------------------------------------------------------------------------------ small files of each format


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
        replace(a, url=by_file[a.file].as_uri(), md5=hashlib.md5(by_file[a.file].read_bytes()).hexdigest())
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


def assert_read(images: Images, x: np.ndarray, y: np.ndarray) -> None:
    assert np.array_equal(images.train.numpy(), x[:TRAIN].reshape(-1, 3, 32, 32))
    assert np.array_equal(images.test.numpy(), x[TRAIN:].reshape(-1, 3, 32, 32))
    assert images.train_labels.tolist() == y[:TRAIN].tolist()
    assert images.test_labels.tolist() == y[TRAIN:].tolist()
    assert images.classes[3] == "cat"


# ----------------------------------------------------------------------------------------------------------- reading


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


def test_the_official_release_is_expected_unless_told_otherwise(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray
) -> None:
    parts(tmp_path, pixels, labels)
    with pytest.raises(DropoutError, match="want 60,000 images, got 13"):
        cifar10.load(tmp_path)
    assert [OFFICIAL.count(file) for file in FILES] == [10_000] * 6


# ------------------------------------------------------------------------------------------------------- downloading


def test_a_missing_archive_is_downloaded_checked_and_kept(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray
) -> None:
    source = packed(tmp_path / BINARY.file, BINARY.folder, binary(pixels, labels))
    home = tmp_path / "data" / "cifar10"
    assert_read(cifar10.load(home, release=release_of(source)), pixels, labels)
    assert [p.name for p in home.iterdir()] == [BINARY.file]
    release = release_of(source)
    source.unlink()
    assert_read(cifar10.load(home, release=release), pixels, labels)  # from the copy


def test_a_download_with_another_checksum_leaves_nothing_behind(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray
) -> None:
    source = packed(tmp_path / BINARY.file, BINARY.folder, binary(pixels, labels))
    release = release_of(source)
    source.write_bytes(source.read_bytes()[:-9])
    home = tmp_path / "data"
    with pytest.raises(
        DropoutError, match=r"cifar-10-binary.tar.gz: want md5 \w+, got \w+ in .* bytes of .* announced; try again"
    ):
        cifar10.load(home, release=release, progress=False)
    assert list(home.iterdir()) == []


def test_a_failed_download_says_what_to_fetch_by_hand(tmp_path: Path) -> None:
    nowhere = replace(BINARY, url=(tmp_path / "gone" / BINARY.file).as_uri())
    with pytest.raises(DropoutError, match="could not be downloaded into .*; fetch file:.* by other means"):
        cifar10.load(tmp_path / "data", release=Release(TRAIN, TEST, (nowhere,)), progress=False)
    assert list(tmp_path.iterdir()) == []


def test_without_download_the_error_lists_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        DropoutError, match=r"want cifar-10-binary.tar.gz, cifar-10-python.tar.gz or cifar10-0.npz.*download=True"
    ):
        cifar10.load(tmp_path / "none", download=False)


# -------------------------------------------------------------------------------------------- damaged and hostile files


def test_an_archive_with_another_checksum_is_refused(tmp_path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    path = packed(tmp_path / PYTHON.file, PYTHON.folder, pickled(pixels, labels))
    with pytest.raises(
        DropoutError, match=f"want md5 {PYTHON.md5} .*, got .* bytes; delete it and download it again from {PYTHON.url}"
    ):
        cifar10.load(path)
    other = path.rename(tmp_path / "renamed.tgz")
    with pytest.raises(DropoutError, match=f"md5 {BINARY.md5} .* or md5 {PYTHON.md5}"):
        cifar10.load(other)


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"not an archive"], ids=["cut", "other"]
)
def test_a_damaged_archive_that_passes_the_checksum_is_named(
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


def test_a_cut_or_missing_binary_file_is_named(tmp_path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
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
def test_a_label_beyond_nine_is_named(
    tmp_path: Path, pixels: np.ndarray, labels: np.ndarray, make: Callable[..., Contents]
) -> None:
    labels[TRAIN + 1] = 10
    extracted(tmp_path / (BINARY if make is binary else PYTHON).folder, make(pixels, labels))
    with pytest.raises(DropoutError, match="test_batch.*: want labels 0 to 9, got 10 for image 1"):
        cifar10.load(tmp_path, release=SMALL)


class Malicious:
    """Would write a file if it were unpickled as pickles usually are."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.mark),))


def test_a_pickle_that_names_anything_but_arrays_is_refused_and_not_run(
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
def test_neither_builtins_nor_the_rest_of_numpy_can_be_named(name: str) -> None:
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
def test_a_pickle_of_something_else_says_what_was_wanted(batch: object, words: str) -> None:
    with pytest.raises(DropoutError, match=f"batch: .*{words}"):
        cifar10._pickled("batch", by_python_3(batch), 2)


def test_a_pickle_damaged_anywhere_is_an_error_of_ours(pixels: np.ndarray, labels: np.ndarray) -> None:
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
def test_a_pickle_cannot_ask_for_all_memory(data: bytes) -> None:
    with pytest.raises(DropoutError, match="batch: want a pickle"):
        cifar10._pickled("batch", data, 2)


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
def test_an_npz_part_of_another_kind_is_named(
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


# ---------------------------------------------------------------------------------------------------------- splitting


def numbered(n: int) -> tuple[Tensor, Tensor]:
    """Image i has the colour i everywhere, so that a batch tells which images it holds."""
    return torch.arange(n, dtype=torch.uint8)[:, None, None, None].expand(n, 3, 32, 32).contiguous(), torch.arange(
        n
    ) % 10


def test_a_split_holds_every_train_image_once_and_follows_the_seed() -> None:
    x, y = numbered(50)
    images = Images(x, y, x[:7], y[:7])
    split, again, other = images.split(12, seed=1), images.split(12, seed=1), images.split(12, seed=2)
    assert split.validation.shape == (12, 3, 32, 32)
    assert sorted([*split.train[:, 0, 0, 0].tolist(), *split.validation[:, 0, 0, 0].tolist()]) == list(range(50))
    assert split.train_labels.tolist() == [i % 10 for i in split.train[:, 0, 0, 0].tolist()]
    assert split.validation_labels.tolist() == [i % 10 for i in split.validation[:, 0, 0, 0].tolist()]
    assert torch.equal(split.validation, again.validation)
    assert not torch.equal(split.validation, other.validation)
    assert torch.equal(split.test, images.test)
    for wrong in (0, 50):
        with pytest.raises(DropoutError, match=f"validation: want 1 to 49 of the train images, got {wrong}"):
            images.split(wrong)


def test_images_move_with_all_their_tensors() -> None:
    x, y = numbered(5)
    images = Images(x, y, x[:2], y[:2])
    assert images.to("meta").train_labels.device.type == "meta"
    moved = images.split(2).to(torch.device("meta"))
    assert {t.device.type for t in (moved.train, moved.validation, moved.validation_labels, moved.test)} == {"meta"}
    assert moved.classes == images.classes


# ------------------------------------------------------------------------------------------------------------ batches


def seen(batches: Batches) -> list[list[int]]:
    return [(x[:, 0, 16, 16] * 255).round().int().tolist() for x, _ in batches]


def test_evaluation_gives_every_image_in_order_and_the_rest_at_the_end() -> None:
    batches = Batches(*numbered(50), 16)
    assert len(batches) == 4
    assert list(chain(*seen(batches))) == list(range(50))
    assert [len(batch) for batch in seen(batches)] == [16, 16, 16, 2]


def test_training_gives_every_image_at_most_once_in_full_batches_and_a_new_order() -> None:
    batches = Batches(*numbered(50), 16, train=True, generator=torch.Generator().manual_seed(0))
    first, second = seen(batches), seen(batches)
    assert len(batches) == len(first) == 3
    assert [len(batch) for batch in first] == [16, 16, 16]
    assert len(set(chain(*first))) == 48
    assert first != second


def test_training_gives_every_image_once_where_the_batch_divides() -> None:
    assert sorted(chain(*seen(Batches(*numbered(48), 16, train=True)))) == list(range(48))


def test_labels_stay_with_their_images() -> None:
    for x, y in Batches(*numbered(50), 8, train=True, augment=True):
        assert y.tolist() == [i % 10 for i in (x[:, 0, 16, 16] * 255).round().int().tolist()]


def test_batches_lie_between_0_and_1_and_have_the_asked_size() -> None:
    x, y = next(iter(Batches(torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8), torch.arange(4), 4, 48)))
    assert x.shape == (4, 3, 48, 48)
    assert x.dtype == torch.float32
    assert 0 <= float(x.min()) < 0.1 < 0.9 < float(x.max()) <= 1
    assert y.dtype == torch.int64


@pytest.mark.parametrize("size", [16, 32, 64, 224])
def test_resizing_keeps_the_mean_colour(size: int) -> None:
    x = torch.arange(32, dtype=torch.uint8).repeat(1, 3, 32, 1)
    assert as_input(x, size).shape == (1, 3, size, size)
    assert float(as_input(x, size).mean() * 255) == pytest.approx(15.5, abs=1e-3)


def test_augmentation_changes_images_and_follows_the_generator() -> None:
    x = torch.randint(0, 256, (32, 3, 32, 32), dtype=torch.uint8)

    def epoch(seed: int, augment: bool) -> Tensor:
        g = torch.Generator().manual_seed(seed)
        batches = Batches(x, torch.arange(32), 16, train=True, augment=augment, generator=g)
        return torch.cat([images[labels.argsort()] for images, labels in batches])

    assert torch.equal(epoch(0, True), epoch(0, True))
    assert not torch.equal(epoch(0, True), epoch(1, True))
    changed = (epoch(0, True) != epoch(0, False)).flatten(1).any(1)
    assert int(changed.sum()) >= 28  # one in 162 stays as it is


def test_cropping_moves_and_mirrors_as_told() -> None:
    x = torch.randint(1, 256, (4, 3, 32, 32), dtype=torch.uint8)
    shift = torch.tensor([[0, 0], [0, 0], [4, -2], [-1, 3]])
    out = crop_and_flip(x, shift, torch.tensor([False, True, False, True]))
    assert torch.equal(out[0], x[0])
    assert torch.equal(out[1], x[1].flip(-1))
    assert torch.equal(out[2, :, 4:, :-2], x[2, :, :-4, 2:])
    assert not out[2, :, :4].any()
    assert not out[2, :, :, -2:].any()
    assert torch.equal(out[3].flip(-1)[:, :-1, 3:], x[3, :, 1:, :-3])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch": 0}, "batch and size: want at least 1, got 0 and None"),
        ({"size": 0}, "batch and size: want at least 1, got 64 and 0"),
        ({"batch": 11, "train": True}, "images: want at least 11, got 10"),
        ({"augment": True}, "augment: want train=True with it"),
    ],
)
def test_wrong_batches_say_what_was_wanted(settings: dict[str, int], words: str) -> None:
    with pytest.raises(DropoutError, match=words):
        Batches(*numbered(10), **settings)  # pyright: ignore[reportArgumentType]
