"""Frozen rates stay, masks are drawn at them, and held-out examples are released to training at their share."""

from typing import Any

import pytest
import torch
from helpers.small_classifier import cross_entropies, small_classifier
from torch import Tensor, nn

from experiments.rival_rules.self_tuning import SelfTuning
from lbdrop import DropoutError, Objective


def frozen(**options: Any) -> tuple[nn.Module, Objective, Tensor, Tensor]:
    """A rule whose rates are frozen after one step, with held-out examples that can be told from the others."""
    model, x, y = small_classifier()
    held = [(100 + torch.arange(3.0)[:, None].expand(3, 6), torch.zeros(3, dtype=torch.long))]
    objective = Objective(model, SelfTuning(model, held, steps=100, share=0.01, **options))
    objective(cross_entropies, x, y)
    return model, objective, x, y


@pytest.mark.parametrize("examples", [None, 7])
def test_held_out_examples_are_released_at_their_share_once_rates_are_frozen(examples: int | None) -> None:
    _, objective, x, y = frozen(examples=examples)
    seen: list[float] = []
    batches = []

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.extend(x[x[:, 0] > 90, 0].tolist())
        batches.append(len(x))
        return cross_entropies(model, x, y)

    for _ in range(10):
        objective(losses, x[:5], y[:5])
    assert set(batches) == {5}
    # 3 of all 10 examples are held out: of 50 that were trained on, 15 are, each as often as the others.
    assert sorted(seen) == ([] if examples is None else sorted([100.0, 101.0, 102.0] * 5))


def test_frozen_rates_stay_and_masks_are_drawn_at_them() -> None:
    model, objective, x, y = frozen()
    assert objective.rule.phase == "frozen"
    seen = []
    model[3].register_forward_hook(lambda layer, inputs, output: seen.append(layer.offsets))
    for _ in range(3):
        objective(cross_entropies, x, y).backward()
    assert seen == [None] * len(seen)
    assert len(seen) >= 3
    assert model[0].p == pytest.approx(0.1)
    assert model[0].logit.grad is None
    assert model[3].responses["8"].stretch.grad is None


def test_held_out_examples_unlike_the_others_cannot_be_released() -> None:
    _, objective, x, y = frozen(examples=7)
    with pytest.raises(DropoutError, match="want batches like those of training, .* pass examples=None"):
        for _ in range(3):
            objective(lambda m, x, y, w: cross_entropies(m, x, y), x, y, y)
