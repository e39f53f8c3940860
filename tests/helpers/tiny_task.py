"""A task of the rates experiment that runs in a few milliseconds."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.rates.tasks import Data, Task


def tiny_task() -> Task:
    """Two Gaussian clouds, 24 to train on; the whole path of a run in a few milliseconds."""

    def load(folder: Path, seed: int) -> Any:
        g = torch.Generator().manual_seed(seed)
        x, y = torch.randn(48, 5, generator=g), torch.arange(48) % 2
        x = x + y[:, None]
        return (x[:24], y[:24]), (x[24:36], y[24:36]), (x[36:], y[36:]), 1.0

    def network(data: Data, rate: float) -> nn.Module:
        return nn.Sequential(nn.Dropout(rate), nn.Linear(5, 6), nn.ReLU(), nn.Dropout(rate), nn.Linear(6, 2))

    return Task("tiny", "classification", load, network, epochs=2, batch=8, starts=True)
