"""Rates stay in the range in which they have a gradient, and nothing overflows at its edge."""

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lbdrop import ConcreteDropout, GaussianDropout, LearnableDropout, Objective, estimators
from lbdrop.dropout import FURTHEST_LOGIT, NoiseLayer
from lbdrop.guards.logit_range import clamp_logits
from lbdrop.masks import Held, use
from lbdrop.step import Step


def logits_after(kind: type[NoiseLayer], sign: float, turn: int = 40, steps: int = 80) -> tuple[float, float]:
    """The logit after ``turn`` steps of an objective that drives it one way, and after the rest, which drive it back."""
    torch.manual_seed(0)
    layer = kind(None, 0.5, scale="none")
    settings = {"estimator": "double-cv-4"} if layer.estimated else {}
    objective, x = Objective(nn.Sequential(layer, nn.Flatten()), examples=1_000_000, **settings), torch.ones(64, 4)
    optimizer = torch.optim.Adam([layer.logit], 0.5, betas=(0.8, 0.8))
    logits = []
    for step in range(steps):
        now = sign if step < turn else -sign
        optimizer.zero_grad()
        objective(lambda m, now=now: -now * m(x).sum(1)).backward()
        optimizer.step()
        logits.append(float(layer.logit.detach()))
    return logits[turn - 1], logits[-1]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("kind", [LearnableDropout, ConcreteDropout])
def test_rate_at_its_edge_comes_back_when_the_objective_turns(kind: type[NoiseLayer], sign: float) -> None:
    edge, last = logits_after(kind, sign)
    assert abs(edge) == pytest.approx(FURTHEST_LOGIT, abs=0.6)  # one step beyond, at most
    assert last * sign < -2


def test_rate_without_a_range_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbdrop.objective.clamp_logits", lambda layers: None)
    edge, last = logits_after(LearnableDropout, 1.0, turn=80, steps=110)
    assert edge > FURTHEST_LOGIT + 1
    assert last > -2


def test_variance_below_its_bound_comes_back() -> None:
    layer = GaussianDropout(None, 0.4)
    model = nn.Sequential(layer, nn.Linear(4, 1))
    objective, x = Objective(model, examples=1_000_000), torch.ones(32, 4)
    layer.logit.data.fill_(-5.0)  # far below the bound, where the variance has no gradient
    optimizer = torch.optim.SGD([layer.logit], 1.0)
    for _ in range(20):
        optimizer.zero_grad()
        objective(lambda m: 10 * (m(x) - m[1](x)).square().sum(1)).backward()  # noise alone
        optimizer.step()
    assert float(layer.logit.detach()) > 0.1


@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "bfloat16 parameters"])
def test_training_at_extreme_rates_stays_finite_in_bfloat16(autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand steps of ten copies of a layer, with the estimator and the optimiser, without the engine."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # its checks would take most of the time
    copies, edge = 10, FURTHEST_LOGIT  # inverted scaling multiplies what is kept at .001 by a thousand
    units = 4 * copies
    layer, head = LearnableDropout(units), nn.Linear(units, 2 * copies)
    if not autocast:
        layer, head = layer.bfloat16(), head.bfloat16()
    layer.logit.data.copy_(torch.tensor([-edge, -edge, edge, edge]).repeat(copies))
    optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=1e-3)
    x, y = torch.randn(6, units).to(head.weight.dtype), torch.arange(6) % 2
    with use(layer, Held()):  # inside a context: gradients reach the rate through 1/keep too
        for _ in range(1_000):
            clamp_logits([layer])
            step = Step({"": layer}, estimators.get("disarm"), None)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                output = head(layer.masked(x, step.draw(layer, (6, units), x)))
                flat = output.float().view(12 * copies, 2)
                losses = F.cross_entropy(flat, y.repeat_interleave(copies).repeat(2), reduction="none")
            losses = losses.view(2, 6, copies).sum(2)
            step.weigh(losses).mean().backward()
            step.release()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.isfinite(losses).all()
    assert all(torch.isfinite(p).all() for p in (*layer.parameters(), *head.parameters()))
    assert layer.rate.min() < 0.02
    assert layer.rate.max() > 0.98
