"""Residual blocks with stochastic depth, written as papers' own code has it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Block", "DropPath"]


class DropPath(nn.Module):
    """Stochastic depth: an example loses a branch as a whole."""

    def __init__(self, rate: float):
        super().__init__()
        self.p = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        keep = torch.rand(len(x), *[1] * (x.dim() - 1), device=x.device).ge(self.p)
        return x * keep / (1 - self.p)


class Block(nn.Module):
    """A residual block whose branch may be left out."""

    def __init__(self, width: int, rate: float):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.drop_path = DropPath(rate)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.drop_path(self.branch(x)))
