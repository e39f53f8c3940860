"""The classification tasks: images and text, two of their classes left out to be met as strangers, and plain networks.

Near strangers are the two classes left out; far ones are another data set, or random characters. Shifted inputs are the test's
first 2,000, in three degrees of each disturbance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.rates import images
from experiments.uncertainty.networks import cnn, encoder, mlp, resnet
from experiments.vision.corruptions import corrupt

__all__ = ["TASKS", "Parts", "Task"]

Pair = tuple[Tensor, Tensor]
STRANGE = 2
DEGREES = (1, 3, 5)
SHIFTED = 2_000
POOL = 12_000
TOPICS, WINDOW = 12, 64
SWAPPED = {1: 0.05, 3: 0.1, 5: 0.2}
"""Of a text, the share of characters that are replaced."""


@dataclass(frozen=True)
class Parts:
    """Inputs and classes; strangers have none."""

    train: Pair
    validation: Pair
    test: Pair
    near: Tensor
    far: Tensor
    shifted: dict[str, Pair]
    classes: int

    def to(self, device: str) -> "Parts":
        move: Callable[[Pair], Pair] = lambda pair: (pair[0].to(device), pair[1].to(device))  # noqa: E731
        return Parts(
            move(self.train), move(self.validation), move(self.test), self.near.to(device), self.far.to(device),
            {name: move(pair) for name, pair in self.shifted.items()}, self.classes,
        )  # fmt: skip


@dataclass(frozen=True)
class Task:
    """AdamW at its default weight decay, cosine to zero, last epoch."""

    name: str
    load: Callable[[Path, int], Parts]
    network: Callable[[Parts, float, str], nn.Module]
    """With dropouts at a rate, in the usual places, ``everywhere``, or as ``stochastic depth``."""
    epochs: int
    batch: int
    lr: float = 1e-3
    places: tuple[str, ...] = ("usual", "everywhere")
    small: bool = False
    """So small that a CPU trains it as fast as a GPU, whose kernels wait for Python."""


def _fashion(folder: Path, seed: int) -> Parts:
    """Of the first 12,000 images and eight classes 6,000 to train on, 2,000 for validation; the 8,000 of the test."""
    x, y, test_x, test_y = images.all_fashion(folder)
    pool = x[:POOL], y[:POOL]
    return _image_parts(pool, (test_x, test_y), (6_000, 2_000), _as_fashion(_digits()[0]), seed)


def _small_digits(folder: Path, seed: int) -> Parts:
    """500 digits of eight classes to train on, 200 for validation, the rest for the test."""
    x, y = _digits()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    pool, test = (x[order[:1_000]], y[order[:1_000]]), (x[order[1_000:]], y[order[1_000:]])
    _, _, fashion, _ = images.all_fashion(folder)
    return _image_parts(pool, test, (500, 200), F.adaptive_avg_pool2d(fashion[:SHIFTED], 8), seed)


def _digits() -> Pair:
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    return torch.from_numpy(np.asarray(pixels, np.float32)).view(-1, 8, 8) / 16, torch.from_numpy(classes).long()


def _as_fashion(x: Tensor) -> Tensor:
    return F.interpolate(x[:, None], (28, 28), mode="bilinear")[:, 0]


def _image_parts(pool: Pair, test: Pair, sizes: tuple[int, int], far: Tensor, seed: int) -> Parts:
    classes = 10 - STRANGE
    near = test[0][test[1] >= classes]
    pool, test = ((x[y < classes], y[y < classes]) for x, y in (pool, test))
    order = torch.randperm(len(pool[0]), generator=torch.Generator().manual_seed(seed))[: sum(sizes)]
    train, validation = ((pool[0][rows], pool[1][rows]) for rows in order.split(list(sizes)))
    few = (test[0][:SHIFTED], test[1][:SHIFTED])
    coloured = (few[0] * 255).round().byte()[:, None].expand(-1, 3, -1, -1).contiguous()
    shifted = {
        f"{kind} {degree}": (corrupt(coloured, kind, degree, torch.Generator().manual_seed(0))[:, 0] / 255, few[1])
        for kind in ("gaussian_noise", "gaussian_blur", "jpeg") for degree in DEGREES
    }  # fmt: skip
    return Parts(train, validation, test, near, far, shifted, classes)


def _text(folder: Path, seed: int) -> Parts:
    """Which of Python's help topics a window of 64 characters is of: 2,000 to train on, 600 for validation."""
    x, y = _windows()
    classes = TOPICS - STRANGE
    generator = torch.Generator().manual_seed(seed)
    near, known = x[y >= classes], torch.nonzero(y < classes).flatten()
    order = known[torch.randperm(len(known), generator=generator)]
    train, validation, test = order[:2_000], order[2_000:2_600], order[2_600:]
    few = test[:SHIFTED]
    fixed = torch.Generator().manual_seed(0)
    shifted = {}
    for degree, share in SWAPPED.items():
        swapped = torch.rand(x[few].shape, generator=fixed) < share
        other = torch.randint(32, 127, x[few].shape, generator=fixed)
        shifted[f"characters {degree}"] = torch.where(swapped, other, x[few]), y[few]
    far = torch.randint(32, 127, (SHIFTED, WINDOW), generator=fixed)
    return Parts((x[train], y[train]), (x[validation], y[validation]), (x[test], y[test]), near, far, shifted, classes)


@lru_cache(maxsize=1)
def _windows() -> Pair:
    """Of the longest topics; the last two of them are the strangers."""
    from pydoc_data.topics import topics

    longest = sorted(topics, key=lambda name: -len(topics[name]))[:TOPICS]
    each = []
    for name in longest:
        codes = torch.tensor([min(ord(c), 127) for c in topics[name]])
        each.append(codes[: len(codes) // WINDOW * WINDOW].view(-1, WINDOW))
    return torch.cat(each), torch.arange(TOPICS).repeat_interleave(torch.tensor([len(x) for x in each]))


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("digits, MLP", _small_digits, partial(mlp, width=128), 100, 50, small=True),
        Task("digits, CNN", _small_digits, cnn, 100, 50, small=True),
        Task("Fashion-MNIST, MLP", _fashion, partial(mlp, width=256), 30, 100, small=True),
        Task("Fashion-MNIST, CNN", _fashion, cnn, 20, 100),
        Task("Fashion-MNIST, ResNet", _fashion, resnet, 15, 100, places=("usual", "everywhere", "stochastic depth")),
        Task("Python's help, transformer", _text, encoder, 30, 50, places=("usual",), small=True),
    )
}
