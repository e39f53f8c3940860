"""A small converted classifier with two dropouts, data for it, and its losses example by example."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lbdrop
from lbdrop.sites.convert import Per


def small_classifier(rate: float = 0.3, per: Per = "layer") -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(nn.Dropout(rate), nn.Linear(6, 8), nn.ReLU(), nn.Dropout(rate), nn.Linear(8, 3))
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    return lbdrop.convert(model, per=per, example=x[:2] if per == "unit" else None, verbose=False), x, y


def cross_entropies(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")
