"""Regression measures against scipy's densities, and intervals against quantiles of the mixture found by bisection."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from sklearn.metrics import root_mean_squared_error

from lbdrop.errors import DropoutError
from lbdrop.metrics import gaussian_nll, interval_coverage, mixture_nll, rmse


def random_case(seed: int, *outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randn(7, 50, *outputs, generator=generator, dtype=torch.float64)
    return samples, 1.5 * torch.randn(50, *outputs, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("outputs", [(), (3,)])
def test_rmse_agrees_with_scikit_learn(outputs: tuple[int, ...]):
    samples, targets = random_case(0, *outputs)
    expected = root_mean_squared_error(targets.reshape(-1), samples.mean(0).reshape(-1))
    assert float(rmse(samples.mean(0), targets)) == pytest.approx(expected)


def test_gaussian_nll_agrees_with_scipy_for_one_variance_and_for_one_each():
    samples, targets = random_case(1)
    mean, variance = samples.mean(0), samples.var(0) + 0.3
    each = -scipy.stats.norm.logpdf(targets, mean, variance.sqrt())
    assert float(gaussian_nll(mean, variance, targets)) == pytest.approx(each.mean())
    same = -scipy.stats.norm.logpdf(targets, mean, math.sqrt(0.3))
    assert float(gaussian_nll(mean, 0.3, targets)) == pytest.approx(same.mean())


@pytest.mark.parametrize("outputs", [(), (1,), (2,)])
def test_mixture_nll_agrees_with_a_loop_over_joint_densities(outputs: tuple[int, ...]):
    samples, targets = random_case(2, *outputs)
    total = 0.0
    for i in range(50):
        density = [np.prod(scipy.stats.norm.pdf(targets[i], samples[s, i], math.sqrt(0.4))) for s in range(7)]
        total -= math.log(sum(density) / 7)
    assert float(mixture_nll(samples, targets, 0.4)) == pytest.approx(total / 50)


def test_mixture_nll_agrees_with_the_expression_of_gal_and_ghahramani():
    samples, targets = random_case(3)
    tau = 2.5
    exponents = -0.5 * tau * (targets - samples).numpy() ** 2
    log_likelihood = np.logaddexp.reduce(exponents) - math.log(7) - 0.5 * math.log(2 * math.pi) + 0.5 * math.log(tau)
    assert float(mixture_nll(samples, targets, 1 / tau)) == pytest.approx(-log_likelihood.mean())


def test_noise_may_differ_by_output_and_by_sample():
    samples, targets = random_case(4, 2)
    per_output = torch.tensor([0.2, 0.9], dtype=torch.float64)
    everywhere = per_output.expand(samples.shape)
    assert float(mixture_nll(samples, targets, per_output)) == float(mixture_nll(samples, targets, everywhere))
    # With one sample the outputs' losses simply add up.
    apart = [gaussian_nll(samples[0, :, d], float(per_output[d]), targets[:, d]) for d in range(2)]
    assert float(gaussian_nll(samples[0], per_output, targets)) == pytest.approx(float(sum(apart)))


def test_nll_stays_finite_for_far_targets():
    assert math.isfinite(float(mixture_nll(torch.zeros(5, 1), torch.tensor([1e4]), 1e-2)))


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage_agrees_with_quantiles_found_by_bisection(level: float):
    samples, targets = random_case(5)
    inside = 0
    for i in range(50):
        centres = samples[:, i].numpy()

        def quantile(q: float, centres: np.ndarray = centres) -> float:
            gap = lambda y: scipy.stats.norm.cdf(y, centres, 0.5).mean() - q  # noqa: E731
            return scipy.optimize.root_scalar(gap, bracket=(-20, 20), xtol=1e-12).root

        inside += quantile((1 - level) / 2) <= float(targets[i]) <= quantile((1 + level) / 2)
    assert float(interval_coverage(samples, targets, 0.25, level)) == pytest.approx(inside / 50)


def test_interval_of_a_gaussian_is_the_usual_one():
    targets = torch.tensor([-1.97, -1.95, 0.0, 1.95, 1.97])
    assert float(interval_coverage(torch.zeros(1, 5), targets, 1.0)) == pytest.approx(3 / 5)
    assert float(interval_coverage(torch.zeros(1, 5), 2 * targets, 4.0)) == pytest.approx(3 / 5)


def test_true_model_has_the_coverage_of_its_level():
    generator = torch.Generator().manual_seed(0)
    n = 40_000
    samples = torch.randn(5, n, generator=generator)
    chosen = samples[torch.randint(5, (n,), generator=generator), torch.arange(n)]
    targets = chosen + 0.5 * torch.randn(n, generator=generator)
    for level in (0.5, 0.8, 0.95):
        four_errors = 4 * math.sqrt(level * (1 - level) / n)
        assert float(interval_coverage(samples, targets, 0.25, level)) == pytest.approx(level, abs=four_errors)


@pytest.mark.usefixtures("without_type_checks")
def test_wrong_input_is_an_error_with_the_next_step():
    samples, targets = random_case(6)
    column = targets[:, None]
    refused = [
        # (50, 1) against (50,) would broadcast to 50 × 50 differences, silently.
        (lambda: rmse(samples[0], column), "squeeze"),
        (lambda: gaussian_nll(samples[0], 1.0, column), "squeeze"),
        (lambda: mixture_nll(samples, column, 1.0), "squeeze"),
        (lambda: interval_coverage(samples, column, 1.0), "squeeze"),
        (lambda: rmse(targets[:0], targets[:0]), "at least one example"),
        (lambda: mixture_nll(samples[:0], targets, 1.0), "keep_samples"),
        (lambda: mixture_nll(samples[0], targets, 1.0), "keep_samples"),
        (lambda: rmse(samples[0] / 0, targets), "finite"),
        (lambda: mixture_nll(samples, targets, 0.0), "above 0"),
        (lambda: gaussian_nll(samples[0], -samples.var(0), targets), "above 0"),
        (lambda: mixture_nll(samples, targets, torch.ones(3)), "broadcasts"),
        (lambda: mixture_nll(samples, targets, torch.ones(2, 7, 50)), "broadcasts"),
        (lambda: interval_coverage(samples, targets, 1.0, level=95), "95 %"),
    ]
    for call, says in refused:
        with pytest.raises(DropoutError, match=says):
            call()
