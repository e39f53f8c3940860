"""Tiny-ImageNet's validation images, 200 classes of 50, as images that are foreign to CIFAR-10.

    tiny-imagenet-200/val/val_annotations.txt   a line an image: its file, its WordNet id and a box, between tabs
    tiny-imagenet-200/val/images/val_0.JPEG     64 × 64 pixels; a few are gray

Read from the official zip, from a tar of the folder ``val``, or from either extracted.

A class overlaps CIFAR-10 where WordNet 3.0 has it under one of the ten: car, bird, cat ("true cat"), dog, frog ("frog,
toad"), truck, and for ship any vessel, as CIFAR-10's ships include boats. There is none under airplane, deer or horse.
These are 24 classes, so 1,200 of the 10,000 images. Six more look alike but are something else: CIFAR-100 has lion, bus
and tractor as classes, and its author calls them mutually exclusive with CIFAR-10's; a go-kart is a motor vehicle but
no car, a gazelle an antelope. They stay by default: to leave them out would make foreign images easier to tell.

Le and Yang, Tiny ImageNet Visual Recognition Challenge, 2015.
Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import io
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from experiments.archives import Member, members, read_npz
from experiments.vision.batches import as_input
from lbdrop.errors import DropoutError

__all__ = ["LOOKALIKES", "OVERLAP", "WNIDS", "Kin", "Validation", "cache", "foreign", "load", "load_cached"]

SIDE, CACHED_SIDE = 64, 32
ANNOTATIONS = "val_annotations.txt"
FOLDERS = ("", "val", "tiny-imagenet-200/val")
ARCHIVES = ("tiny-imagenet-200.zip", "tiny-imagenet-val.zip", "tiny-imagenet-val.tar")
HOME = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
LARGEST = 1 << 20  # bytes of one file; the largest official one is the annotations' 260 kB
CHUNK = 1024  # images at a time, so that the float copies of a large set stay small

Files = Mapping[str, Callable[[], bytes]]


class Kin(NamedTuple):
    """A class of Tiny-ImageNet and the class of CIFAR-10 that it belongs to, or looks like."""

    name: str
    cifar10: str


OVERLAP = {
    "n01641577": Kin("bullfrog", "frog"),
    "n01644900": Kin("tailed frog", "frog"),
    "n01855672": Kin("goose", "bird"),
    "n02002724": Kin("black stork", "bird"),
    "n02056570": Kin("king penguin", "bird"),
    "n02058221": Kin("albatross", "bird"),
    "n02085620": Kin("Chihuahua", "dog"),
    "n02094433": Kin("Yorkshire terrier", "dog"),
    "n02099601": Kin("golden retriever", "dog"),
    "n02099712": Kin("Labrador retriever", "dog"),
    "n02106662": Kin("German shepherd", "dog"),
    "n02113799": Kin("standard poodle", "dog"),
    "n02123045": Kin("tabby", "cat"),
    "n02123394": Kin("Persian cat", "cat"),
    "n02124075": Kin("Egyptian cat", "cat"),
    "n02125311": Kin("cougar", "cat"),
    "n02814533": Kin("beach wagon", "automobile"),
    "n03100240": Kin("convertible", "automobile"),
    "n03670208": Kin("limousine", "automobile"),
    "n04285008": Kin("sports car", "automobile"),
    "n03447447": Kin("gondola", "ship"),
    "n03662601": Kin("lifeboat", "ship"),
    "n03796401": Kin("moving van", "truck"),
    "n03977966": Kin("police van", "truck"),
}
LOOKALIKES = {
    "n02129165": Kin("lion", "cat"),
    "n02423022": Kin("gazelle", "deer"),
    "n03444034": Kin("go-kart", "automobile"),
    "n04146614": Kin("school bus", "truck"),
    "n04465501": Kin("tractor", "truck"),
    "n04487081": Kin("trolleybus", "truck"),
}
WNIDS = frozenset(
    """
    n01443537 n01629819 n01641577 n01644900 n01698640 n01742172 n01768244 n01770393 n01774384 n01774750 n01784675
    n01855672 n01882714 n01910747 n01917289 n01944390 n01945685 n01950731 n01983481 n01984695 n02002724 n02056570
    n02058221 n02074367 n02085620 n02094433 n02099601 n02099712 n02106662 n02113799 n02123045 n02123394 n02124075
    n02125311 n02129165 n02132136 n02165456 n02190166 n02206856 n02226429 n02231487 n02233338 n02236044 n02268443
    n02279972 n02281406 n02321529 n02364673 n02395406 n02403003 n02410509 n02415577 n02423022 n02437312 n02480495
    n02481823 n02486410 n02504458 n02509815 n02666196 n02669723 n02699494 n02730930 n02769748 n02788148 n02791270
    n02793495 n02795169 n02802426 n02808440 n02814533 n02814860 n02815834 n02823428 n02837789 n02841315 n02843684
    n02883205 n02892201 n02906734 n02909870 n02917067 n02927161 n02948072 n02950826 n02963159 n02977058 n02988304
    n02999410 n03014705 n03026506 n03042490 n03085013 n03089624 n03100240 n03126707 n03160309 n03179701 n03201208
    n03250847 n03255030 n03355925 n03388043 n03393912 n03400231 n03404251 n03424325 n03444034 n03447447 n03544143
    n03584254 n03599486 n03617480 n03637318 n03649909 n03662601 n03670208 n03706229 n03733131 n03763968 n03770439
    n03796401 n03804744 n03814639 n03837869 n03838899 n03854065 n03891332 n03902125 n03930313 n03937543 n03970156
    n03976657 n03977966 n03980874 n03983396 n03992509 n04008634 n04023962 n04067472 n04070727 n04074963 n04099969
    n04118538 n04133789 n04146614 n04149813 n04179913 n04251144 n04254777 n04259630 n04265275 n04275548 n04285008
    n04311004 n04328186 n04356056 n04366367 n04371430 n04376876 n04398044 n04399382 n04417672 n04456115 n04465501
    n04486054 n04487081 n04501370 n04507155 n04532106 n04532670 n04540053 n04560804 n04562935 n04596742 n04597913
    n06596364 n07579787 n07583066 n07614500 n07615774 n07695742 n07711569 n07715103 n07720875 n07734744 n07747607
    n07749582 n07753592 n07768694 n07871810 n07873807 n07875152 n07920052 n09193705 n09246464 n09256479 n09332890
    n09428293 n12267677
    """.split()  # noqa: SIM905
)


class Validation(NamedTuple):
    """Images in the annotations' order, and the WordNet id of each."""

    images: UInt8[Tensor, "n 3 64 64"]
    ids: tuple[str, ...]


# ---------------------------------------------------------------------------------------------------- foreign images


def foreign(
    images: UInt8[Tensor, "n 3 h w"], ids: Sequence[str], size: int = 32, *, drop: Collection[str] = tuple(OVERLAP)
) -> UInt8[Tensor, "m 3 size size"]:
    """The images of no class in ``drop``, at CIFAR-10's size: smoothed, then resized, and rounded to bytes.

    So resized, neighbouring pixels of the validation images differ by 0.089 (root mean square, of [0, 1]), those of
    CIFAR-10's test images by 0.092; means of 2 × 2 pixels would be too sharp, with 0.119.

    Example:
        >>> images = torch.zeros(3, 3, 64, 64, dtype=torch.uint8)
        >>> foreign(images, ["n02123045", "n07753592", "n02129165"]).shape  # a tabby, a banana, a lion
        torch.Size([2, 3, 32, 32])
        >>> foreign(images, ["n02123045", "n07753592", "n02129165"], drop=OVERLAP | LOOKALIKES).shape
        torch.Size([1, 3, 32, 32])
    """
    if len(ids) != len(images):
        raise DropoutError(f"ids: want one for each of {len(images):,} images, got {len(ids):,}; pass both from load")
    for where, given in (("ids", ids), ("drop", drop)):
        unknown = next((wnid for wnid in given if wnid not in WNIDS), None)
        if unknown is not None:
            raise DropoutError(f"{where}: want WordNet ids of Tiny-ImageNet's 200, got {unknown!r}; see WNIDS")
    if size < 1:
        raise DropoutError(f"size: want at least 1, got {size}; 32 is CIFAR-10's")
    kept = images[torch.tensor([wnid not in drop for wnid in ids], dtype=torch.bool, device=images.device)]
    # An empty split is one empty piece, which cannot be resized.
    if not len(kept):
        return kept.new_empty((0, 3, size, size))
    return torch.cat([(as_input(x, size) * 255).round().to(torch.uint8) for x in kept.split(CHUNK)])


def cache(path: str | Path, images: UInt8[Tensor, "n 3 h w"]) -> Path:
    """Write foreign images as an .npz, beside the target and then renamed: what has the name is whole."""
    path = Path(path)
    if tuple(images.shape[2:]) != (CACHED_SIDE, CACHED_SIDE):
        raise DropoutError(f"{path}: want images of 32 × 32, got {_by(images.shape[2:])}; pass foreign(…, size=32)")
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            np.savez_compressed(file, images=images.cpu().numpy())
        beside.replace(path)
    except OSError as error:
        raise DropoutError(f"{path}: want to write it, got {error}; free the space or give another place") from error
    finally:
        beside.unlink(missing_ok=True)
    return path


def load_cached(path: str | Path) -> UInt8[Tensor, "n 3 32 32"]:
    """What ``cache`` wrote."""
    path, again = Path(path), "write it again with cache"
    try:
        images = read_npz(path, ["images"])["images"]
    except DropoutError as error:
        raise DropoutError(f"{path}: want an .npz with an array images, got {error}; {again}") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (3, CACHED_SIDE, CACHED_SIDE):
        raise DropoutError(
            f"{path}: want images (n, 3, 32, 32) of uint8, got {images.shape} of {images.dtype}; {again}"
        )
    return torch.from_numpy(images)


# ----------------------------------------------------------------------------------------------------------- reading


def load(path: str | Path = "data/tiny-imagenet", *, count: int = 10_000) -> Validation:
    """Read the validation images from what is at ``path``.

    Args:
        path: the official zip, or a zip or tar of its folder ``val``; a folder with one of them under its usual name; or
            the folder that holds val_annotations.txt, or one above it, with the JPEGs beside it or under ``images``.
        count: how many images to expect; another number only for a part of the set.
    """
    path = Path(path)
    try:
        if path.is_file():
            return _from_archive(path, count)
        for folder in FOLDERS:
            if (path / folder / ANNOTATIONS).is_file():
                return _from_folder(path / folder, count)
        for name in ARCHIVES:
            if (path / name).is_file():
                return _from_archive(path / name, count)
    except OSError as error:
        raise DropoutError(f"{path}: could not be read ({error}); check that it is yours to read") from error
    raise DropoutError(
        f"{path}: want {ANNOTATIONS} with its images, or {' or '.join(ARCHIVES)} there, got none of them; fetch {HOME}"
    )


def _from_folder(folder: Path, count: int) -> Validation:
    images = folder / "images" if (folder / "images").is_dir() else folder
    jpegs = {p.name: p.read_bytes for p in images.iterdir() if _is_jpeg(p.name)}
    return _validation(str(images), jpegs, str(folder / ANNOTATIONS), (folder / ANNOTATIONS).read_bytes(), count)


def _from_archive(path: Path, count: int) -> Validation:
    with members(path) as found:
        files = {one.name: lambda one=one: _content(one) for one in found if one.size <= LARGEST}
        notes = [name for name in files if PurePosixPath(name).name == ANNOTATIONS]
        if len(notes) != 1:
            raise DropoutError(
                f"{path}: want one {ANNOTATIONS} in it, got {len(notes)}; pack the whole folder val, or fetch {HOME}"
            )
        beside = PurePosixPath(notes[0]).parent
        within = {str(beside), str(beside / "images")}
        inside = {PurePosixPath(name): read for name, read in files.items() if _is_jpeg(name)}
        jpegs = {name.name: read for name, read in inside.items() if str(name.parent) in within}
        return _validation(str(path), jpegs, f"{path}: {notes[0]}", files[notes[0]](), count)


def _content(member: Member) -> bytes:
    with member.open() as file:
        return file.read()


def _is_jpeg(name: str) -> bool:
    return name.lower().endswith((".jpeg", ".jpg"))


def _validation(where: str, jpegs: Files, notes: str, annotations: bytes, count: int) -> Validation:
    ids = _annotated(notes, annotations)
    missing, extra = [name for name in ids if name not in jpegs], [name for name in jpegs if name not in ids]
    if missing:
        raise DropoutError(
            f"{where}: want {missing[0]}, which {ANNOTATIONS} names, got no such file there ({len(missing):,} missing);"
            f" fetch {HOME}"
        )
    if extra:
        raise DropoutError(
            f"{notes}: want a line for {extra[0]}, got none ({len(extra):,} images have none); remove these images,"
            f" or fetch {HOME}"
        )
    if len(ids) != count:
        raise DropoutError(f"{notes}: want {count:,} images, got {len(ids):,}; fetch {HOME}, or pass count={len(ids)}")
    images = np.empty((count, 3, SIDE, SIDE), np.uint8)
    for i, name in enumerate(ids):
        images[i] = _decoded(f"{where}: {name}", jpegs[name]())
    return Validation(torch.from_numpy(images), tuple(ids.values()))


def _annotated(notes: str, content: bytes) -> dict[str, str]:
    """WordNet ids by file name, in the file's order."""
    ids: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        name, *rest = line.split("\t")
        if not rest:
            raise DropoutError(
                f"{notes}: want a file and a WordNet id with a tab between in line {number}, got {line[:60]!r};"
                f" fetch {HOME}"
            )
        if rest[0] not in WNIDS:
            raise DropoutError(
                f"{notes}: want one of Tiny-ImageNet's 200 WordNet ids for {name}, got {rest[0][:60]!r}; fetch {HOME}"
            )
        if name in ids:
            raise DropoutError(f"{notes}: want one line for {name}, got a second in line {number}; fetch {HOME}")
        ids[name] = rest[0]
    return ids


def _decoded(name: str, data: bytes) -> UInt8[np.ndarray, "3 64 64"]:
    try:
        from PIL import Image
    except ImportError as error:
        raise DropoutError("JPEGs need Pillow; install it with pip install pillow") from error
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            size = image.size
            # Only what has the right size is decoded: a small file can hold a picture that fills all memory.
            pixels = np.asarray(image.convert("RGB")) if size == (SIDE, SIDE) else None
    except Exception as error:  # a damaged JPEG can fail in any way at all
        raise DropoutError(
            f"{name}: want a JPEG, got {type(error).__name__} in {len(data):,} bytes; fetch {HOME}"
        ) from error
    if pixels is None:
        raise DropoutError(f"{name}: want 64 × 64 pixels, got {_by(size)}; fetch {HOME}, or resize it")
    return pixels.transpose(2, 0, 1)


def _by(size: Sequence[int]) -> str:
    return " × ".join(map(str, size))
