"""Slopes of held-out losses: the line through them, the step to its zero, and how certain a slope is."""

import pytest
import torch
from torch import Tensor

from experiments.rival_rules.slopes import Slopes


def quadratic(
    zero: list[float], curvature: list[float], noise: float = 0.0, examples: int = 4000
) -> tuple[Tensor, Tensor]:
    """Logits around 2 and the slopes there of losses with these minima, one for each rate."""
    g = torch.Generator().manual_seed(0)
    logits = 2 + torch.randn(examples, len(zero), generator=g)
    slopes = torch.tensor(curvature) * (logits - torch.tensor(zero)) + noise * torch.randn(logits.shape, generator=g)
    return logits, slopes


def measured(logits: Tensor, slopes: Tensor) -> Slopes:
    found = Slopes(logits.shape[1])
    found.add(Slopes.sums_of(logits, slopes), window=10.0)
    return found


def test_line_has_slope_curvature_and_standard_error_of_an_ordinary_regression() -> None:
    logits, slopes = quadratic([1.0, -3.0], [0.5, 2.0], noise=0.7)
    at, slope, curvature, error = measured(logits, slopes).line()
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


def test_step_goes_no_further_than_the_examples_can_tell() -> None:
    found = measured(*quadratic([-50.0], [1.0]))
    assert found.step(torch.tensor([2.0]), window=10.0).item() == pytest.approx(-0.2)


def test_uncertain_slope_moves_a_rate_less_than_a_certain_one() -> None:
    steps = []
    for noise in (0.0, 30.0):
        logits, slopes = quadratic([1.9], [0.1], noise, examples=100)
        found = measured(logits, slopes - slopes.mean() + 0.01)
        steps.append(abs(found.step(logits.mean(0), window=10.0).item()))
    assert steps[1] < 0.1 * steps[0]


def test_curvature_below_zero_counts_as_zero() -> None:
    found = measured(*quadratic([5.0], [-1.0]))
    assert found.line()[2].item() == 0.0
    assert found.step(torch.tensor([2.0]), window=10.0).item() == pytest.approx(-0.2)  # down the slope, 3 at 2


def test_old_measurements_are_forgotten() -> None:
    found = Slopes(1)
    for zero in [0.0] * 50 + [4.0] * 50:
        found.add(Slopes.sums_of(*quadratic([zero], [1.0], examples=50)), window=10.0)
    assert found.step(torch.tensor([2.0]), window=10.0).item() > 0.15


@pytest.mark.parametrize(("zero", "certain"), [(9.0, True), (2.0, False), (-9.0, False)])
def test_slope_is_certainly_down_by_one_and_a_half_standard_errors(zero: float, certain: bool) -> None:
    found = measured(*quadratic([zero], [0.1], noise=1.0, examples=400))
    assert found.surely_down().tolist() == [certain]
    assert found.surely_down(different=400.0).tolist() == [certain]
    assert found.surely_down(different=4.0).tolist() == [False]  # four examples, a hundred times each


def test_sums_of_two_processes_are_those_of_one() -> None:
    logits, slopes = quadratic([1.0], [1.0], noise=0.3)
    halves = [Slopes.sums_of(logits[part], slopes[part]) for part in (slice(0, 1000), slice(1000, None))]
    torch.testing.assert_close(sum(halves), Slopes.sums_of(logits, slopes))
