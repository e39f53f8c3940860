"""Digits and Fashion-MNIST, and the networks that read them."""

import gzip
import struct
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from experiments.archives import read_npz
from experiments.networks.residual import Block
from lbdrop.errors import DropoutError, first_line

__all__ = ["all_fashion", "cnn", "digits", "fashion", "mlp", "residual", "vit"]

Images = Float[Tensor, "examples height width"]
Classes = Int[Tensor, "examples"]
Pair = tuple[Tensor, Tensor]

# The names of the official files, as the authors and Debian's package dataset-fashion-mnist have them.
IDX = {
    "train_x": "train-images-idx3-ubyte.gz", "train_y": "train-labels-idx1-ubyte.gz",
    "test_x": "t10k-images-idx3-ubyte.gz", "test_y": "t10k-labels-idx1-ubyte.gz",
}  # fmt: skip
LARGEST = 1 << 26  # bytes of a file, unpacked; the largest has 47 million
PLACES = ("fashion-mnist", "/usr/share/datasets/fashion-mnist", "/usr/share/dataset-fashion-mnist")


def digits(folder: Path, seed: int) -> tuple[Pair, Pair, Pair, float]:
    """scikit-learn's 1,797 digits of 8 × 8: 600 to train on, 200 for validation, the rest for test."""
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    x = torch.from_numpy(np.asarray(pixels, dtype=np.float32)).view(-1, 8, 8) / 16
    y = torch.from_numpy(np.asarray(classes)).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, validation, test = order[:600], order[600:800], order[800:]
    return (x[train], y[train]), (x[validation], y[validation]), (x[test], y[test]), 1.0


def fashion(size: int, folder: Path, seed: int) -> tuple[Pair, Pair, Pair, float]:
    """``size`` training images drawn by the seed, a third as many for validation, at most 10,000; all test images."""
    x, y, test_x, test_y = all_fashion(folder)
    held_out = min(size // 3, 10_000, len(x) // 4)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, validation = order[: min(size, len(x) - held_out)], order[len(x) - held_out :]
    return (x[train], y[train]), (x[validation], y[validation]), (test_x, test_y), 1.0


@lru_cache(maxsize=1)
def all_fashion(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parts = _read(folder)
    x, test_x = (torch.from_numpy(parts[name]).float() / 255 for name in ("train_x", "test_x"))
    y, test_y = (torch.from_numpy(parts[name]).long() for name in ("train_y", "test_y"))
    return x, y, test_x, test_y


def _read(folder: Path) -> dict[str, np.ndarray]:
    packed = folder / "fashion-mnist.npz"
    if packed.exists():
        return _whole(packed, _npz(packed))
    for place in (folder / PLACES[0], *map(Path, PLACES[1:])):
        if all((place / name).exists() for name in IDX.values()):
            return _whole(place, {name: _idx(place / file) for name, file in IDX.items()})
    raise DropoutError(
        f"Fashion-MNIST: want {packed} (train_x, train_y, test_x, test_y) or the four official .gz files in"
        f" {folder / PLACES[0]}, got neither; they are at github.com/zalandoresearch/fashion-mnist and in Debian's"
        " dataset-fashion-mnist"
    )


def _npz(path: Path) -> dict[str, np.ndarray]:
    try:
        return read_npz(path, tuple(IDX))
    except DropoutError as error:
        raise DropoutError(f"{path}: want an .npz with {', '.join(IDX)}, got {error}; make it again") from error


def _whole(where: Path, parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for part in ("train", "test"):
        x, y = parts[f"{part}_x"], parts[f"{part}_y"]
        if (
            x.dtype != np.uint8
            or x.shape[1:] != (28, 28)
            or y.shape != x.shape[:1]
            or y.dtype.kind not in "iu"
            or not len(x)
        ):
            raise DropoutError(
                f"{where}: want {part} images (n, 28, 28) of bytes and n classes, got {x.shape} of {x.dtype} and {y.shape} of"
                f" {y.dtype}; download it again"
            )
        if y.min() < 0 or y.max() > 9:
            raise DropoutError(f"{where}: want classes 0 to 9, got {y.min()} to {y.max()}; download it again")
    return parts


def _idx(path: Path) -> np.ndarray:
    """The format of the MNIST files: a magic number whose last byte counts the axes, their sizes, then bytes."""
    try:
        with gzip.open(path) as file:
            raw = file.read(LARGEST)
        magic, *sizes = struct.unpack(f">{1 + raw[3]}I", raw[: 4 + 4 * raw[3]])
        if magic >> 8 != 0x08:
            raise ValueError(f"magic number {magic:#x}")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes).copy()
    except (OSError, EOFError, ValueError, IndexError, struct.error, zlib.error) as error:
        raise DropoutError(f"{path}: want an idx file of bytes, got {first_line(error)}; download it again") from error


def mlp(x: Images, rate: float, width: int = 256) -> nn.Sequential:
    """Dropout on the inputs and behind both hidden layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Dropout(rate),
        nn.Linear(x[0].numel(), width), nn.ReLU(), nn.Dropout(rate),
        nn.Linear(width, width), nn.ReLU(), nn.Dropout(rate),
        nn.Linear(width, 10),
    )  # fmt: skip


def cnn(x: Images, rate: float) -> nn.Sequential:
    """Two convolutions with dropped channels behind them, and a hidden layer with dropped units."""
    side = x.shape[-1] // 4
    return nn.Sequential(
        nn.Unflatten(1, (1, x.shape[1])),
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(rate),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(rate),
        nn.Flatten(), nn.Linear(32 * side * side, 128), nn.ReLU(), nn.Dropout(rate),
        nn.Linear(128, 10),
    )  # fmt: skip


def residual(x: Images, rate: float, width: int = 16, blocks: int = 3) -> nn.Sequential:
    """Residual blocks with stochastic depth, and no other dropout."""
    return nn.Sequential(
        nn.Unflatten(1, (1, x.shape[1])), nn.Conv2d(1, width, 3, padding=1),
        *(Block(width, rate) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 10),
    )  # fmt: skip


class ViT(nn.Module):
    """A vision transformer of transformers, from its configuration, with two layers; it reads 16 patches."""

    def __init__(self, side: int, rate: float, width: int = 32):
        super().__init__()
        from transformers import ViTConfig, ViTForImageClassification

        settings: Any = ViTConfig
        self.vit = ViTForImageClassification(
            settings(
                image_size=side, patch_size=side // 4, num_channels=1, hidden_size=width, num_hidden_layers=2,
                num_attention_heads=2, intermediate_size=2 * width, num_labels=10, hidden_dropout_prob=rate,
                attention_probs_dropout_prob=rate,
            )
        )  # fmt: skip

    def forward(self, x: Images) -> Float[Tensor, "images classes"]:
        return self.vit(pixel_values=x[:, None]).logits


def vit(x: Images, rate: float) -> ViT:
    return ViT(x.shape[-1], rate)
