"""A self-tuned run taken up again, by a rule made anew or from its state, goes on as if it had never stopped."""

import copy
from typing import Any

import pytest
import torch
from helpers.small_self_tuned import crossed, small, stirred
from torch import Tensor, nn

from lbdrop import Objective, SelfTuning, parameter_groups
from lbdrop.objective import _Batch


def test_a_restart_gives_the_same_look_again() -> None:
    torch.manual_seed(0)
    model, x, y = small()
    rule = SelfTuning(model, [(x[:10], y[:10]), (x[10:], y[10:])], steps=100)
    stirred(model)
    batch = _Batch(Objective(model, rule), crossed, (x, y))

    def slopes() -> Tensor:
        torch.manual_seed(5)
        return rule.look(batch)[1]

    rule.restart()
    first = slopes()
    assert not torch.equal(slopes(), first)
    rule.restart()
    assert torch.equal(slopes(), first)


def test_a_rule_made_anew_goes_on_with_what_was_learned() -> None:
    model, x, y = small()
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=100, plain=0.0, every=4))
    stirred(model)
    for _ in range(36):
        objective(crossed, x, y)
    before, rate = model[3].responses["8"].stretch, model[0].p
    assert rate != pytest.approx(0.1)
    again = SelfTuning(model, [(x, y)], steps=100, plain=0.0, every=4)
    assert model[3].responses["8"].stretch is before
    assert again.slopes.steps == 36
    assert not again.settled
    assert model[0].p == rate


@pytest.mark.parametrize("stopped", [1, 3, 7])
def test_a_run_taken_up_again_from_its_state_ends_where_it_would_have(stopped: int) -> None:
    torch.manual_seed(0)
    first, x, y = small()
    batches = [(x[:10], y[:10]), (x[10:], y[10:])]

    def train(model: nn.Module, optimizer: Any, rule: SelfTuning, epochs: range) -> None:
        objective = Objective(model, rule)
        for epoch in epochs:
            torch.manual_seed(epoch)
            rule.restart()
            for _ in range(8):
                optimizer.zero_grad()
                objective(crossed, x, y).backward()
                optimizer.step()

    def made(model: nn.Module) -> tuple[SelfTuning, Any]:
        rule = SelfTuning(model, batches, steps=80, plain=0.25, examples=20)  # the first epoch is without dropout
        return rule, torch.optim.Adam(parameter_groups(model, lr=1e-2, rate_lr=1e-2))

    second = copy.deepcopy(first)
    rule, optimizer = made(first)
    train(first, optimizer, rule, range(10))
    rule, optimizer = made(second)
    train(second, optimizer, rule, range(stopped))
    third, _, _ = small()
    rule, other = made(third)
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    other.load_state_dict(optimizer.state_dict())
    assert rule.slopes.steps == min(8 * stopped, 32)
    train(third, other, rule, range(stopped, 10))
    for name, value in first.state_dict().items():
        torch.testing.assert_close(third.state_dict()[name], value, rtol=0, atol=0)


def test_a_self_tuned_state_loads_into_a_model_that_was_only_converted() -> None:
    model, x, y = small()
    SelfTuning(model, [(x, y)], steps=100)
    stirred(model)
    other, _, _ = small()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(x), model.eval()(x))
    assert torch.equal(other[3].responses["8"].shift, model[3].responses["8"].shift)
