"""Slopes of held-out losses: the line through them, the step to its zero, and what belongs to a model's state."""

import pytest
import torch
from lbdrop.rules.slopes import Slopes
from torch import Tensor, nn

import lbdrop


def quadratic(
    zero: list[float], curvature: list[float], noise: float = 0.0, examples: int = 4000
) -> tuple[Tensor, Tensor]:
    """Logits around 2 and the slopes there of losses with these minima, one for each rate."""
    g = torch.Generator().manual_seed(0)
    logits = 2 + torch.randn(examples, len(zero), generator=g)
    slopes = torch.tensor(curvature) * (logits - torch.tensor(zero)) + noise * torch.randn(logits.shape, generator=g)
    return logits, slopes


def test_the_line_has_slope_curvature_and_standard_error_of_an_ordinary_regression() -> None:
    logits, slopes = quadratic([1.0, -3.0], [0.5, 2.0], noise=0.7)
    found = Slopes(2)
    found.add(Slopes.sums_of(logits, slopes), window=10.0)
    at, slope, curvature, error = found.line()
    torch.testing.assert_close(at, logits.mean(0))
    torch.testing.assert_close(slope, slopes.mean(0))
    torch.testing.assert_close(error, slopes.std(0) / 4000**0.5, rtol=1e-3, atol=0)
    for rate in range(2):
        design = torch.stack([torch.ones(4000), logits[:, rate]], 1)
        fitted = torch.linalg.lstsq(design, slopes[:, rate : rate + 1]).solution[1, 0]
        assert float(curvature[rate]) == pytest.approx(float(fitted), rel=1e-3)


def test_steps_end_where_the_slope_is_zero() -> None:
    zero, logits = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0])
    found, g = Slopes(2), torch.Generator().manual_seed(0)
    for _ in range(300):
        around = logits + torch.randn(50, 2, generator=g)
        found.add(Slopes.sums_of(around, 0.3 * (around - zero) + 0.5 * torch.randn(50, 2, generator=g)), window=20.0)
        logits = logits + found.step(logits, window=20.0)
    torch.testing.assert_close(logits, zero, atol=0.15, rtol=0)


def test_no_step_goes_further_than_the_examples_can_see() -> None:
    found = Slopes(1)
    found.add(Slopes.sums_of(*quadratic([-50.0], [1.0])), window=10.0)
    assert found.step(torch.tensor([2.0]), window=10.0).item() == pytest.approx(-0.2)


def test_a_slope_that_is_noise_moves_a_rate_less_than_one_that_is_sure() -> None:
    steps = []
    for noise in (0.0, 30.0):
        found, (logits, slopes) = Slopes(1), quadratic([1.9], [0.1], noise, examples=100)
        found.add(Slopes.sums_of(logits, slopes - slopes.mean() + 0.01), window=10.0)
        steps.append(abs(found.step(logits.mean(0), window=10.0).item()))
    assert steps[1] < 0.1 * steps[0]


def test_curvature_below_zero_is_none() -> None:
    found = Slopes(1)
    found.add(Slopes.sums_of(*quadratic([5.0], [-1.0])), window=10.0)
    assert found.line()[2].item() == 0.0
    assert found.step(torch.tensor([2.0]), window=10.0).item() == pytest.approx(-0.2)  # down the slope, 3 at 2


def test_old_looks_are_forgotten() -> None:
    found = Slopes(1)
    for zero in [0.0] * 50 + [4.0] * 50:
        found.add(Slopes.sums_of(*quadratic([zero], [1.0], examples=50)), window=10.0)
    assert found.step(torch.tensor([2.0]), window=10.0).item() > 0.15


@pytest.mark.parametrize(("zero", "sure"), [(9.0, True), (2.0, False), (-9.0, False)])
def test_a_slope_is_surely_down_by_two_standard_errors(zero: float, sure: bool) -> None:
    found = Slopes(1)
    logits, slopes = quadratic([zero], [0.1], noise=1.0, examples=400)
    found.add(Slopes.sums_of(logits, slopes), window=10.0)
    assert found.surely_down().tolist() == [sure]
    assert found.surely_down(different=400.0).tolist() == [sure]
    assert found.surely_down(different=4.0).tolist() == [False]  # four examples, a hundred times each


def test_sums_of_two_processes_are_those_of_one() -> None:
    logits, slopes = quadratic([1.0], [1.0], noise=0.3)
    halves = [Slopes.sums_of(logits[part], slopes[part]) for part in (slice(0, 1000), slice(1000, None))]
    torch.testing.assert_close(sum(halves), Slopes.sums_of(logits, slopes))


def test_they_belong_to_the_state_and_are_not_rounded_with_the_model() -> None:
    model = lbdrop.convert(nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 2)), verbose=False)
    model[0].slopes = found = Slopes(1)
    found.steps = 17
    found.add(Slopes.sums_of(*quadratic([1.0], [1.0])), window=10.0)
    before = found.sums.clone()
    model.to(torch.bfloat16)
    assert torch.equal(found.sums, before)
    other = lbdrop.convert(nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 2)), verbose=False)
    other.load_state_dict(model.state_dict())
    assert other[0].slopes.steps == 17
    assert torch.equal(other[0].slopes.sums, before)
    assert not [name for name, _ in other.named_parameters() if "slopes" in name]
