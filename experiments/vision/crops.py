r"""Batches of street scenes that are kept, cropped, scaled, mirrored and relit on the device, image and label together.

A pixel $(i, j)$ of a crop at scale $s$ looks at $(t + (i + \tfrac12)/s,\; l + (j + \tfrac12)/s)$ of its scene: bilinear in the
image, the nearest in the label.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from experiments.vision.batches import as_input
from experiments.vision.camvid import Scenes
from lbdrop.errors import DropoutError

__all__ = ["Crops", "crop", "mirror", "relight"]


class _Draws(NamedTuple):
    """An epoch's random numbers, one entry per scene."""

    order: Int64[Tensor, "n"]
    flip: Bool[Tensor, "n"]
    place: Float[Tensor, "n 2"]
    size: Float[Tensor, "n"]
    light: Float[Tensor, "n 5"]


class Crops:
    """Training batches of (images, classes), drawn anew each epoch: float images in [0, 1], classes as int64.

    Args:
        scenes: the scenes; batches are cut where they lie.
        batch: scenes in a batch; only full batches are given.
        side: crop to ``side`` × ``side`` pixels at a random place; ``None`` takes whole images.
        scale: the smallest and largest enlargement of a crop, drawn log-uniformly.
        jitter: how much brightness and contrast vary, as the standard deviation of their logarithms; those of single
            channels vary by a third of it.
        generator: draws order, places, scales and mirrorings.

    Example:
        >>> scenes = Scenes(torch.zeros(5, 3, 40, 60, dtype=torch.uint8), torch.zeros(5, 40, 60, dtype=torch.uint8), ("",) * 5)
        >>> [tuple(x.shape) for x, _ in Crops(scenes, batch=2, side=32)]
        [(2, 3, 32, 32), (2, 3, 32, 32)]
    """

    def __init__(
        self,
        scenes: Scenes,
        batch: int,
        side: int | None = None,
        *,
        scale: tuple[float, float] = (1.0, 1.0),
        jitter: float = 0.0,
        generator: torch.Generator | None = None,
    ):
        if jitter < 0:
            raise DropoutError(f"jitter: want at least 0, got {jitter}")
        if not 1 <= batch <= len(scenes):
            raise DropoutError(f"batch: want 1 to {len(scenes)}, the number of scenes, got {batch}")
        if not 0 < scale[0] <= scale[1]:
            raise DropoutError(f"scale: want 0 < smallest ≤ largest, got {scale}")
        if side is None and scale != (1.0, 1.0):
            raise DropoutError(f"scale: want (1.0, 1.0) for whole images, got {scale}; give the side of a crop with it")
        if side is not None and not 1 <= side / scale[0] <= min(scenes.labels.shape[1:]):
            raise DropoutError(
                f"side: want a crop that fits into {tuple(scenes.labels.shape[1:])} at a scale of {scale[0]:g}, got {side}"
            )
        self.scenes, self.batch, self.side, self.scale, self.generator = scenes, batch, side, scale, generator
        self.jitter = jitter

    def __len__(self) -> int:
        return len(self.scenes) // self.batch

    def __iter__(self) -> Iterator[tuple[Float[Tensor, "b 3 h w"], Int64[Tensor, "b h w"]]]:
        for draws in islice(zip(*(each.split(self.batch) for each in self._draws()), strict=True), len(self)):
            rows, flip, place, size, light = draws
            x, y = as_input(self.scenes.images[rows]), self.scenes.labels[rows]
            if self.side is not None:
                x, y = crop(x, y, self.side, place, size)
            x, y = mirror(x, y, flip)
            yield relight(x, self.jitter * light) if self.jitter else x, y.long()

    def _draws(self) -> _Draws:
        n, g = len(self.scenes), self.generator
        low, high = (torch.tensor(end).log() for end in self.scale)
        # Once an epoch, on the generator's device, and moved together: no batch waits for the host.
        on = torch.device("cpu") if g is None else g.device
        order, flip = torch.randperm(n, generator=g, device=on), torch.rand(n, generator=g, device=on) < 0.5
        place, size = torch.rand(n, 2, generator=g, device=on), torch.rand(n, generator=g, device=on)
        size = (low.to(on) + size * (high - low).to(on)).exp()
        light = torch.randn(n, 5, generator=g, device=on) if self.jitter else torch.zeros(n, 5, device=on)
        return _Draws(*(each.to(self.scenes.labels.device) for each in (order, flip, place, size, light)))


def crop(
    images: Float[Tensor, "b 3 h w"],
    labels: UInt8[Tensor, "b h w"],
    side: int,
    place: Float[Tensor, "b 2"],
    scale: Float[Tensor, "b"],
) -> tuple[Float[Tensor, "b 3 side side"], UInt8[Tensor, "b side side"]]:
    """Crop i starts at the share ``place[i]`` of the whole pixels that it may start at, enlarged by ``scale[i]``."""
    whole = torch.tensor(images.shape[2:], device=images.device)
    room = (whole - side / scale[:, None] + 1e-3).floor()
    start = torch.minimum((place * (room + 1)).floor(), room)
    steps = (torch.arange(side, device=images.device) + 0.5) / scale[:, None]
    # From pixels to the [-1, 1] of grid_sample.
    rows, columns = (2 * (start[:, axis, None] + steps) / whole[axis] - 1 for axis in (0, 1))
    grid = torch.stack([columns[:, None, :].expand(-1, side, -1), rows[:, :, None].expand(-1, -1, side)], -1)
    sampled = F.grid_sample(images, grid.to(images.dtype), "bilinear", "border", align_corners=False)
    classes = F.grid_sample(labels[:, None].float(), grid, "nearest", "border", align_corners=False)
    return sampled, classes[:, 0].to(torch.uint8)


def mirror(
    images: Float[Tensor, "b 3 h w"], labels: UInt8[Tensor, "b h w"], flip: Bool[Tensor, "b"]
) -> tuple[Float[Tensor, "b 3 h w"], UInt8[Tensor, "b h w"]]:
    """Left and right change places in the images and labels where ``flip`` says so."""
    return torch.where(flip[:, None, None, None], images.flip(3), images), torch.where(
        flip[:, None, None], labels.flip(2), labels
    )


def relight(images: Float[Tensor, "b 3 h w"], light: Float[Tensor, "b 5"]) -> Float[Tensor, "b 3 h w"]:
    """Images in [0, 1] with log gains of brightness, of contrast about their mean, and a third of those of each channel."""
    brightness, contrast, channels = light[:, :1], light[:, 1:2], light[:, 2:] / 3
    gain = (brightness + channels).exp()[:, :, None, None]
    mean = images.mean((1, 2, 3), keepdim=True)
    return (((images - mean) * contrast.exp()[:, :, None, None] + mean) * gain).clamp(0, 1)
