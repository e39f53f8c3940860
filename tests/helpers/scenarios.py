"""Small networks whose gradients are known exactly, because all their masks can be enumerated."""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lbdrop import LearnableDropout, masks
from lbdrop.dropout import Scale, learned_layers

Losses = Callable[[nn.Module], Tensor]


def make_dropouts(units: tuple[int, ...], rates: tuple[float, ...], per: str, scale: Scale) -> list[LearnableDropout]:
    """Dropouts with a rate per unit (spread around the given one), per layer, or one for all."""
    layers: list[LearnableDropout] = []
    for count, rate in zip(units, rates, strict=True):
        if per == "unit":
            layer = LearnableDropout(count, rate, scale=scale)
            with torch.no_grad():
                layer.logit += torch.linspace(-0.5, 0.5, count)
        else:
            logit = layers[0].logit if per == "shared" and layers else None
            layer = LearnableDropout(None, rate, scale=scale, logit=logit)
        layers.append(layer.double())
    if per == "shared":
        for layer in layers:
            layer.logit = layers[0].logit
    return layers


class Plain(nn.Module):
    """Two hidden layers with 4 and 3 masks; two of the first layer's units may be dead ReLUs."""

    def __init__(self, per: str, scale: Scale):
        super().__init__()
        self.drop1, self.drop2 = make_dropouts((4, 3), (0.3, 0.6), per, scale)
        self.fc1, self.fc2, self.fc3 = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(torch.relu(self.fc1(x)))
        return self.fc3(self.drop2(torch.tanh(self.fc2(x)))).squeeze(-1)


class Residual(nn.Module):
    """A mask inside a branch, added to what went around it, and another one behind: 10 masks."""

    def __init__(self, per: str, scale: Scale):
        super().__init__()
        self.drop1, self.drop2 = make_dropouts((5, 5), (0.2, 0.5), per, scale)
        self.fc1, self.fc2, self.fc3 = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.fc1(x))
        x = x + self.drop1(torch.sin(self.fc2(x)))
        return self.fc3(self.drop2(torch.tanh(x))).squeeze(-1)


class Normed(nn.Module):
    """BatchNorm behind the mask: in training mode every example's loss depends on every example's mask."""

    def __init__(self, per: str, scale: Scale):
        super().__init__()
        (self.drop1,) = make_dropouts((3,), (0.4,), per, scale)
        self.fc1, self.norm, self.fc2 = nn.Linear(3, 3), nn.BatchNorm1d(4, eps=0.5), nn.Linear(4, 1)
        self.widen = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(torch.tanh(self.fc1(x)))
        return self.fc2(torch.tanh(self.norm(self.widen(x)))).squeeze(-1)


class NormedTwice(nn.Module):
    """Two dropouts with a BatchNorm between them: 8 masks for a batch of two."""

    def __init__(self, per: str, scale: Scale):
        super().__init__()
        self.drop1, self.drop2 = make_dropouts((2, 2), (0.4, 0.3), per, scale)
        self.fc1, self.fc2, self.fc3 = nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 1)
        self.norm = nn.BatchNorm1d(2, eps=0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(torch.tanh(self.fc1(x)))
        return self.fc3(self.drop2(torch.tanh(self.norm(self.fc2(x))))).squeeze(-1)


def squared(x: Tensor, target: float = 1.5) -> Losses:
    return lambda model: (model(x) * 3 - target).pow(2)


def logits_of(model: nn.Module) -> list[Tensor]:
    return list({id(layer.logit): layer.logit for layer in learned_layers(model).values()}.values())


def exact_gradient(model: nn.Module, x: Tensor, units: dict[str, int]) -> Tensor:
    """d/dα E_z of the mean loss, by all masks of one example, or of the whole batch where examples are coupled."""
    coupled = any(isinstance(m, nn.BatchNorm1d) for m in model.modules())
    examples = len(x) if coupled else 1
    layers = learned_layers(model)
    sizes = [examples * count for count in units.values()]
    expected = torch.zeros((), dtype=x.dtype)
    patterns = torch.tensor(list(itertools.product([0.0, 1.0], repeat=sum(sizes))), dtype=x.dtype)
    if coupled:
        for pattern in patterns:
            parts = [p.view(examples, -1) for p in pattern.split(sizes)]
            chance = _chance(layers, dict(zip(units, parts, strict=True)))
            with masks.fixed(model, dict(zip(units, parts, strict=True))):
                expected = expected + chance.sum(0).exp() * squared(x)(model).mean()
    else:
        given = dict(zip(units, patterns.split(sizes, 1), strict=True))
        chance = _chance(layers, given).exp()
        for example in x:
            with masks.fixed(model, given):
                expected = expected + (chance * squared(example.expand(len(patterns), -1))(model)).sum() / len(x)
    return torch.cat([g.flatten() for g in torch.autograd.grad(expected, logits_of(model))])


def _chance(layers: dict[str, LearnableDropout], given: dict[str, Tensor]) -> Tensor:
    """Log-probability of each row of masks."""
    logs = [
        (z * F.logsigmoid(layers[name].logit) + (1 - z) * F.logsigmoid(-layers[name].logit)).sum(1)
        for name, z in given.items()
    ]
    return torch.stack(logs).sum(0)
