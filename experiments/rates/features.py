"""CIFAR-10 as the convolutions of a pretrained VGG19 see it, and the head that is trained on that.

No dropout comes before the head, so its inputs are computed once, and kept in a file beside the weights.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from experiments.archives import read_npz
from lbdrop.errors import DropoutError
from lbdrop.io.files import replacing

__all__ = ["head", "load"]

Pair = tuple[Tensor, Tensor]
SIDE, POOL = 64, 2
"""Images are enlarged to 64 × 64, of which the convolutions leave 2 × 2."""
NAMES = ("train_x", "train_y", "test_x", "test_y")
AT_ONCE = 500


def load(folder: Path, seed: int) -> tuple[Pair, Pair, Pair, float]:
    """Features of the official images: 5,000 train images that the seed draws validate."""
    x, y, test_x, test_y = _features(folder)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    validation, train = order[: len(x) // 10], order[len(x) // 10 :]
    return (x[train], y[train]), (x[validation], y[validation]), (test_x, test_y), 1.0


@lru_cache(maxsize=1)
def _features(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    kept = folder / f"cifar10-vgg19-{SIDE}.npz"
    if not kept.exists():
        _keep(folder, kept)
    parts = read_npz(kept, NAMES)
    x, y, test_x, test_y = (torch.from_numpy(parts[name]) for name in NAMES)
    return x.float(), y, test_x.float(), test_y


def _keep(folder: Path, at: Path) -> None:
    """In half precision: a quarter of a gigabyte."""
    # Here, for every worker imports the tasks, and few have images.
    from experiments.networks.vgg import VGG
    from experiments.vision import cifar10

    images = cifar10.load(folder / "cifar10", download=False)
    weights = folder / "vgg19-conv.npz"
    if not weights.exists():
        raise DropoutError(
            f"VGG19: want {weights}, an .npz of its convolutions as experiments.networks.VGG.load reads it, got no such file"
        )
    network = VGG(19, width=1, pool=POOL).load(weights, fresh="classifier").eval()
    train, test = (_through(network, part).half() for part in (images.train, images.test))
    arrays = (each.numpy() for each in (train, images.train_labels, test, images.test_labels))
    with replacing(at) as beside, beside.open("wb") as file:
        np.savez(file, **dict(zip(NAMES, arrays, strict=True)))  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def _through(network: Any, images: Int[Tensor, "n 3 32 32"]) -> Float[Tensor, "n features"]:
    from experiments.vision.batches import as_input

    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = network.to(device)
    return torch.cat([network.trunk(as_input(part.to(device), SIDE)).cpu() for part in images.split(AT_ONCE)])


def head(rate: float) -> nn.Module:
    """VGG's three linear layers, with a dropout behind both hidden ones."""
    from experiments.networks.vgg import VGG

    return VGG(11, dropout=lambda width: nn.Dropout(rate), classes=10, pool=POOL).classifier
