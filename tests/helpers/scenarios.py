"""Small networks with exact gradients of their rates: all their masks can be enumerated."""

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
            shared = per == "shared" and bool(layers)
            layer = LearnableDropout(
                None, None if shared else rate, scale=scale, logit=layers[0].logit if shared else None
            )
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
    """A mask inside a branch, added to the branch's input, and another one behind: 10 masks."""

    def __init__(self, per: str, scale: Scale):
        super().__init__()
        self.drop1, self.drop2 = make_dropouts((5, 5), (0.2, 0.5), per, scale)
        self.fc1, self.fc2, self.fc3 = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.fc1(x))
        x = x + self.drop1(torch.sin(self.fc2(x)))
        return self.fc3(self.drop2(torch.tanh(x))).squeeze(-1)


class Normed(nn.Module):
    """A norm between two dropouts, through which each of two examples depends on the masks of the other: 8 masks a pair."""

    def __init__(self, per: str, scale: Scale, norm: nn.Module | None = None):
        super().__init__()
        self.drop1, self.drop2 = make_dropouts((2, 2), (0.4, 0.3), per, scale)
        self.fc1, self.fc2, self.fc3 = nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 1)
        self.norm = norm or PairNorm()

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(torch.tanh(self.fc1(x)))
        return self.fc3(self.drop2(torch.tanh(self.norm(self.fc2(x))))).squeeze(-1)


class PairNorm(nn.Module):
    """To each pair of examples what ``nn.BatchNorm1d`` is to a batch of two."""

    eps = 0.5

    def forward(self, x: Tensor) -> Tensor:
        pairs = x.reshape(-1, 2, x.shape[-1])
        centred = pairs - pairs.mean(1, keepdim=True)
        return (centred * (centred.square().mean(1, keepdim=True) + self.eps).rsqrt()).view_as(x)


def squared(x: Tensor, target: float = 1.5) -> Losses:
    """One loss for each row of ``x``; where a row holds several examples, their mean."""
    return lambda model: (model(x) * 3 - target).pow(2).view(len(x), -1).mean(1)


def logits_of(model: nn.Module) -> list[Tensor]:
    return list({id(layer.logit): layer.logit for layer in learned_layers(model).values()}.values())


def flat_gradient(loss: Tensor, model: nn.Module) -> Tensor:
    """The gradient of all logits in one vector."""
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, logits_of(model))])


def exact_gradient(model: nn.Module, x: Tensor, units: dict[str, int]) -> Tensor:
    """d/dα E_z of the mean loss, by all masks of one row of ``x``."""
    layers, row = learned_layers(model), x.shape[1:-1]
    sizes = [row.numel() * count for count in units.values()]
    patterns = torch.tensor(list(itertools.product([0.0, 1.0], repeat=sum(sizes))), dtype=x.dtype)
    parts = zip(units.items(), patterns.split(sizes, 1), strict=True)
    given = {name: part.view(len(patterns), *row, count) for (name, count), part in parts}
    chance = torch.stack([_log_chance(layers[name].logit, z) for name, z in given.items()]).sum(0).exp()
    expected = torch.zeros((), dtype=x.dtype)
    for example in x:
        with masks.fixed(model, given):
            expected = expected + (chance * squared(example.expand(len(patterns), *example.shape))(model)).sum() / len(
                x
            )
    return flat_gradient(expected, model)


def _log_chance(logit: Tensor, z: Tensor) -> Tensor:
    """Log-probability of each row of masks."""
    return (z * F.logsigmoid(logit) + (1 - z) * F.logsigmoid(-logit)).flatten(1).sum(1)
