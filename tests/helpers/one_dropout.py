"""A small classifier with one learned dropout, a batch for it, and its losses example by example."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lbdrop import LearnableDropout


def network(scale="inverted", units: int | None = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), LearnableDropout(units, 0.3, scale=scale), nn.Linear(8, 2))


def batch(count: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3), torch.randint(0, 2, (count,))


def losses(x: Tensor, y: Tensor):
    return lambda model: F.cross_entropy(model(x), y, reduction="none")
