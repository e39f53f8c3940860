"""Balanced rates that are settled, taken up again or held in their range, and what the rule refuses."""

import copy
import math
from typing import Any

import pytest
import torch
from helpers.least_squares_with_dropout import over_fitted, squares
from helpers.small_self_tuned import crossed, small
from torch import Tensor, nn

from lbdrop import Balanced, DropoutError, Objective, parameter_groups
from lbdrop.rules.balanced import FIRST, KAPPA, LEAST, MOST

# ---------------------------------------------------------------------------------------------------- settled, resumed


def settled(**options: Any) -> tuple[nn.Module, Objective, Tensor, Tensor]:
    """A rule whose rates are settled after one step, with held-out examples that can be told from the others."""
    model, x, y = small()
    held = [(100 + torch.arange(3.0)[:, None].expand(3, 6), torch.zeros(3, dtype=torch.long))]
    objective = Objective(model, Balanced(model, held, steps=100, share=0.01, start=0.2, **options))
    objective(crossed, x, y)
    return model, objective, x, y


@pytest.mark.parametrize("examples", [None, 7])
def test_held_out_examples_are_given_back_at_their_share_once_rates_are_settled(examples: int | None) -> None:
    model, objective, x, y = settled(examples=examples)
    seen: list[float] = []

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.extend(x[x[:, 0] > 90, 0].tolist())
        assert len(x) == 5
        return crossed(model, x, y)

    for _ in range(10):
        objective(losses, x[:5], y[:5]).backward()
    # 3 of all 10 examples are held out: of 50 that were trained on, 15 are, each as often as the others.
    assert sorted(seen) == ([] if examples is None else sorted([100.0, 101.0, 102.0] * 5))
    assert model[0].p == pytest.approx(0.2)
    assert model[0].logit.grad is None


@pytest.mark.parametrize("stopped", [1, 3, 7])
def test_a_run_taken_up_again_from_its_state_ends_where_it_would_have(stopped: int) -> None:
    torch.manual_seed(0)
    first, x, y = small()
    batches = [(x[:10], 2 - y[:10]), (x[10:], 2 - y[10:])]

    def train(model: nn.Module, optimizer: Any, rule: Balanced, epochs: range) -> None:
        objective = Objective(model, rule)
        for epoch in epochs:
            torch.manual_seed(epoch)
            rule.restart()
            for _ in range(8):
                optimizer.zero_grad()
                objective(crossed, x, y).backward()
                optimizer.step()

    def made(model: nn.Module) -> tuple[Balanced, Any]:
        return Balanced(model, batches, steps=80, examples=20), torch.optim.Adam(parameter_groups(model, lr=3e-2))

    second = copy.deepcopy(first)
    rule, optimizer = made(first)
    train(first, optimizer, rule, range(10))
    assert first[0].p != pytest.approx(FIRST, rel=0.1)
    rule, optimizer = made(second)
    train(second, optimizer, rule, range(stopped))
    third, _, _ = small()
    rule, other = made(third)
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    other.load_state_dict(optimizer.state_dict())
    assert rule.ledger.steps == min(8 * stopped, 32)
    train(third, other, rule, range(stopped, 10))
    for name, value in first.state_dict().items():
        torch.testing.assert_close(third.state_dict()[name], value, rtol=0, atol=0)


def test_rates_that_are_off_stay_off_when_their_state_is_loaded() -> None:
    model, _, x, y = settled()
    model[0].logit.data.fill_(50.0)
    other, _, _ = small()
    other.load_state_dict(model.state_dict())  # into a model that was only converted
    again = Balanced(other, [(x, y)], steps=100)  # they may have been off early
    assert again.ledger.steps == 1
    assert again.settled
    Objective(other, again)(crossed, x, y)
    assert other[0].keep == 1.0
    assert other[3].p == pytest.approx(0.2)


def test_a_look_that_is_not_finite_is_forgotten() -> None:
    model, train, held_out, _ = over_fitted(KAPPA)
    rule = Balanced(model, [held_out], steps=1000, every=1)
    objective = Objective(model, rule, check=False)
    for step in range(12):
        objective(squares, train[0] * (math.inf if step == 8 else 1.0), train[1])
    assert rule.ledger.compared.isfinite().all()
    assert rule.ledger.alone.isfinite().all()
    assert math.isfinite(model[0].p)
    assert rule.ledger.looks == 12


# ------------------------------------------------------------------------------------------------------------ mistakes


def test_held_out_data_that_cannot_serve_are_refused_in_the_first_step() -> None:
    _, x, y = small()
    for held_out, words in (([(x * torch.nan, y)], "of held-out data"), ([], "got none")):
        model, _, _ = small()
        objective = Objective(model, Balanced(model, held_out, steps=10_000))  # long before the first look
        with pytest.raises(DropoutError, match=words):
            objective(crossed, x, y)
        assert torch.isfinite(model[0].logit)
    model, _, _ = small()
    with pytest.raises(DropoutError, match="got no batch"):
        Objective(model, Balanced(model, [(x, y)], steps=10_000))(lambda m: crossed(m, x, y))


def test_held_out_data_that_could_not_be_given_back_are_refused_in_the_first_step() -> None:
    model, x, y = small()
    objective = Objective(model, Balanced(model, [(x, y)], steps=10_000, examples=20))

    def losses(m: nn.Module, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return crossed(m, x, y)

    with pytest.raises(DropoutError, match="want batches like those of training, .* pass examples=None"):
        objective(losses, x, y, torch.ones(20))


def test_held_out_data_that_run_out_are_refused() -> None:
    model, x, y = small()
    objective = Objective(model, Balanced(model, (pair for pair in [(x, y)]), steps=100, every=1))
    with pytest.raises(DropoutError, match="not a generator"):
        for _ in range(3):
            objective(crossed, x, y)


def test_a_run_that_was_made_shorter_than_it_has_gone_settles_at_once() -> None:
    model, x, y = small()
    objective = Objective(model, Balanced(model, [(x, y)], steps=1000))
    for _ in range(60):
        objective(crossed, x, y)
    shorter = Balanced(model, [(x, y)], steps=100)
    assert not shorter.settled
    Objective(model, shorter)(crossed, x, y)
    assert shorter.settled


def test_a_state_from_before_the_rule_can_be_loaded_after_it_was_made() -> None:
    model, x, y = small()
    before = copy.deepcopy(model.state_dict())
    rule = Balanced(model, [(x, y)], steps=100)
    model.load_state_dict(before)
    assert rule.ledger.steps == 0


def test_settings_that_cannot_be_are_refused() -> None:
    model, x, y = small()
    with pytest.raises(DropoutError, match=r"share in \(0, 1\]"):
        Balanced(model, [(x, y)], steps=100, share=0.0)
    with pytest.raises(DropoutError, match=r"steps ≥ 1.*got None, 1, 0"):
        Balanced(model, [(x, y)], steps=0)
    with pytest.raises(DropoutError, match=r"start: want a rate from 0\.001 to 0\.7"):
        Balanced(model, [(x, y)], steps=100, start=0.9)
    with pytest.raises(DropoutError, match="convert"):
        Balanced(nn.Linear(2, 2), [(x, y)], steps=100)
    with pytest.raises(DropoutError, match="want one of them"):
        Objective(model, Balanced(model, [(x, y)], steps=100), held_out=[(x, y)])
    with pytest.raises(DropoutError, match="steps: want how many training steps the run has"):
        Objective(model, held_out=[(x, y)])


def test_no_rate_leaves_its_range() -> None:
    model, train, held_out, _ = over_fitted(KAPPA)
    rule = Balanced(model, [held_out], steps=1000, every=1)
    objective = Objective(model, rule)
    for gap, end in ((1e6, MOST), (-1e6, LEAST)):
        for _ in range(100):
            objective(squares, *train)
            count = rule.ledger.compared[0]
            rule.ledger.compared[2], rule.ledger.compared[4] = gap * count, gap**2 * count
        assert model[0].p == pytest.approx(end)
