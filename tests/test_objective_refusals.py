"""A wrong loss, model or argument is an error that changes nothing; coupled examples are warned of."""

import re
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.one_dropout import batch, losses, network
from helpers.small_classifier import cross_entropies
from torch import Tensor, nn

import lbdrop
from lbdrop import Balanced, Bound, DropoutError, GaussianDropout, LearnableDropout, Objective

# ------------------------------------------------------------------------------------------------------------ bad input


def unchanged(model: nn.Module, function) -> bool:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    function()
    return all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda m, x, y: F.cross_entropy(m(x), y), r"want one loss per example, shape \(batch,\), got \(\)"),
        (lambda m, x, y: None, "got NoneType"),
        (lambda m, x, y: m(x).sum().item(), "got float"),
        (lambda m, x, y: m(x), r"got \(16, 2\); use reduction='none'"),
        (lambda m, x, y: m(x).flatten(), r"want one loss for each of the 16 examples that reach dropout '2', got 32"),
        (lambda m, x, y: m(x)[:, 0] / 0 * 0, r"NaN or infinity for examples \[0, 1"),
        (lambda m, x, y: m(x[:0])[:, 0], r"want one loss per example"),
        (lambda m, x, y: m(x.long()), "expected|dtype"),
    ],
)
def test_bad_loss_is_named_and_changes_nothing(loss, message: str) -> None:
    model, (x, y) = network(), batch()

    def step() -> None:
        with pytest.raises((DropoutError, RuntimeError), match=message):
            Objective(model, examples=10)(lambda m: loss(m, x, y))

    assert unchanged(model, step)


def test_missing_and_wrong_settings_are_named() -> None:
    model = network()
    with pytest.raises(DropoutError, match="examples: want the size of the training set"):
        Objective(model)
    with pytest.raises(DropoutError, match="steps: want how many training steps the run has"):
        Objective(model, held_out=[batch()])
    with pytest.raises(DropoutError, match="at least 1, got 0"):
        Objective(model, examples=0)
    with pytest.raises(DropoutError, match="no learned dropout in Linear"):
        Objective(nn.Linear(2, 2), examples=1)
    with pytest.raises(DropoutError, match="prior: want s > 0"):
        Bound(model, 1, s=0.0)


def bound(model: nn.Module) -> Bound:
    return Bound(model, 10)


def balanced(model: nn.Module) -> Balanced:
    return Balanced(model, [batch()], steps=100)


def gaussian() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), GaussianDropout(8), nn.Linear(8, 2))


HELD_OUT: dict[str, Any] = {"held_out": [batch()], "steps": 100}


@pytest.mark.parametrize(
    ("model", "rule", "arguments", "message"),
    [
        (network, None, HELD_OUT | {"estimator": "arm"}, "estimator: want it where rates learn by an estimator, got a rule"),
        (network, None, HELD_OUT | {"coupled": False}, "coupled: want it where rates learn by an estimator, got a rule"),
        (network, balanced, {"estimator": "arm"}, "estimator: want it where rates learn by an estimator, got a rule that"),
        (network, balanced, {"coupled": True}, "coupled: want it where rates learn by an estimator, got a rule that moves"),
        (network, None, {"steps": 100}, "steps: want them with held_out alone, got no held_out"),
        (network, None, {"steps": 100, "examples": 10}, "steps: want them with held_out alone, got no held_out"),
        (network, bound, {"examples": 10}, "rule and examples: want one of them, got both; give examples to the rule"),
        (network, bound, {"steps": 100}, "rule and steps: want one of them, got both; give steps to the rule"),
        (network, bound, HELD_OUT, "rule and held_out: want one of them, got both; a rule of its own has its own held-out"),
        (network, balanced, HELD_OUT, "rule and held_out: want one of them, got both"),
        (network, balanced, {"masks": 2}, "masks: want it given to the rule, got it beside one; leave it out here"),
        (network, balanced, {"generator": torch.Generator()}, "generator: want it given to the rule, got it beside one"),
        (network, None, {"examples": 10, "masks": 2}, "masks: want it where no rate learns by an estimator, got learned"),
        (network, bound, {"masks": 2}, "got learned dropouts; say estimator='rloo-8'"),
        (gaussian, None, {"examples": 10, "estimator": "arm"}, "estimator: want it with learned Bernoulli dropouts, got a"),
    ],
)  # fmt: skip
def test_argument_that_would_change_nothing_is_refused(
    model: Any, rule: Any, arguments: dict[str, Any], message: str
) -> None:
    converted = model()
    with pytest.raises(DropoutError, match=re.escape(message)):
        Objective(converted, rule and rule(converted), **arguments)


@pytest.mark.parametrize(
    ("model", "rule", "arguments"),
    [
        (network, None, HELD_OUT | {"masks": 2, "generator": torch.Generator(), "examples": 10}),
        (network, bound, {"estimator": "arm", "coupled": True, "generator": torch.Generator()}),
        (gaussian, None, {"examples": 10, "masks": 2, "generator": torch.Generator()}),
    ],
)
def test_argument_that_changes_something_is_accepted(model: Any, rule: Any, arguments: dict[str, Any]) -> None:
    converted = model()
    objective = Objective(converted, rule and rule(converted), **arguments)
    assert objective(cross_entropies, *batch()).isfinite()


class Dead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.used, self.dead = nn.Linear(3, 2), LearnableDropout(2), LearnableDropout(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.fc(x))


def test_unreached_dropout_is_an_error_or_a_warning() -> None:
    model, (x, y) = Dead(), batch()
    with pytest.raises(DropoutError, match=r"never reached in a pass: \['dead'\]"):
        Objective(model, examples=10)(losses(x, y))
    with pytest.warns(UserWarning, match="never reached"):
        Objective(model, examples=10, unreached="warn")(losses(x, y)).backward()
    with pytest.raises(DropoutError, match="never reached"):
        lbdrop.predict(model, x)


# ----------------------------------------------------------------------------------------------------- coupled examples


def test_coupled_examples_are_found_and_warned_of() -> None:
    model = nn.Sequential(nn.Linear(3, 8), LearnableDropout(8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    x, y = batch()
    objective = Objective(model, examples=10)
    with pytest.warns(UserWarning, match="BatchNorm in training mode"):
        objective(losses(x, y))
    model.eval()  # running statistics: examples are independent again, and nothing is said
    objective(losses(x, y))
    early = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), LearnableDropout(8), nn.Linear(8, 2))
    Objective(early, examples=10)(losses(x, y))


def test_coupling_is_checked_anew_for_another_loss_and_never_by_one_example() -> None:
    model = nn.Sequential(nn.Linear(3, 4), LearnableDropout(4), nn.Linear(4, 2))
    objective, x = Objective(model, examples=10, estimator="double-cv-4"), torch.randn(4, 3)
    objective(lambda m: m(x).sum(1))
    with pytest.warns(UserWarning, match="masks of others"):
        objective(lambda m: (m(x) @ m(x).T).sum(1))
    normed = nn.Sequential(nn.Conv1d(3, 4, 1), LearnableDropout(4, channels=True), nn.BatchNorm1d(4), nn.Flatten())
    objective = Objective(normed, examples=10, estimator="double-cv-4")
    objective(lambda m: m(torch.randn(1, 3, 5)).sum(1))
    with pytest.warns(UserWarning, match="masks of others"):
        objective(lambda m: m(torch.randn(3, 3, 5)).pow(2).sum(1))


def test_axis_of_the_examples_is_found_where_it_is_not_given() -> None:
    """Of (time, batch, units): no warning, and the gradient of the axis named by hand."""
    x = torch.randn(5, 5, 4)

    def loss(m: nn.Module) -> Tensor:
        return m(x).pow(2).sum((0, 2))

    found = []
    for settings in ({"batch_dim": 1}, {}):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), LearnableDropout(4, **settings))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Objective(model, examples=10, generator=torch.Generator().manual_seed(1))(loss).backward()
        found.append(model[1].logit.grad)
    torch.testing.assert_close(found[0], found[1])
