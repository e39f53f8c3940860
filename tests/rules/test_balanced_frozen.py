"""Balanced noise with frozen rates: held-out examples are released; and what the rule refuses."""

import math
from typing import Any

import pytest
import torch
from helpers.least_squares_with_dropout import over_fitted, squares
from helpers.small_classifier import cross_entropies, small_classifier
from torch import Tensor, nn

import lbdrop
from lbdrop import Balanced, DropoutError, Objective
from lbdrop.rules.balanced import CONSTANTS as C

# -------------------------------------------------------------------------------------------------------------- frozen


def frozen(start: float = 0.2, **options: Any) -> tuple[nn.Module, Objective, Tensor, Tensor]:
    """A rule whose rates are frozen after one step, with held-out examples that can be told from the others."""
    model, x, y = small_classifier()
    held = [(100 + torch.arange(3.0)[:, None].expand(3, 6), torch.zeros(3, dtype=torch.long))]
    rule = Balanced(model, held, steps=100, share=0.01, start=start, **options)
    rule.gate.open()
    objective = Objective(model, rule)
    objective(cross_entropies, x, y)
    return model, objective, x, y


@pytest.mark.parametrize("examples", [None, 7])
def test_held_out_examples_are_released_at_their_share_once_rates_are_frozen(examples: int | None) -> None:
    model, objective, x, y = frozen(examples=examples)
    seen: list[float] = []

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.extend(x[x[:, 0] > 90, 0].tolist())
        assert len(x) == 5
        return cross_entropies(model, x, y)

    for _ in range(10):
        objective(losses, x[:5], y[:5]).backward()
    # 3 of all 10 examples are held out: of 50 that were trained on, 15 are, each as often as the others.
    assert sorted(seen) == ([] if examples is None else sorted([100.0, 101.0, 102.0] * 5))
    assert model[0].p == pytest.approx(0.2)
    assert model[0].logit.grad is None


def test_rate_below_the_smallest_is_off_when_frozen_and_one_that_never_moved_is_not() -> None:
    model, x, y = small_classifier()
    model[3].logit.requires_grad_(False)
    objective = Objective(model, Balanced(model, [(x, y)], steps=100, share=0.01, start=0.015))
    objective(cross_entropies, x, y)
    assert model[0].keep == 1.0
    assert model[3].p == pytest.approx(0.3)


def test_rates_that_are_off_stay_off_when_their_state_is_loaded() -> None:
    model, objective, x, y = frozen(start=0.015)
    resumed, _, _ = small_classifier()
    again = Objective(resumed, Balanced(resumed, [(x, y)], steps=100))
    resumed.load_state_dict(model.state_dict())
    again.load_state_dict(objective.state_dict())
    again(cross_entropies, x, y)
    assert again.rule.phase == "frozen"
    assert [resumed[0].keep, resumed[3].keep] == [1.0, 1.0]
    assert not any(layer.logit.requires_grad for layer in (resumed[0], resumed[3]))


def test_measurement_that_is_not_finite_is_forgotten() -> None:
    model, train, held_out, _ = over_fitted(C.cost_share)
    rule = Balanced(model, [held_out], steps=1000, every=1)
    objective = Objective(model, rule, check=False)
    for step in range(12):
        objective(squares, train[0] * (math.inf if step == 8 else 1.0), train[1])
    assert rule.measurements.sums.isfinite().all()
    assert rule.measurements.alone.isfinite().all()
    assert math.isfinite(model[0].p)
    assert rule.measurements.count == 12


# ------------------------------------------------------------------------------------------------------------ mistakes


def test_held_out_data_without_finite_losses_or_batches_are_refused_in_the_first_step() -> None:
    _, x, y = small_classifier()
    for held_out, message in (([(x * torch.nan, y)], "of held-out data"), ([], "got none")):
        model, _, _ = small_classifier()
        objective = Objective(model, Balanced(model, held_out, steps=10_000))  # long before the first measurement
        with pytest.raises(DropoutError, match=message):
            objective(cross_entropies, x, y)
        assert torch.isfinite(model[0].logit)
    model, _, _ = small_classifier()
    with pytest.raises(DropoutError, match="got no batch"):
        Objective(model, Balanced(model, [(x, y)], steps=10_000))(lambda m: cross_entropies(m, x, y))


def test_held_out_data_that_could_not_be_released_are_refused_in_the_first_step() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, Balanced(model, [(x, y)], steps=10_000, examples=20))

    def losses(m: nn.Module, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return cross_entropies(m, x, y)

    with pytest.raises(DropoutError, match="want batches like those of training, .* pass examples=None"):
        objective(losses, x, y, torch.ones(20))


def test_held_out_data_that_run_out_are_refused() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, Balanced(model, (pair for pair in [(x, y)]), steps=100, every=1))
    with pytest.raises(DropoutError, match="not a generator"):
        for _ in range(3):
            objective(cross_entropies, x, y)


def test_run_made_shorter_than_it_has_gone_freezes_at_once() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, held_out=[(x, y)], steps=1000)
    for _ in range(60):
        objective(cross_entropies, x, y)
    shorter = Objective(model, held_out=[(x, y)], steps=100)
    with pytest.warns(UserWarning, match="want steps=1000, as the saved run had, got 100"):
        shorter.load_state_dict(objective.state_dict())
    assert shorter.rule.phase == "measuring"
    shorter(cross_entropies, x, y)
    assert shorter.rule.phase == "frozen"


def test_state_of_an_earlier_version_loads_with_a_notice() -> None:
    model, _, _ = small_classifier()
    state = model.state_dict() | {
        "0.ledger._extra_state": torch.zeros(15),
        "0.unit_prices._extra_state": torch.zeros(3),
    }
    state["0.logit"] = torch.tensor(1.5)
    with pytest.warns(UserWarning, match=r"what a rule had measured.* predicts as it did, but its training cannot be"):
        model.load_state_dict(state)
    assert model[0].logit.item() == 1.5


def test_state_of_another_rule_or_conversion_is_refused() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, held_out=[(x, y)], steps=100)
    with pytest.raises(DropoutError, match="with the rule Balanced, got Bound; make the objective with the rule"):
        objective.load_state_dict(Objective(model, examples=9).state_dict())
    with pytest.raises(DropoutError, match="with the rule Balanced, got another kind of state"):
        objective.load_state_dict(model.state_dict())
    other = nn.Sequential(lbdrop.LearnableDropout(4), nn.Linear(4, 3))
    with pytest.raises(
        DropoutError,
        match=r"want that of 2 rates of which \[0, 1\] move, \[\] with several units, got 1, \[0\] and \[0\]",
    ):
        objective.load_state_dict(Objective(other, held_out=[(x, y)], steps=100).state_dict())
    model[0].logit.requires_grad_(False)  # as rates of a model are whose run has ended
    with pytest.raises(
        DropoutError,
        match=r"want that of 2 rates of which \[1\] move, .* got 2, \[0, 1\] and \[\]; convert the model and set requires_grad",
    ):
        Objective(model, held_out=[(x, y)], steps=100).load_state_dict(objective.state_dict())


def test_impossible_settings_are_refused() -> None:
    model, x, y = small_classifier()
    with pytest.raises(DropoutError, match=r"share in \(0, 1\]"):
        Balanced(model, [(x, y)], steps=100, share=0.0)
    with pytest.raises(DropoutError, match=r"steps ≥ 1.*got None, 1, 0"):
        Balanced(model, [(x, y)], steps=0)
    with pytest.raises(DropoutError, match=r"start: want a rate from 0\.001 to 0\.7"):
        Balanced(model, [(x, y)], steps=100, start=0.9)
    with pytest.raises(DropoutError, match="convert"):
        Balanced(nn.Linear(2, 2), [(x, y)], steps=100)


# ------------------------------------------------------------------------------------------------------------ warnings


def calls(objective: Objective, losses: Any, batch: tuple[Tensor, Tensor], count: int) -> None:
    for _ in range(count):
        objective(losses, *batch)


def test_more_calls_than_steps_are_warned_of_once() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, Balanced(model, [(x, y)], steps=5))
    calls(objective, cross_entropies, (x, y), 5)
    with pytest.warns(UserWarning, match="want 5 calls of the objective, as steps= said, got one more") as said:
        calls(objective, cross_entropies, (x, y), 3)
    assert len(said) == 1


def test_held_out_loss_that_rises_after_the_rates_is_warned_of() -> None:
    model, train, held_out, _ = over_fitted(C.cost_share, copies=8)
    x, y = held_out
    later = [held_out]
    objective = Objective(model, Balanced(model, later, steps=400, every=1))
    calls(objective, squares, train, 100)
    later[0] = x, y + 2
    with pytest.warns(UserWarning, match="held-out loss has risen from .* to .* since rates rose"):
        calls(objective, squares, train, 60)
