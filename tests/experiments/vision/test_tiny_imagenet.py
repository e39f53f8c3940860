"""Every layout of Tiny-ImageNet gives the same images, damaged files are named, and CIFAR-10's classes are left out."""

import io
import os
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from experiments.vision import cifar10, tiny_imagenet
from experiments.vision.tiny_imagenet import LOOKALIKES, OVERLAP, WNIDS, cache, foreign, load, load_cached
from lbdrop import DropoutError

TABBY, BANANA, LION, BUCKET = "n02123045", "n07753592", "n02129165", "n02909870"
IDS = (BUCKET, TABBY, BANANA, LION)
COLOURS = ((250, 10, 10), (10, 250, 10), (10, 10, 250), (90, 90, 90))
Contents = dict[str, bytes]


def jpeg(colour: tuple[int, int, int], size: tuple[int, int] = (64, 64), mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).convert(mode).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.fixture
def contents() -> Contents:
    """The folder val with three images in colour and a gray one; the annotations are not in the order of the names."""
    images = {f"images/val_{i}.JPEG": jpeg(c, mode="L" if i == 3 else "RGB") for i, c in enumerate(COLOURS)}
    lines = [f"val_{i}.JPEG\t{IDS[i]}\t0\t32\t44\t62\n" for i in (2, 0, 3, 1)]
    return {"val_annotations.txt": "".join(lines).encode(), **images}


def in_folder(root: Path, contents: Contents) -> Path:
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def in_zip(path: Path, contents: Contents, prefix: str = "tiny-imagenet-200/val/") -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("tiny-imagenet-200/wnids.txt", "n01443537\n")
        packed.writestr("tiny-imagenet-200/train/n01443537/images/n01443537_0.JPEG", b"not read")
        for name, data in contents.items():
            packed.writestr(prefix + name, data)
    return path


def in_tar(path: Path, contents: Contents, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # pyright: ignore[reportCallIssue, reportArgumentType]
        for name, data in contents.items():
            member = tarfile.TarInfo(f"tiny-imagenet-200/val/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def flat(contents: Contents) -> Contents:
    return {name.removeprefix("images/"): data for name, data in contents.items()}


def assert_whole(found: tiny_imagenet.Validation) -> None:
    assert found.ids == (BANANA, BUCKET, LION, TABBY)
    assert found.images.shape == (4, 3, 64, 64)
    assert found.images.dtype == torch.uint8
    want = torch.tensor([COLOURS[i] for i in (2, 0, 3, 1)])
    assert (found.images.float().mean((2, 3)) - want).abs().max() < 4
    assert found.images.float().std((2, 3)).max() < 1


# ----------------------------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize("folder", ["", "val", "tiny-imagenet-200/val"])
def test_extracted_folder_is_found_from_any_level(tmp_path: Path, contents: Contents, folder: str) -> None:
    in_folder(tmp_path / folder, contents)
    assert_whole(load(tmp_path, count=4))


def test_images_may_lie_beside_their_annotations(tmp_path: Path, contents: Contents) -> None:
    assert_whole(load(in_folder(tmp_path, flat(contents)), count=4))


@pytest.mark.parametrize("by_its_folder", [False, True])
def test_official_zip_is_read_without_its_training_images(
    tmp_path: Path, contents: Contents, by_its_folder: bool
) -> None:
    path = in_zip(tmp_path / "tiny-imagenet-200.zip", contents)
    assert_whole(load(tmp_path if by_its_folder else path, count=4))


def test_flat_zip_is_read(tmp_path: Path, contents: Contents) -> None:
    assert_whole(load(in_zip(tmp_path / "mine.zip", flat(contents), prefix=""), count=4))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar_of_the_validation_folder_is_read(tmp_path: Path, contents: Contents, mode: str) -> None:
    in_tar(tmp_path / "tiny-imagenet-val.tar", contents, mode)
    assert_whole(load(tmp_path, count=4))
    assert_whole(load(tmp_path / "tiny-imagenet-val.tar", count=4))


def test_windows_line_ends_are_no_part_of_an_id(tmp_path: Path, contents: Contents) -> None:
    contents["val_annotations.txt"] = contents["val_annotations.txt"].replace(b"\t0\t32\t44\t62\n", b"\r\n")
    assert_whole(load(in_folder(tmp_path, contents), count=4))


# ------------------------------------------------------------------------------------------------------------ errors


def refused(path: Path, *words: str, count: int = 4) -> None:
    with pytest.raises(DropoutError) as caught:
        load(path, count=count)
    said = str(caught.value)
    for word in (str(path), "want", "got", *words):
        assert word in said, said


def test_missing_folder_is_an_error_that_says_where_to_download(tmp_path: Path) -> None:
    refused(tmp_path, "val_annotations.txt", "http://")
    refused(tmp_path / "absent", "tiny-imagenet-200.zip")


def test_archive_without_annotations_is_named(tmp_path: Path, contents: Contents) -> None:
    del contents["val_annotations.txt"]
    refused(in_tar(tmp_path / "a.tar", contents), "a.tar", "one val_annotations.txt", "got 0")
    refused(in_zip(tmp_path / "a.zip", contents), "a.zip", "one val_annotations.txt", "got 0")


def test_image_without_a_line_is_named(tmp_path: Path, contents: Contents) -> None:
    contents["images/val_9.JPEG"] = contents["images/val_0.JPEG"]
    refused(in_folder(tmp_path, contents), "val_annotations.txt: want a line for val_9.JPEG", "remove")


def test_line_without_an_image_is_named(tmp_path: Path, contents: Contents) -> None:
    del contents["images/val_3.JPEG"]
    refused(in_folder(tmp_path, contents), "val_3.JPEG", "1 missing", "fetch")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("val_0.JPEG\tn00000001\t0", "'n00000001'"),
        ("val_0.JPEG n02909870", "line 5"),
        (f"val_0.JPEG\t{BANANA}", "a second in line 5"),
        ("../../secret.JPEG\tn02909870", "secret.JPEG"),
    ],
)
def test_wrong_line_is_named(tmp_path: Path, contents: Contents, line: str, word: str) -> None:
    contents["val_annotations.txt"] += line.encode()
    refused(in_folder(tmp_path, contents), word, "fetch")


@pytest.mark.parametrize(
    "damage", [b"", b"no image", jpeg((1, 2, 3))[:300], jpeg((9, 9, 9))[:-200]], ids=["empty", "text", "head", "cut"]
)
def test_undecodable_jpeg_is_named(tmp_path: Path, contents: Contents, damage: bytes) -> None:
    contents["images/val_2.JPEG"] = damage
    refused(in_folder(tmp_path, contents), "val_2.JPEG: want a JPEG", f"{len(damage)} bytes", "fetch")


def test_another_format_under_a_jpegs_name_is_refused(tmp_path: Path, contents: Contents) -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "PNG")
    contents["images/val_2.JPEG"] = file.getvalue()
    refused(in_folder(tmp_path, contents), "val_2.JPEG: want a JPEG")


def test_image_of_another_size_is_named(tmp_path: Path, contents: Contents) -> None:
    contents["images/val_1.JPEG"] = jpeg((0, 0, 0), (64, 48))
    refused(in_folder(tmp_path, contents), "val_1.JPEG: want 64 × 64 pixels", "64 × 48", "resize")


def test_incomplete_set_is_refused(tmp_path: Path, contents: Contents) -> None:
    refused(in_folder(tmp_path, contents), "want 10,000 images", "got 4", "count=4", count=10_000)


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tgz"])
def test_cut_archive_is_named(tmp_path: Path, contents: Contents, name: str) -> None:
    contents["images/val_0.JPEG"] = jpeg((7, 7, 7)) + os.urandom(20_000)  # so that the cut goes through a file
    path = tmp_path / name
    if name == "a.zip":
        in_zip(path, contents)
    else:
        in_tar(path, contents, "w:gz" if name == "a.tgz" else "w")
    path.write_bytes(path.read_bytes()[:9_000])
    refused(path, "a whole zip or tar", "fetch it again")


# ---------------------------------------------------------------------------------------------------- foreign images


def test_tables_name_classes_of_both_sets() -> None:
    assert len(WNIDS) == 200
    assert len(OVERLAP) == 24
    assert OVERLAP.keys() | LOOKALIKES.keys() < WNIDS
    assert not OVERLAP.keys() & LOOKALIKES.keys()
    per_class = Counter(kin.cifar10 for kin in OVERLAP.values())
    assert per_class == {"dog": 6, "bird": 4, "cat": 4, "automobile": 4, "frog": 2, "ship": 2, "truck": 2}
    assert set(per_class) < set(cifar10.CLASSES)


@pytest.fixture
def images() -> Tensor:
    return torch.randint(0, 256, (4, 3, 64, 64), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def test_overlapping_classes_go_and_others_stay_by_default(images: Tensor) -> None:
    kept = foreign(images, IDS, size=64)
    assert torch.equal(kept, images[[0, 2, 3]])
    assert torch.equal(foreign(images, IDS, size=64, drop=OVERLAP | LOOKALIKES), images[[0, 2]])
    assert foreign(images[:1], [TABBY]).shape == (0, 3, 32, 32)


def test_fine_stripes_become_their_mean_and_not_one_of_their_colours() -> None:
    stripes = torch.tensor([0, 200], dtype=torch.uint8).repeat(32).expand(1, 3, 64, 64)
    small = foreign(stripes, [BANANA])
    assert small.shape == (1, 3, 32, 32)
    assert small.dtype == torch.uint8
    assert ((small[..., 1:-1].int() - 100).abs() <= 1).all()


def test_constant_image_keeps_its_bytes() -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(-1, 1, 1, 1).expand(256, 3, 64, 64)
    assert torch.equal(foreign(levels, [BANANA] * 256), levels[..., :32, :32])


@pytest.mark.parametrize(
    ("ids", "options", "words"),
    [
        ([BANANA] * 3, {}, "one for each of 4 images, got 3"),
        ([BANANA] * 3 + ["n0"], {}, "ids: want WordNet ids of Tiny-ImageNet's 200, got 'n0'"),
        ([BANANA] * 4, {"drop": ["cat"]}, "drop: want WordNet ids of Tiny-ImageNet's 200, got 'cat'"),
        ([BANANA] * 4, {"size": 0}, "size: want at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_named(images: Tensor, ids: list[str], options: dict, words: str) -> None:
    with pytest.raises(DropoutError, match=words):
        foreign(images, ids, **options)


# ------------------------------------------------------------------------------------------------------------- cache


def test_cache_gives_back_the_same_bytes_and_leaves_nothing_beside(tmp_path: Path, images: Tensor) -> None:
    small = foreign(images, IDS)
    path = cache(tmp_path / "new" / "foreign32.npz", small)
    assert torch.equal(load_cached(path), small)
    cache(path, small[:1])
    assert len(load_cached(path)) == 1
    assert [p.name for p in path.parent.iterdir()] == ["foreign32.npz"]


def test_failed_write_leaves_the_old_cache(tmp_path: Path, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache(tmp_path / "foreign32.npz", foreign(images, IDS))

    def full(file: io.BufferedWriter, **_: np.ndarray) -> None:
        file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(DropoutError, match="foreign32.npz: want to write it, got No space left"):
        cache(path, foreign(images, IDS)[:1])
    assert len(load_cached(path)) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["foreign32.npz"]


def test_large_images_are_not_cached(tmp_path: Path, images: Tensor) -> None:
    with pytest.raises(DropoutError, match="want images of 32 × 32, got 64 × 64"):
        cache(tmp_path / "foreign32.npz", images)
    assert not list(tmp_path.iterdir())


def test_wrong_cache_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    with pytest.raises(DropoutError, match="c.npz: want an .npz with an array images, got .*No such file"):
        load_cached(path)
    path.write_bytes(b"no zip")
    with pytest.raises(DropoutError, match="c.npz: want an .npz with an array images"):
        load_cached(path)
    np.savez(path, x=np.zeros(3))
    with pytest.raises(DropoutError, match="c.npz: want an .npz with an array images, got .*images"):
        load_cached(path)
    np.savez(path, images=np.zeros((2, 3, 64, 64), np.uint8))
    with pytest.raises(DropoutError, match=r"got \(2, 3, 64, 64\) of uint8; write it again"):
        load_cached(path)
