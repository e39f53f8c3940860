"""Batches of images that are kept, cut, augmented and resized on the device: no batch waits for the host."""

from collections.abc import Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Int64, UInt8
from torch import Tensor

from lbdrop.errors import DropoutError

__all__ = ["Batches", "as_input", "crop_and_flip"]


class Batches:
    """Batches of float images, cut, augmented and resized where the data lies.

    The whole set is kept on ``device`` as bytes. An epoch's random numbers are drawn at its start, on the generator's
    device, and moved once; so a CPU generator gives the same batches everywhere, and no batch waits for the host.

    Args:
        images: bytes, (n, 3, height, width).
        labels: their classes.
        batch: images in a batch.
        size: the side to resize to, bilinear; ``None`` leaves the images as they are.
        train: a new order each epoch, and only full batches; otherwise the given order, and all images.
        augment: when training, shift each image by up to 4 pixels (zeros come in) and mirror half of them.
        generator: draws order, shifts and mirrorings.
        device: where to keep the data; where the images are if ``None``.

    Example:
        >>> images, labels = torch.zeros(10, 3, 32, 32, dtype=torch.uint8), torch.arange(10)
        >>> for x, y in Batches(images, labels, batch=4, size=64):
        ...     print(tuple(x.shape), y.tolist())
        (4, 3, 64, 64) [0, 1, 2, 3]
        (4, 3, 64, 64) [4, 5, 6, 7]
        (2, 3, 64, 64) [8, 9]
    """

    def __init__(
        self,
        images: UInt8[Tensor, "n 3 height width"],
        labels: Int64[Tensor, "n"],
        batch: int = 64,
        size: int | None = None,
        *,
        train: bool = False,
        augment: bool = False,
        generator: torch.Generator | None = None,
        device: str | torch.device | None = None,
    ):
        if batch < 1 or (size is not None and size < 1):
            raise DropoutError(f"batch and size: want at least 1, got {batch} and {size}")
        if len(images) < (batch if train else 1):
            raise DropoutError(
                f"images: want at least {batch if train else 1}, got {len(images)}; training uses full batches only, so"
                " give more images or a smaller batch"
            )
        if augment and not train:
            raise DropoutError("augment: want train=True with it, got train=False; evaluation takes images as they are")
        device = images.device if device is None else device
        self.images, self.labels = images.to(device), labels.to(device)
        self.batch, self.size, self.train, self.augment = batch, size, train, augment
        self.generator = generator

    def __len__(self) -> int:
        return len(self.labels) // self.batch if self.train else -(-len(self.labels) // self.batch)

    def __iter__(self) -> Iterator[tuple[Float[Tensor, "b 3 h w"], Int64[Tensor, "b"]]]:
        if not self.train:
            for x, y in zip(self.images.split(self.batch), self.labels.split(self.batch), strict=True):
                yield as_input(x, self.size), y
            return
        order, shift, mirror = (draw.split(self.batch) for draw in self._draws())
        for rows, by, flip in islice(zip(order, shift, mirror, strict=True), len(self)):
            x = self.images[rows]
            yield as_input(crop_and_flip(x, by, flip) if self.augment else x, self.size), self.labels[rows]

    def _draws(self) -> tuple[Int[Tensor, "n"], Int[Tensor, "n 2"], Bool[Tensor, "n"]]:
        n, g = len(self.labels), self.generator
        on = "cpu" if g is None else g.device
        order = torch.randperm(n, generator=g, device=on)
        shift = torch.randint(0, 9, (n, 2), generator=g, device=on) - 4
        mirror = torch.rand(n, generator=g, device=on) < 0.5
        to = self.images.device
        return order.to(to), shift.to(to), mirror.to(to)


def as_input(images: UInt8[Tensor, "n 3 h w"], size: int | None = None) -> Float[Tensor, "n 3 H W"]:
    """Bytes to numbers in [0, 1], resized to ``size`` × ``size``; smoothed first only where they shrink."""
    x = images.float() / 255
    if size is None or tuple(x.shape[2:]) == (size, size):
        return x
    return F.interpolate(x, (size, size), mode="bilinear", antialias=size < min(x.shape[2:]))


def crop_and_flip(
    images: UInt8[Tensor, "n 3 h w"], shift: Int[Tensor, "n 2"], flip: Bool[Tensor, "n"]
) -> UInt8[Tensor, "n 3 h w"]:
    """Image i moved by ``shift[i]`` (down, right; at most 4 pixels) over zeros, then mirrored where ``flip[i]``."""
    n, channels, height, width = images.shape
    row, column, i, c = (torch.arange(size, device=images.device) for size in (height, width, n, channels))
    columns = torch.where(flip[:, None], column.flip(0), column)
    rows, columns = row + 4 - shift[:, :1], columns + 4 - shift[:, 1:]
    # One gather for the whole batch: a loop over images would cost a kernel, and a wait, for each.
    padded = F.pad(images, (4, 4, 4, 4))
    return padded[i[:, None, None, None], c[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]]


# ----------------------------------------------------------------------------------------------------------- reading
