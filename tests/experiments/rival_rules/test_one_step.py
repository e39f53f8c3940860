"""The rule that looks one step ahead, against the enumeration of all masks."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lbdrop
from experiments.rival_rules.one_step import OneStep
from lbdrop import masks
from lbdrop.dropout import learned_layers
from lbdrop.errors import DropoutError


def crossed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


@pytest.fixture
def ahead() -> tuple[nn.Module, OneStep, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A network of two inputs and two hidden units after a few steps of Adam, so that momentum is there."""
    net = nn.Sequential(nn.Dropout(0.3), nn.Linear(2, 2), nn.Tanh(), nn.Dropout(0.4), nn.Linear(2, 2))
    model = lbdrop.convert(net, verbose=False).double()
    batch = torch.randn(3, 2).double(), torch.tensor([0, 1, 1])
    held_out = torch.randn(5, 2).double(), torch.tensor([0, 1, 0, 1, 1])
    rule = OneStep(model, [held_out], every=1)
    optimizer = torch.optim.Adam(lbdrop.parameter_groups(model, 0.01, lr=0.05))
    rule.follow(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        rule(crossed, *batch).backward()
        optimizer.step()
    return model, rule, batch, held_out


def moved(
    weights: dict[str, nn.Parameter], tangents: dict[str, Tensor], by: float, losses: Callable[[], Tensor]
) -> Tensor:
    with torch.no_grad():
        for name, t in tangents.items():
            weights[name].add_(by * t)
        found = losses()
        for name, t in tangents.items():
            weights[name].sub_(by * t)
    return found


def test_one_step_slopes_are_those_of_the_enumerated_expectation(ahead: Any) -> None:
    model, rule, (x, y), held_out = ahead
    tangents = rule.tangents(crossed, held_out)
    first, second = learned_layers(model).values()

    def expected() -> float:
        """E f over all 16 masks, by central differences along the tangents; no code of the rule's."""
        total, keeps = torch.zeros(()).double(), [float(layer.keep.detach()) for layer in (first, second)]
        for z in itertools.product([0.0, 1.0], repeat=4):
            chance = math.prod(k if v else 1 - k for k, v in zip([keeps[0]] * 2 + [keeps[1]] * 2, z, strict=True))
            parts = {"0": torch.tensor(z[:2]).double(), "3": torch.tensor(z[2:]).double()}
            with masks.fixed(model, parts):
                up, down = (moved(rule.weights, tangents, h, lambda: crossed(model, x, y)) for h in (1e-4, -1e-4))
            total = total - chance * (up - down).mean() / 2e-4
        return float(total)

    slopes = []
    for layer in (first, second):
        ends = []
        for h in (1e-3, -2e-3):
            layer.logit.data += h
            ends.append(expected())
        layer.logit.data += 1e-3
        slopes.append((ends[0] - ends[1]) / 2e-3)
    many = tuple(part.repeat_interleave(400, 0) for part in (x, y))
    draws = torch.stack([torch.stack(rule.slopes(crossed, many)) for _ in range(25)])
    error = draws.std(0) / len(draws) ** 0.5
    assert (error < 0.3 * torch.tensor(slopes).abs().max()).all()  # else the test would say nothing
    assert ((draws.mean(0) - torch.tensor(slopes)).abs() < 4 * error).all()


def test_tangents_are_orthogonal_to_the_momentum(ahead: Any) -> None:
    _, rule, _, held_out = ahead
    assert rule.optimizer is not None
    along = sum(
        float((t * rule.optimizer.state[rule.weights[name]]["exp_avg"]).sum())
        for name, t in rule.tangents(crossed, held_out).items()
    )
    size = sum(float(t.abs().sum()) for t in rule.tangents(crossed, held_out).values())
    assert abs(along) < 1e-9 * size


def test_weights_get_the_training_gradient_alone(ahead: Any) -> None:
    model, rule, batch, _ = ahead
    torch.manual_seed(5)
    plain = torch.autograd.grad(crossed(model, *batch).mean(), list(rule.weights.values()))
    torch.manual_seed(5)
    for parameter in model.parameters():
        parameter.grad = None
    rule(crossed, *batch).backward()
    for expected, weight in zip(plain, rule.weights.values(), strict=True):
        torch.testing.assert_close(weight.grad, expected)
    assert all(bool(logit.grad.abs() > 0) for logit in rule.logits)


def test_optimiser_other_than_adam_is_refused(ahead: Any) -> None:
    model, rule, _, _ = ahead
    with pytest.raises(DropoutError, match="want Adam.*got SGD"):
        rule.follow(torch.optim.SGD(model.parameters()))
