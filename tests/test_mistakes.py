"""Each mistake that a first hour brings is a message with want, got and next step."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.one_dropout import batch, network
from helpers.small_classifier import cross_entropies
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lbdrop
from lbdrop import DropoutError, Objective, estimators

x, y = batch()


@pytest.fixture(autouse=True)
def types_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user has them: the tests' own check of types would come first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


HELD_OUT: dict[str, Any] = {"held_out": [(x, y)], "steps": 100}


def refusal(function: Callable[[], Any]) -> str:
    with pytest.raises(DropoutError) as caught:
        function()
    return str(caught.value)


# ------------------------------------------------------------------------------------------------- what it is called with


@pytest.mark.parametrize("settings", [{"examples": 16}, HELD_OUT])
def test_loss_that_is_computed_already_is_refused(settings: dict[str, Any]) -> None:
    model = network()
    message = refusal(lambda: Objective(model, **settings)(F.cross_entropy(model(x), y)))  # pyright: ignore[reportArgumentType]
    assert "want a function that runs the model" in message
    assert "got a tensor of shape ()" in message
    assert "write objective(lambda m, x, y: " in message


def test_model_or_criterion_in_place_of_the_function_is_refused() -> None:
    model, criterion = network(), nn.CrossEntropyLoss(reduction="none")
    assert "got a Sequential;" in refusal(lambda: Objective(model, examples=16)(model, x, y))
    assert "got one that takes (input: " in refusal(lambda: Objective(model, examples=16)(criterion, x, y))


class Losses(nn.Module):
    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropies(model, x, y)

    def of_model(self, model: nn.Module, *batch: Tensor) -> Tensor:
        return cross_entropies(model, *batch)


@pytest.mark.parametrize(
    "losses",
    [Losses(), Losses().of_model, functools.partial(cross_entropies), lambda *all_of_it: cross_entropies(*all_of_it)],
)
def test_whatever_runs_the_model_is_accepted(losses: Any) -> None:
    assert Objective(network(), examples=16)(losses, x, y).isfinite()


@pytest.mark.parametrize(
    "settings", [{"examples": np.int64(16)}, HELD_OUT | {"steps": np.int32(100), "examples": np.int64(16)}]
)
def test_counts_of_numpy_are_counts(settings: dict[str, Any]) -> None:
    assert Objective(network(), **settings)(cross_entropies, x, y).isfinite()


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (lambda: x.sum(1), (), "a function of the model, got one that takes (), and so too many positional arguments"),
        (lambda m: m(x).sum(1), (x, y), "the model and the 2 arguments behind it, got one that takes (m)"),
        (
            lambda m, x, y: m(x).sum(1),
            (x,),
            "the model and the 1 arguments behind it, got one that takes (m, x, y), and so miss",
        ),
    ],
)
def test_function_of_other_arguments_is_refused(function: Any, arguments: tuple[Tensor, ...], message: str) -> None:
    assert message in refusal(lambda: Objective(network(), examples=16)(function, *arguments))


def test_error_inside_the_function_stays_what_it_is() -> None:
    def losses(m: nn.Module) -> Tensor:
        return m(x, 3)

    with pytest.raises(TypeError, match="positional arguments"):
        Objective(network(), examples=16)(losses)


def test_first_call_without_gradients_is_warned_of_once() -> None:
    objective = Objective(network(), examples=16)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="want gradients on, got a call under no_grad or inference_mode"):
            objective(cross_entropies, x, y)
        objective(cross_entropies, x, y)


# ------------------------------------------------------------------------------------------------------------- settings


def test_several_wrong_arguments_have_a_line_each() -> None:
    message = refusal(lambda: Objective(network(), examples=0, budget=0.5, estimator="foo", unreached="never"))
    assert [line.partition(":")[0] for line in message.splitlines()] == [
        "examples", "budget", "estimator", "unreached", "budget and estimator",
    ]  # fmt: skip
    message = refusal(lambda: Objective(network(), held_out=[(x, y)], masks=0, coupled=True))
    assert [line.partition(":")[0] for line in message.splitlines()] == ["masks", "steps", "coupled"]


def test_several_wrong_arguments_of_convert_have_a_line_each() -> None:
    message = refusal(
        lambda: lbdrop.convert(converted(), scheme="foo", rate=3.0, per="row", scale="half", unreached="never")
    )  # pyright: ignore
    assert [line.partition(":")[0] for line in message.splitlines()] == [
        "model", "scheme", "per", "scale", "rate", "unreached",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": [1, 2]}, "examples: want the size of the training set, at least 1, got list"),
        ({"examples": 10.5}, "examples: want the size of the training set, at least 1, got 10.5"),
        (HELD_OUT | {"steps": 2.5}, "steps: want how many training steps the run has, at least 1, got 2.5"),
        (
            HELD_OUT | {"held_out": TensorDataset(x, y)},
            "got the examples of a TensorDataset; wrap it: DataLoader(held_out",
        ),
        (HELD_OUT | {"held_out": (x, y)}, "got a tuple of tensors; put a single batch in a list: [(x, y)]"),
    ],
)
def test_argument_of_another_kind_is_named(arguments: dict[str, Any], message: str) -> None:
    assert message in refusal(lambda: Objective(network(), **arguments))


def test_held_out_loader_is_what_is_wanted() -> None:
    loader = DataLoader(TensorDataset(x, y), 4)
    assert Objective(network(), held_out=loader, steps=100)(cross_entropies, x, y).isfinite()


# ------------------------------------------------------------------------------------------------- a run after another run


def train(objective: Objective, model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(cross_entropies, x, y).backward()
        optimizer.step()


@pytest.mark.parametrize("settings", [{"examples": 16}, HELD_OUT])
def test_second_run_on_frozen_rates_is_warned_of(settings: dict[str, Any]) -> None:
    model = network()
    for name, parameter in model.named_parameters():
        if name.endswith("logit"):
            parameter.requires_grad_(False)
    with pytest.warns(
        UserWarning, match="got logits that all require no gradient, as after .*requires_grad_\\(True\\)"
    ):
        Objective(model, **settings)(cross_entropies, x, y).backward()


def test_run_resumed_with_other_steps_is_warned_of_while_rates_move() -> None:
    model, again = network(), network()
    objective = Objective(model, **HELD_OUT)
    train(objective, model, 3)
    state = objective.state_dict()
    with pytest.warns(UserWarning, match="want steps=100, as the saved run had, got 50"):
        Objective(again, held_out=[(x, y)], steps=50).load_state_dict(state)
    Objective(again, **HELD_OUT).load_state_dict(state)


# ---------------------------------------------------------------------------------------------------------- checkpoints


def plain_network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 2))


def converted() -> nn.Module:
    return lbdrop.convert(plain_network(), verbose=False)


def test_plain_checkpoint_in_a_converted_model_names_the_function_that_loads_it() -> None:
    with pytest.raises(RuntimeError, match=re.escape('"1.logit (a rate, which')) as caught:
        converted().load_state_dict(plain_network().state_dict())
    assert "lbdrop.load_weights" in str(caught.value)
    assert converted().load_state_dict(plain_network().state_dict(), strict=False).missing_keys == ["1.logit"]


@pytest.mark.parametrize(
    ("model", "saved", "others"),
    [
        (plain_network, plain_network, []),
        (plain_network, converted, ["1.logit"]),
        (converted, plain_network, ["1.logit"]),
        (converted, converted, []),
    ],
)
def test_checkpoint_loads_whichever_of_both_is_converted(
    model: Callable[[], nn.Module], saved: Callable[[], nn.Module], others: list[str]
) -> None:
    source = saved()
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(1)
    target = model()
    assert lbdrop.load_weights(target, source.state_dict()) == others
    for name, value in target.state_dict().items():
        if name not in others:
            assert torch.equal(value, source.state_dict()[name])


def test_checkpoint_of_another_network_is_refused_and_changes_nothing() -> None:
    model = converted()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    message = refusal(lambda: lbdrop.load_weights(model, nn.Sequential(nn.Linear(3, 8)).state_dict()))
    assert "got 2 other names that only one of them has, such as 2.bias, 2.weight" in message
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ----------------------------------------------------------------------------------------------- an estimator of one's own


def reinforce() -> estimators.Estimator:
    """Without a baseline: the mean over two masks of the loss times the score."""
    return estimators.Estimator(
        "reinforce-2",
        2,
        estimators.independent,
        lambda sites: [(s.losses * (s.draw.z - s.keep)).mean(0) for s in sites],
    )


def test_estimator_may_be_an_object_or_a_registered_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimators, "REGISTERED", {})
    found = []
    for estimator in ("rloo-2", estimators.get("rloo-2"), reinforce(), estimators.register(reinforce()).name):
        torch.manual_seed(0)
        model = network()
        Objective(model, examples=16, estimator=estimator)(cross_entropies, x, y).backward()
        found.append(model.get_parameter("2.logit").grad)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])
    assert not torch.equal(found[0], found[2])
