"""The recommender's loop: a step whose numbers are none is named, and changes nothing."""

import math
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from helpers.small_recommender import assert_unchanged, likes, recommender, state
from torch import Tensor

from lbdrop import DropoutError
from lbdrop.recommend.loop import launch
from lbdrop.recommend.rows import Rows
from lbdrop.recommend.step_guard import StepWatch
from lbdrop.recommend.train import fit as fit_recommender
from lbdrop.recommend.vae import VAE, Losses


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_the_recommenders_loop_names_the_step_and_leaves_the_model_as_it_was_before(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls, before = VAE.losses, [], []

    def spoiled(self: VAE, *arguments: Any) -> Losses:
        found = plain(self, *arguments)
        calls.append(0)
        if len(calls) != 7:  # steps are 5 an epoch
            return found
        before.append(state(self))
        weight = self.decoder.out.weight
        wrong = found.total * math.nan if what == "loss" else found.total + (weight * 0).square().sum().sqrt()
        return found._replace(total=wrong)

    monkeypatch.setattr(VAE, "losses", spoiled)
    model = recommender()
    first = "masks.logit" if what == "loss" else "decoder.out.weight"
    with pytest.raises(DropoutError, match=rf"{what} is nan \(nll .*: step 2 of epoch 2; gradients of {first}"):
        fit_recommender(model, likes(), device="cpu", progress=False)
    assert len(calls) == 7
    assert_unchanged(model, before[0])


def test_where_nobody_waits_for_the_device_a_broken_step_and_all_after_it_change_nothing() -> None:
    model = recommender()
    optimizer = torch.optim.Adam(model.parameters(), 0.1, fused=True)
    watch, rows = StepWatch(model, optimizer, torch.device("cpu")), Rows.from_csr(likes())
    watch.begin(4)
    seen = []
    for step in range(6):
        if step == 4:
            watch.begin_sums()  # another part of the epoch, which forgets nothing
        found = model.losses(rows.batch(range(8)), 0.1)
        (found.total * (math.nan if step == 3 else 1.0)).backward()
        watch.refuse, really = lambda: None, watch.refuse  # as a GPU's step does: nobody asks at once
        watch.look(found)
        watch.refuse = really
        optimizer.step()
        optimizer.zero_grad()
        seen.append(state(model))
        if step < 3:
            watch.ask()
    stays = [a["decoder.out.weight"].equal(b["decoder.out.weight"]) for a, b in pairwise(seen)]
    assert stays == [False, False, True, True, True]
    watch.ask()
    with pytest.raises(DropoutError, match="gradient is nan .*: step 4 of epoch 4"):
        watch.ask()


@pytest.mark.parametrize("step", [3, 5], ids=["in the middle", "last"])
def test_a_table_that_nobody_looks_at_is_found_by_the_next_loss_or_at_the_end_of_the_epoch(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = VAE.losses, []

    def spoiled(self: VAE, *arguments: Any) -> Losses:
        found = plain(self, *arguments)
        calls.append(0)
        weight = self.decoder.out.weight
        overflow = (weight * 0).square().sum().sqrt()  # of value 0, and no gradient
        return found._replace(total=found.total + overflow) if len(calls) == step else found

    monkeypatch.setattr(VAE, "losses", spoiled)
    monkeypatch.setattr("lbdrop.recommend.loop.StepWatch", partial(StepWatch, tables=False))  # as on a GPU
    said = {
        3: "step 4 of epoch 1; not finite before it: decoder.out.weight",
        5: "NaN or infinity in decoder.out.weight after epoch 1, though all losses were finite",
    }
    with pytest.raises(DropoutError, match=said[step]):
        fit_recommender(recommender(), likes(), device="cpu", progress=False)


def test_without_tables_a_backward_pass_that_is_none_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls, before = VAE.decoded_nll, [], []

    def spoiled(self: VAE, eta: Tensor, *arguments: Any, **named: Any) -> Tensor:
        calls.append(0)
        if len(calls) == 3:
            before.append(state(self))
            eta = eta + (eta * 0).square().sum().sqrt()  # a backward pass that is none from here on
        return plain(self, eta, *arguments, **named)

    monkeypatch.setattr(VAE, "decoded_nll", spoiled)
    monkeypatch.setattr("lbdrop.recommend.loop.StepWatch", partial(StepWatch, tables=False))
    model = recommender("vae-drop")
    with pytest.raises(DropoutError, match="gradient is nan .*: step 3 of epoch 1; gradients of"):
        fit_recommender(model, likes(), device="cpu", progress=False)
    assert_unchanged(model, before[0])


def test_half_precision_parameters_of_the_recommender_are_refused() -> None:
    with pytest.raises(DropoutError, match="precision: want 'bf16-mixed', '32-true' or '64-true', got 'bf16-true'"):
        launch("cpu", "bf16-true")
