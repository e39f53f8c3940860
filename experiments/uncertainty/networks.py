"""The networks of the classification tasks, as anyone would write them; where dropouts go is an argument."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.networks.residual import DropPath

__all__ = ["cnn", "encoder", "mlp", "resnet"]


def _classes(parts: object) -> int:
    return parts.classes  # pyright: ignore[reportAttributeAccessIssue]


def mlp(parts: object, rate: float, places: str, width: int = 256) -> nn.Module:
    """Two hidden layers, dropout behind both; everywhere is on the inputs too."""
    inputs = parts.train[0][0].numel()  # pyright: ignore[reportAttributeAccessIssue]
    first = [nn.Dropout(rate)] if places == "everywhere" else []
    return nn.Sequential(
        nn.Flatten(), *first, nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(rate),
        nn.Linear(width, width), nn.ReLU(), nn.Dropout(rate), nn.Linear(width, _classes(parts)),
    )  # fmt: skip


def cnn(parts: object, rate: float, places: str) -> nn.Module:
    """Two convolutions and a hidden layer, dropout behind that one; everywhere drops channels behind the others too."""
    side = parts.train[0].shape[-1] // 4  # pyright: ignore[reportAttributeAccessIssue]
    channels: list[nn.Module] = [nn.Dropout2d(rate)] if places == "everywhere" else [nn.Identity()]
    again: list[nn.Module] = [nn.Dropout2d(rate)] if places == "everywhere" else [nn.Identity()]
    return nn.Sequential(
        Gray(), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), *channels,
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), *again, nn.Flatten(),
        nn.Linear(32 * side * side, 128), nn.ReLU(), nn.Dropout(rate), nn.Linear(128, _classes(parts)),
    )  # fmt: skip


class Gray(nn.Module):
    """One channel for images that have none."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, None]


class Block(nn.Module):
    """Two convolutions beside a shortcut; between them may be a dropout of channels, behind them stochastic depth."""

    def __init__(self, inputs: int, width: int, stride: int, rate: float, places: str):
        super().__init__()
        self.first = nn.Conv2d(inputs, width, 3, stride, 1)
        self.second = nn.Conv2d(width, width, 3, 1, 1)
        self.shortcut = nn.Conv2d(inputs, width, 1, stride) if inputs != width else nn.Identity()
        # Without weights of its own: what approximates a posterior of all weights has rules for these layers alone.
        self.norms = nn.ModuleList(nn.GroupNorm(4, size, affine=False) for size in (inputs, width))
        self.dropout = nn.Dropout2d(rate) if places == "everywhere" else nn.Identity()
        self.depth = DropPath(rate) if places == "stochastic depth" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(F.relu(self.norms[0](x)))
        h = self.second(self.dropout(F.relu(self.norms[1](h))))
        return self.shortcut(x) + self.depth(h)


def resnet(parts: object, rate: float, places: str) -> nn.Module:
    """Six residual blocks; dropout before the last layer."""
    widths = ((16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1))
    last: list[nn.Module] = [] if places == "stochastic depth" else [nn.Dropout(rate)]
    return nn.Sequential(
        Gray(), nn.Conv2d(1, 16, 3, padding=1), *(Block(*each, rate, places) for each in widths),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *last, nn.Linear(64, _classes(parts)),
    )  # fmt: skip


class Encoder(nn.Module):
    """Two pre-norm transformer layers and the mean over the characters."""

    def __init__(self, classes: int, length: int, rate: float, width: int = 64):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(128, width), nn.Dropout(rate)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, rate, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.encoder(self.dropout(self.embedding(x) + self.position)).mean(1))


def encoder(parts: object, rate: float, places: str) -> nn.Module:
    return Encoder(_classes(parts), parts.train[0].shape[1], rate)  # pyright: ignore[reportAttributeAccessIssue]
