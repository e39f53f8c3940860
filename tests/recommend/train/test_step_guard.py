"""A training step with NaN or infinity is named in an error, and changes no parameter."""

import math
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from helpers.small_recommender import likes, recommender
from helpers.states import assert_unchanged, state
from torch import Tensor

from lbdrop import DropoutError
from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.fit import fit as fit_recommender
from lbdrop.recommend.train.loop import launch
from lbdrop.recommend.train.row_objective import Losses, RowObjective
from lbdrop.recommend.train.step_guard import StepGuard


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_nan_in_training_names_the_step_and_leaves_the_model_unchanged(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls, before = RowObjective.__call__, [], []

    def with_nan(self: RowObjective, *arguments: Any) -> Losses:
        found = original(self, *arguments)
        calls.append(0)
        if len(calls) != 7:  # steps are 5 an epoch
            return found
        before.append(state(self.model))
        weight = self.model.decoder.out.weight
        wrong = found.total * math.nan if what == "loss" else found.total + (weight * 0).square().sum().sqrt()
        return found._replace(total=wrong)

    monkeypatch.setattr(RowObjective, "__call__", with_nan)
    model = recommender()
    first = "masks.logit" if what == "loss" else "decoder.out.weight"
    with pytest.raises(DropoutError, match=rf"{what} is nan \(nll .*: step 2 of epoch 2; gradients of {first}"):
        fit_recommender(model, likes(), device="cpu", progress=False)
    assert len(calls) == 7
    assert_unchanged(model, before[0])


def test_bad_step_and_all_later_steps_change_nothing_without_waiting_for_the_device() -> None:
    model = recommender()
    optimizer = torch.optim.Adam(model.parameters(), 0.1, fused=True)
    guard, rows = StepGuard(model, optimizer, torch.device("cpu")), Rows.from_csr(likes())
    guard.begin(4)
    objective = RowObjective(model)
    seen = []
    for step in range(6):
        if step == 4:
            guard.begin_sums()  # the sums restart, the bad step stays
        found = objective(rows.batch(range(8)), 0.1)
        (found.total * (math.nan if step == 3 else 1.0)).backward()
        guard.raise_if_broken, really = lambda: None, guard.raise_if_broken  # as on a GPU, where nobody asks at once
        guard.record(found)
        guard.raise_if_broken = really
        optimizer.step()
        optimizer.zero_grad()
        seen.append(state(model))
        if step < 3:
            guard.poll()
    stays = [a["decoder.out.weight"].equal(b["decoder.out.weight"]) for a, b in pairwise(seen)]
    assert stays == [False, False, True, True, True]
    guard.poll()
    with pytest.raises(DropoutError, match="gradient is nan .*: step 4 of epoch 4"):
        guard.poll()


@pytest.mark.parametrize("step", [3, 5], ids=["in the middle", "last"])
def test_nan_in_an_unchecked_table_is_found_by_the_next_loss_or_at_the_end_of_the_epoch(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = RowObjective.__call__, []

    def with_nan(self: RowObjective, *arguments: Any) -> Losses:
        found = original(self, *arguments)
        calls.append(0)
        weight = self.model.decoder.out.weight
        overflow = (weight * 0).square().sum().sqrt()  # of value 0, and no gradient
        return found._replace(total=found.total + overflow) if len(calls) == step else found

    monkeypatch.setattr(RowObjective, "__call__", with_nan)
    monkeypatch.setattr("lbdrop.recommend.train.loop.StepGuard", partial(StepGuard, tables=False))  # as on a GPU
    messages = {
        3: "step 4 of epoch 1; not finite before it: decoder.out.weight",
        5: "NaN or infinity in decoder.out.weight after epoch 1, though all losses were finite",
    }
    with pytest.raises(DropoutError, match=messages[step]):
        fit_recommender(recommender(), likes(), device="cpu", progress=False)


def test_nan_in_a_backward_pass_changes_nothing_even_without_checks_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls, before = VAE.decoded_nll, [], []

    def with_nan(self: VAE, eta: Tensor, *arguments: Any, **named: Any) -> Tensor:
        calls.append(0)
        if len(calls) == 3:
            before.append(state(self))
            eta = eta + (eta * 0).square().sum().sqrt()  # the gradient is NaN from here on
        return original(self, eta, *arguments, **named)

    monkeypatch.setattr(VAE, "decoded_nll", with_nan)
    monkeypatch.setattr("lbdrop.recommend.train.loop.StepGuard", partial(StepGuard, tables=False))
    model = recommender("vae-drop")
    with pytest.raises(DropoutError, match="gradient is nan .*: step 3 of epoch 1; gradients of"):
        fit_recommender(model, likes(), device="cpu", progress=False)
    assert_unchanged(model, before[0])


def test_half_precision_parameters_are_an_error() -> None:
    with pytest.raises(DropoutError, match="precision: want 'bf16-mixed', '32-true' or '64-true', got 'bf16-true'"):
        launch("cpu", "bf16-true")
