"""The first stretch of a self-tuned run: no dropout, no look that counts, rates as they start; and mistakes show at once."""

import pytest
import torch
import torch.nn.functional as F
from helpers.small_self_tuned import crossed, small, stirred
from torch import nn

import lbdrop
from lbdrop import DropoutError, Objective, SelfTuning
from lbdrop.dropout import Scale
from lbdrop.masks import deterministic


@pytest.mark.parametrize("masks", [1, 3])
@pytest.mark.parametrize("scale", ["inverted", "none", "alpha"])
def test_the_first_steps_are_the_deterministic_pass_and_leave_the_rates_alone(scale: Scale, masks: int) -> None:
    dropouts = [lbdrop.LearnableDropout(rate=0.3, scale=scale) for _ in range(2)]
    model = nn.Sequential(dropouts[0], nn.Linear(6, 8), nn.SELU(), dropouts[1], nn.Linear(8, 3))
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=100, start=0.3, masks=masks))
    stirred(model)
    for _ in range(8):  # a fifth of the two fifths that rates have
        model.zero_grad()
        loss = objective(crossed, x, y)
        with torch.no_grad(), deterministic(model):
            torch.testing.assert_close(loss, F.cross_entropy(model(x), y))
        loss.backward()
        assert all(layer.logit.grad is None and layer.logit.requires_grad for layer in dropouts)
        assert model[1].weight.grad.abs().sum() > 0
    assert all(layer.p == pytest.approx(0.3) for layer in dropouts)
    with torch.no_grad(), deterministic(model):
        plain = F.cross_entropy(model(x), y)
    assert abs(objective(crossed, x, y) - plain) > 1e-4  # now masks are drawn


def test_no_look_counts_before_the_first_steps_are_over() -> None:
    model, x, y = small()
    rule = SelfTuning(model, [(x, y)], steps=100, every=1)
    objective, seen = Objective(model, rule), []
    for _ in range(11):
        objective(crossed, x, y).backward()
        seen.append(float(rule.slopes.sums[0, 0]))
    assert seen[:8] == [0.0] * 8
    assert 0 < seen[8] < seen[9] < seen[10]


def test_a_mistake_in_the_held_out_data_shows_in_the_first_step() -> None:
    model, x, y = small()
    objective = Objective(model, SelfTuning(model, [(x, y + 99)], steps=10_000))
    with pytest.raises(IndexError):
        objective(crossed, x, y)
    with pytest.raises(DropoutError, match="held-out"):
        Objective(model, SelfTuning(model, [(x * torch.nan, y)], steps=10_000, example=x))(crossed, x, y)
