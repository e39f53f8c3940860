"""A small converted classifier, its losses, and responses as if they had been learned."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lbdrop
from lbdrop.recommend.response import Response


def crossed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def small(rate: float = 0.3) -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(nn.Dropout(rate), nn.Linear(6, 8), nn.ReLU(), nn.Dropout(rate), nn.Linear(8, 3))
    return lbdrop.convert(model, verbose=False), torch.randn(20, 6), torch.randint(0, 3, (20,))


def stirred(model: nn.Module) -> None:
    """Responses as if they had been learned."""
    for module in model.modules():
        if isinstance(module, Response):
            nn.init.normal_(module.stretch, std=0.3)
            if module.shift is not None:
                nn.init.normal_(module.shift, std=0.3)
