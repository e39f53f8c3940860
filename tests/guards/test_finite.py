"""Losses, gradients and predictions that are not finite are refused, and the error names where they come from."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.states import assert_unchanged, state
from torch import Tensor, nn

import lbdrop
from lbdrop import DropoutError, LearnableDropout, Objective
from lbdrop.guards.finite import MAX_COPIED, finite_gradients


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x)


def network(*first: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*first, nn.Linear(3, 6), nn.Tanh(), LearnableDropout(6, 0.3), nn.Linear(6, 2))


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def batch(rows: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(rows, 3, generator=generator) + 0.5, torch.arange(rows) % 2


@pytest.mark.parametrize("as_arguments", [True, False])
def test_input_that_is_nan_is_named_with_its_example(as_arguments: bool) -> None:
    model, (x, y) = network(), batch()
    x[2, 1] = torch.nan
    objective, before = Objective(model, examples=10), state(model)
    with pytest.raises(
        DropoutError, match=r"for examples \[2\] of this batch; the model's input is not finite in rows \[2\]"
    ):
        objective(losses, x, y) if as_arguments else objective(lambda m: losses(m, x, y))
    assert_unchanged(model, before)
    assert all(module.training for module in model.modules())


def test_layer_is_named_whose_output_is_first_not_finite() -> None:
    x, y = batch()
    x[3] = -1.0
    with pytest.raises(DropoutError, match=r"examples \[3\] .* first in the output of layer '0' \(Log\)"):
        Objective(network(Log()), examples=10)(losses, x, y)


@pytest.mark.parametrize("name", ["0.weight", "2.logit"])
def test_parameter_that_was_nan_before_the_step_is_named(name: str) -> None:
    model = network()
    model.get_parameter(name).data.view(-1)[0] = torch.nan
    with pytest.raises(DropoutError, match=f"not finite before the step: {name}; look at the steps before this one"):
        Objective(model, examples=10)(losses, *batch())


def root(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Finite at 0, but its slope is not."""
    return (model[3](model[2](model[1](model[0](x)))) * 0).square().sum(1).sqrt()


def test_gradient_that_is_nan_behind_finite_losses_is_refused_before_the_optimiser() -> None:
    model = network()
    before = state(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = Objective(model, examples=10)(root, *batch())
    assert torch.isfinite(loss)
    with pytest.raises(DropoutError, match="gradient: want finite numbers, got NaN or infinity for 0.weight, 0.bias"):
        loss.backward()
        optimizer.step()
    assert_unchanged(model, before)


def test_check_false_lets_a_gradient_that_is_nan_pass() -> None:
    model = network()
    Objective(model, examples=10, check=False)(root, *batch()).backward()
    assert not torch.isfinite(model[0].weight.grad).all()


def test_overflow_under_a_gradient_scaler_is_left_to_the_scaler() -> None:
    model = network()
    before = state(model)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(Objective(model, examples=10)(root, *batch())).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() < 65536
    assert_unchanged(model, before)


@pytest.mark.parametrize("numbers", [30, MAX_COPIED + 10], ids=["small", "large"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_one_number_that_is_not_finite_is_found_in_every_precision(dtype: torch.dtype, numbers: int) -> None:
    parameters = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in (3, numbers, 5)]
    assert finite_gradients(parameters) is None  # no gradient yet

    def is_finite(value: float) -> bool:
        parameters[1].grad = torch.ones(numbers, dtype=dtype)
        parameters[1].grad[numbers // 2] = value
        parameters[2].grad = torch.full((5,), -torch.finfo(dtype).max, dtype=dtype)  # a sum of these overflows
        answer = finite_gradients(parameters)
        assert answer is not None
        return bool(answer)

    assert [is_finite(value) for value in (math.nan, math.inf, -math.inf, 1.0)] == [False, False, False, True]


def test_prediction_that_is_nan_is_refused_with_its_row_and_part() -> None:
    x, _ = batch()
    x[4, 0] = torch.nan
    message = r"NaN or infinity in rows \[4\] of part 1 .* input is not finite in rows \[4\]"
    with pytest.raises(DropoutError, match=message):
        lbdrop.predict(network(), [torch.ones(5, 3), x], progress=False)


def test_logit_of_minus_infinity_is_a_probability_of_zero() -> None:
    def never_the_second(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).masked_fill(torch.tensor([False, True]), -torch.inf)

    assert lbdrop.predict(network(), torch.ones(5, 3), forward=never_the_second).mean[:, 1].eq(0).all()
