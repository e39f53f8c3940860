"""Street scenes beside what a network says of them: input, truth, prediction, entropy and mutual information in one strip."""

import base64
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8

from experiments.archives import read_npz
from experiments.vision.camvid import CLASSES, PALETTE, Scenes
from lbdrop.errors import DropoutError

__all__ = ["Maps", "images", "palette", "read_maps", "strips_png"]

GAP = 6
NAMES = ("predicted", "entropy", "mutual_information", "index")


@dataclass(frozen=True)
class Maps:
    """What one run says of a few test images."""

    label: str
    index: Int[np.ndarray, "n"]
    predicted: UInt8[np.ndarray, "n h w"]
    entropy: Float[np.ndarray, "n h w"]
    mutual_information: Float[np.ndarray, "n h w"]
    scenes: Scenes | None

    @property
    def columns(self) -> tuple[str, ...]:
        known = ("input", "truth") if self.scenes is not None else ()
        return (*known, "prediction", "entropy", "mutual information")

    @property
    def largest(self) -> float:
        """The brightest mutual information; a few pixels may lie above."""
        return max(float(np.quantile(self.mutual_information.astype(np.float32), 0.999)), 1e-6)


def palette() -> list[tuple[str, tuple[int, int, int]]]:
    """Names and colours of the classes, and of void."""
    return list(zip((*CLASSES, "void"), PALETTE, strict=True))


def read_maps(file: Path, label: str, scenes: Scenes | None) -> Maps:
    """The maps that a run wrote beside its record; ``scenes`` are the test split they are of."""
    try:
        arrays = read_npz(file, NAMES)
    except DropoutError as error:
        raise DropoutError(f"{file}: want maps of test images, got {error}; run it again") from error
    _check(file, arrays)
    index = arrays["index"]
    if scenes is not None and (index.max() >= len(scenes) or scenes.labels.shape[1:] != arrays["predicted"].shape[1:]):
        raise DropoutError(
            f"{file}: want test images {index.tolist()} of {arrays['predicted'].shape[1:]} pixels, got {len(scenes)} of"
            f" {tuple(scenes.labels.shape[1:])}; give --data the set that was tested on"
        )
    return Maps(label, index, arrays["predicted"], arrays["entropy"], arrays["mutual_information"], scenes)


def _check(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """One line about maps that cannot be drawn."""
    predicted, index, shape = arrays["predicted"], arrays["index"], arrays["predicted"].shape
    kinds = {"predicted": "u", "entropy": "f", "mutual_information": "f"}
    wrong = [n for n, kind in kinds.items() if arrays[n].dtype.kind != kind or arrays[n].shape != shape]
    if len(shape) != 3 or not predicted.size or index.shape != shape[:1] or index.dtype.kind not in "iu":
        wrong = ["index", "predicted"]
    elif not wrong and (predicted.max() >= len(PALETTE) or index.min() < 0):
        wrong = ["classes"]
    elif not wrong and not all(np.isfinite(arrays[name]).all() for name in NAMES[1:3]):
        wrong = ["finite numbers"]
    if wrong:
        shapes = ", ".join(f"{name} {array.shape} of {array.dtype}" for name, array in arrays.items())
        raise DropoutError(
            f"{file}: want maps of test images with {' and '.join(wrong)} that fit, got {shapes}; run it again"
        )


def strip(maps: Maps, i: int) -> UInt8[np.ndarray, "h width 3"]:
    """One test image from left to right, at half size: a page, and a repository, hold them all."""
    colours = np.array(PALETTE, np.uint8)
    parts = []
    if maps.scenes is not None:
        row = int(maps.index[i])
        parts += [
            maps.scenes.images[row].permute(1, 2, 0).cpu().numpy(),
            colours[maps.scenes.labels[row].cpu().numpy()],
        ]
    parts += [
        colours[maps.predicted[i]],
        _glow(maps.entropy[i], math.log(len(CLASSES))),
        _glow(maps.mutual_information[i], maps.largest),
    ]
    gap = np.full((parts[0].shape[0], GAP, 3), 255, np.uint8)
    return np.concatenate([piece for part in parts for piece in (part, gap)][:-1], 1)[::2, ::2]


def images(maps: Maps) -> Iterator[tuple[str, str]]:
    """A name and a source for each strip."""
    for i, index in enumerate(maps.index):
        yield f"test image {int(index)}", f"data:image/png;base64,{base64.b64encode(_png(strip(maps, i))).decode()}"


def strips_png(maps: Maps) -> bytes:
    """All strips above each other."""
    strips = [strip(maps, i) for i in range(len(maps.index))]
    gap = np.full((GAP, strips[0].shape[1], 3), 255, np.uint8)
    return _png(np.concatenate([piece for each in strips for piece in (each, gap)][:-1]))


def _glow(values: Float[np.ndarray, "h w"], largest: float) -> UInt8[np.ndarray, "h w 3"]:
    from matplotlib import colormaps

    shades = colormaps["magma"](np.clip(values.astype(np.float32) / largest, 0, 1), bytes=True)
    return np.asarray(shades)[..., :3]


def _png(pixels: UInt8[np.ndarray, "h w 3"]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
