"""The optimiser and the mode that a model is trained with: what would go wrong in silence is said once."""

import gc
import warnings

import pytest
import torch
from helpers.small_classifier import cross_entropies, small_classifier
from torch import nn

import lbdrop
from lbdrop import Balanced, Objective, parameter_groups
from lbdrop.guards.optimizers import _watching


def train(model: nn.Module, objective: Objective, optimizer: torch.optim.Optimizer, x, y, steps: int = 5) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        objective(cross_entropies, x, y).backward()
        optimizer.step()


def test_optimizer_without_the_rates_is_warned_of_once_and_their_layers_named() -> None:
    model, x, y = small_classifier()
    weights = [p for name, p in model.named_parameters() if not name.endswith("logit")]
    with pytest.warns(UserWarning, match="got none with '0', '3': these stay what they are") as said:
        train(model, Objective(model, examples=20), torch.optim.Adam(weights), x, y)
    assert len(said) == 1


def test_rates_with_weight_decay_are_warned_of_once_and_named() -> None:
    model, x, y = small_classifier()
    with pytest.warns(UserWarning, match="without weight decay, .* got '0', '3' in a group") as said:
        train(model, Objective(model, examples=20), torch.optim.AdamW(model.parameters()), x, y)
    assert len(said) == 1


def test_rates_in_an_optimizer_of_their_own_or_moved_by_the_rule_are_not_warned_of() -> None:
    for held_out in (False, True):
        model, x, y = small_classifier()
        rule = Balanced(model, [(x, y)], steps=100) if held_out else None
        objective = Objective(model, rule, examples=None if held_out else 20)
        weights, rates = (torch.optim.SGD(group["params"], lr=0.01) for group in parameter_groups(model))
        for _ in range(5):
            objective(cross_entropies, x, y).backward()
            weights.step()
            if not held_out:
                rates.step()


def test_optimizers_are_watched_for_a_few_steps_alone_and_no_model_is_kept_alive() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, examples=20)
    train(model, objective, torch.optim.Adam(parameter_groups(model)), x, y)
    assert not _watching
    objective = Objective(small_classifier()[0], examples=20)
    objective(cross_entropies, x, y).backward()
    assert len(_watching) == 1
    del objective
    gc.collect()
    assert not _watching


def test_training_in_eval_mode_is_warned_of_once_and_a_part_in_eval_mode_is_not() -> None:
    model, x, y = small_classifier()
    model.eval()
    objective = Objective(model, examples=20)
    with pytest.warns(UserWarning, match="got one in eval mode, as from_pretrained returns it") as said:
        train(model, objective, torch.optim.Adam(parameter_groups(model)), x, y)
    assert len(said) == 1
    model[0].train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Objective(model, examples=20)(cross_entropies, x, y)


def test_last_has_the_numbers_of_a_step() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, examples=20)
    loss = objective(cross_entropies, x, y)
    last = objective.last
    assert last["loss"] == pytest.approx(float(loss.detach()))
    assert last["plain_loss"] + last["kl"] == pytest.approx(last["loss"])
    assert last["rates/0"] == pytest.approx(model[0].p)
    followed = Objective(lbdrop.convert(nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 3)), verbose=False), held_out=[(x, y)],
                         steps=100)  # fmt: skip
    for _ in range(3):
        followed(cross_entropies, x, y)
    last = followed.last
    assert last["held_out_loss"] - last["plain_loss"] == pytest.approx(last["gap"], abs=1e-6)
    assert set(last) == {"loss", "plain_loss", "held_out_loss", "gap", "cost", "rates/0"}
