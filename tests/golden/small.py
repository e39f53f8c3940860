"""Small models, data and training loops of the golden recipes."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lbdrop
from experiments.rival_rules.self_tuning import parameter_groups
from lbdrop.dropout import noise_layers

from .records import Numbers

Batch = tuple[Tensor, Tensor]
CLASSES = 3


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def examples(count: int, *shape: int, seed: int = 0) -> Batch:
    """Inputs of which the first feature says something about the class; three labels in ten are noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *shape, generator=generator)
    noise = torch.randint(0, CLASSES, (count,), generator=generator)
    signal = (x.flatten(1)[:, 0] * 1.5 + 1.5).long().clamp(0, CLASSES - 1)
    return x, torch.where(torch.rand(count, generator=generator) < 0.3, noise, signal)


def cut(data: Batch, size: int) -> list[Batch]:
    return list(zip(data[0].split(size), data[1].split(size), strict=True))


def mlp(rate: float = 0.3) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Dropout(rate), nn.Linear(16, 12), nn.ReLU(), nn.Dropout(rate), nn.Linear(12, CLASSES)
    )  # fmt: skip


def selu() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.SELU(), nn.AlphaDropout(0.2), nn.Linear(16, CLASSES))


def normed() -> nn.Module:
    """BatchNorm behind a dropout: in training mode the loss of one example depends on the masks of others.

    No bias before it: its gradient is rounding alone, which Adam makes as large as any other.
    """
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(12, CLASSES),
    )  # fmt: skip


def conv() -> nn.Module:
    """For inputs (batch, 2, 6, 6)."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.2), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Dropout2d(0.2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, CLASSES),
    )  # fmt: skip


class Recurrent(nn.Module):
    """For inputs (batch, time, 4)."""

    def __init__(self, rate: float = 0.3):
        super().__init__()
        self.lstm = nn.LSTM(4, 8, num_layers=2, dropout=rate, batch_first=True)
        self.drop = nn.Dropout(rate)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.lstm(x)[0][:, -1]))


class Transformer(nn.Module):
    """For inputs (batch, time, 8)."""

    def __init__(self, rate: float = 0.2):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, rate, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.encoder(x).mean(1))


def convert(model: nn.Module, data: Batch, **options: Any) -> nn.Module:
    example = data[0][:2] if options.get("per") == "unit" else None
    return lbdrop.convert(model, example=example, verbose=False, **options)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameter_groups(model, 0.05, lr=0.01))


def train(
    objective: Callable[..., Tensor], optimizer: torch.optim.Optimizer, batches: list[Batch], steps: range
) -> list[float]:
    """The loss of each step; batches are gone through again and again in their order."""
    found = []
    for step in steps:
        optimizer.zero_grad()
        loss = objective(losses, *batches[step % len(batches)])
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def state(model: nn.Module) -> Numbers:
    """Logits in full, and of every other tensor the sum and the sum of absolute values."""
    logits: Numbers = {}
    seen: set[int] = set()
    for name, layer in noise_layers(model).items():
        if id(layer.logit) not in seen:
            logits[f"logit {name}"] = layer.logit.detach().flatten().tolist()
            seen.add(id(layer.logit))
    weights = parameter_groups(model)[0]["params"]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    running = [t for m in norms for t in (m.running_mean, m.running_var) if t is not None]
    sums = [s for t in (*weights, *running) for s in sums_of(t)]
    return logits | {"weights": sums}


def sums_of(values: Tensor) -> tuple[float, float]:
    values = values.detach().double()
    return float(values.sum()), float(values.abs().sum())


def trained(
    model: nn.Module, objective: Callable[..., Tensor], data: Batch, *, steps: int, batch: int = 16, keep: int = 1
) -> Numbers:
    """Train, and record every ``keep``-th loss, the mean rates then, and the model's state at the end."""
    optimizer, batches = adam(model), cut(data, batch)
    layers = noise_layers(model).values()
    found, rates = [], []
    for step in range(steps):
        found += train(objective, optimizer, batches, range(step, step + 1))
        if step % keep == keep - 1:
            rates += [float(layer.rate.mean()) for layer in layers]
    return {"losses": [*found[:-1:keep], found[-1]], "rates": rates, **state(model)}


def named(prefix: str, numbers: Numbers) -> Numbers:
    return {f"{prefix}: {key}": values for key, values in numbers.items()}
