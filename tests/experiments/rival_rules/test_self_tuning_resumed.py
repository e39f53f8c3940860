"""A self-tuned run goes on from its state as if it had never stopped; a rule made anew starts anew."""

import copy
from typing import Any

import pytest
import torch
from helpers.learned_responses import stir_responses
from helpers.small_classifier import cross_entropies, small_classifier
from torch import Tensor, nn

import lbdrop
from experiments.rival_rules.self_tuning import SelfTuning, parameter_groups
from lbdrop import Objective


def test_restart_gives_the_same_measurement_again() -> None:
    torch.manual_seed(0)
    model, x, y = small_classifier()
    rule = SelfTuning(model, [(x[:10], y[:10]), (x[10:], y[10:])], steps=100)
    stir_responses(model)
    evaluation = Objective(model, rule).evaluation(cross_entropies, x, y)

    def slopes() -> Tensor:
        torch.manual_seed(5)
        return rule.look(evaluation)[1]

    rule.restart()
    first = slopes()
    assert not torch.equal(slopes(), first)
    rule.restart()
    assert torch.equal(slopes(), first)


def test_rule_made_anew_starts_anew_and_keeps_the_responses() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=100, plain=0.0, every=4))
    stir_responses(model)
    for _ in range(36):
        objective(cross_entropies, x, y)
    learned = model[3].responses["8"].stretch
    assert model[0].p != pytest.approx(0.1)
    again = SelfTuning(model, [(x, y)], steps=100, plain=0.0, every=4)
    assert model[3].responses["8"].stretch is learned
    assert model[0].p == pytest.approx(0.1)
    assert again.slopes.steps == 0
    assert again.phase == "measuring"


def test_resumed_run_ends_where_an_uninterrupted_one_does() -> None:
    torch.manual_seed(0)
    start, x, y = small_classifier()
    batches, saved = [(x[:10], 2 - y[:10]), (x[10:], 2 - y[10:])], {}

    def made(model: nn.Module) -> tuple[nn.Module, Objective, Any]:
        rule = SelfTuning(model, batches, steps=40, plain=0.25, examples=20)
        return model, Objective(model, rule), torch.optim.Adam(parameter_groups(model, lr=1e-2, rate_lr=1e-2))

    def train(parts: tuple[nn.Module, Objective, Any], epochs: range) -> None:
        _, objective, optimizer = parts
        for epoch in epochs:
            torch.manual_seed(epoch)
            objective.rule.restart()
            for _ in range(4):
                optimizer.zero_grad()
                objective(cross_entropies, x, y).backward()
                optimizer.step()
            saved.setdefault(epoch + 1, [copy.deepcopy(part.state_dict()) for part in parts])

    whole = made(copy.deepcopy(start))
    train(whole, range(10))
    # At the end of warm-up, in the middle of measuring, and when rates are frozen.
    for stopped, phase in ((1, "measuring"), (2, "measuring"), (7, "frozen")):
        resumed = made(small_classifier()[0])
        for part, state in zip(resumed, saved[stopped], strict=True):
            part.load_state_dict(state)
        assert resumed[1].rule.slopes.steps == min(4 * stopped, 16)
        assert resumed[1].rule.phase == phase
        train(resumed, range(stopped, 10))
        for name, value in whole[0].state_dict().items():
            torch.testing.assert_close(resumed[0].state_dict()[name], value, rtol=0, atol=0)


def test_state_with_responses_loads_into_a_model_whose_rule_has_another_example() -> None:
    model, x, y = small_classifier()
    SelfTuning(model, [(x, y)], steps=100)
    stir_responses(model)
    other, _, _ = small_classifier()
    SelfTuning(other, [(x[:2], y[:2])], steps=100)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(x), model.eval()(x))
    assert torch.equal(other[3].responses["8"].shift, model[3].responses["8"].shift)


def test_rates_that_are_off_or_have_no_gradient_stay_so_in_a_resumed_run() -> None:
    def made() -> tuple[nn.Module, Objective]:
        model = nn.Sequential(*(lbdrop.LearnableDropout(rate=rate) for rate in (0.2, 0.005, 0.2)), nn.Linear(6, 3))
        model[1].logit.requires_grad_(False)
        return model, Objective(model, SelfTuning(model, [(x, y)], steps=10_000, plain=0.0))

    _, x, y = small_classifier()
    model, objective = made()
    objective.rule._switch_off([True, False, False])
    other, again = made()
    other.load_state_dict(model.state_dict())
    again.load_state_dict(objective.state_dict())
    again(cross_entropies, x, y).backward()
    assert [layer.p for layer in other[:3]] == pytest.approx([0.0, 0.005, 0.1])
    assert [layer.logit.requires_grad for layer in other[:3]] == [False, False, True]
