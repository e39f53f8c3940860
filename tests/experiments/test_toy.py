import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from experiments.toy import figure, recipes, record
from experiments.toy.record import ESTIMATORS
from lbdrop import estimators
from lbdrop.cli import app
from lbdrop.errors import DropoutError

SMALL = recipes.Settings(draws=60, grid=3, examples=1000)
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def problem(generator: torch.Generator) -> recipes.Problem:
    return recipes.draw_balanced(SMALL, generator)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the recipe runs: threads wait for each other when tests share a machine
    yield
    torch.set_num_threads(before)


def expected_loss(problem: recipes.Problem, logits: Tensor) -> float:
    """The objective written out mask by mask and example by example, sharing no code with the recipe."""
    p, q = logits.sigmoid().tolist()
    total = 0.0
    for target, (first, second) in zip(problem.y.tolist(), problem.reach.tolist(), strict=True):
        total += p * q * (target - first - second) ** 2
        total += p * (1 - q) * (target - first) ** 2
        total += (1 - p) * q * (target - second) ** 2
        total += (1 - p) * (1 - q) * target**2
    return total / len(problem.y)


def finite_difference(function: Callable[[Tensor], float], at: Tensor, step: float = 1e-4) -> Tensor:
    pushes = step * torch.eye(len(at), dtype=at.dtype)
    return torch.tensor([(function(at + push) - function(at - push)) / (2 * step) for push in pushes], dtype=at.dtype)


@pytest.mark.parametrize("keep", [(0.5, 0.5), (0.05, 0.7), (0.9, 0.2)])
def test_exact_gradient_is_the_slope_of_the_enumerated_expectation(
    problem: recipes.Problem, keep: tuple[float, float]
) -> None:
    keeps = torch.tensor(keep, dtype=torch.double)
    slope = finite_difference(partial(expected_loss, problem), keeps.logit())
    torch.testing.assert_close(recipes.exact(problem, keeps), slope, rtol=1e-5, atol=1e-8)


def test_data_come_from_the_same_network_without_relu_and_dropout(generator: torch.Generator) -> None:
    problem = recipes.draw_problem(SMALL, generator)
    # Where both units are on, ReLU changes nothing, and keeping both gives the target.
    both_on = (problem.reach != 0).all(1)
    assert both_on.any()
    residuals = problem.residuals(torch.ones_like(problem.reach))[both_on]
    torch.testing.assert_close(residuals, torch.zeros_like(residuals), atol=1e-5, rtol=0)


def test_slopes_equal_autograds(problem: recipes.Problem, generator: torch.Generator) -> None:
    z = torch.rand(4, *problem.reach.shape, generator=generator).requires_grad_()
    (slopes,) = torch.autograd.grad(problem.losses(z).sum(), z)
    torch.testing.assert_close(problem.slopes(z.detach()), slopes)


def test_concrete_is_the_gradient_through_the_relaxed_mask(
    problem: recipes.Problem, generator: torch.Generator
) -> None:
    u = torch.rand(3, *problem.reach.shape, generator=generator)
    logits = torch.tensor([0.3, -0.8]).expand_as(u).clone().requires_grad_()
    relaxed = torch.sigmoid((logits + u.logit(eps=1e-7)) / 0.1)
    (gradient,) = torch.autograd.grad(problem.losses(relaxed).sum(), logits)
    found = recipes.concrete(problem, torch.tensor([0.3, -0.8]).sigmoid(), u, 0.1)
    torch.testing.assert_close(found, gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("active_only", [False, True])
def test_concrete_alone_is_biased(problem: recipes.Problem, generator: torch.Generator, active_only: bool) -> None:
    keeps = recipes.square(SMALL, 3)[[1, 2, 5, 7]] * 0.8
    estimates = partial(recipes.estimate, draws=400, temperature=0.1, generator=generator, active_only=active_only)
    _, found = recipes.accuracy(problem, keeps.unbind(), estimates)
    for name in ("arm", "disarm", "double-cv"):
        assert found[name].z.abs().max() < 4, name
    assert found["concrete"].z.abs().max() > 6


def test_chunks_do_not_change_the_number_of_estimates(problem: recipes.Problem, generator: torch.Generator) -> None:
    draws = recipes.CHUNK + 3
    for estimates in recipes.estimate(problem, torch.tensor([0.4, 0.6]), draws, 0.1, generator).values():
        assert estimates.shape == (draws, 2)
        assert estimates.unique(dim=0).shape == (draws, 2)


def test_mean_squared_error_is_squared_bias_plus_variance(problem: recipes.Problem, generator: torch.Generator) -> None:
    estimates = partial(recipes.estimate, draws=50, temperature=0.1, generator=generator)
    _, found = recipes.accuracy(problem, [torch.tensor([0.3, 0.8])], estimates)
    for of in found.values():
        torch.testing.assert_close(of.mse, of.bias**2 + of.std**2 * 49 / 50)


def test_verdict_can_fall_either_way() -> None:
    z = torch.randn(169, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    assert recipes.bias_test(z, draws=200)["verdict"] == "unbiased"
    assert recipes.bias_test(z + 1, draws=200)["verdict"] == "biased"  # a little off everywhere
    far = z.clone()
    far[:3] = 4.5
    assert recipes.bias_test(far, draws=200)["verdict"] == "biased"  # far off in a few cells
    assert recipes.bias_test(z, draws=5)["verdict"] == "undecided"


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(DropoutError, match="draws: want at least 2, got 1"):
        recipes.Settings(draws=1)


@pytest.mark.process
def test_command_writes_json_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(recipes.Settings, examples=200, trace_steps=4, trace_draws=5, networks=2, networks_draws=5)
    monkeypatch.setattr(recipes, "Settings", small)
    threads = torch.get_num_threads()
    result = CliRunner().invoke(
        app, ["reproduce", "toy", "--seed", "3", "--draws", "5", "--grid", "3", "--out", str(tmp_path / "new")]
    )
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "new" / "toy.json") in result.output
    assert torch.get_num_threads() == threads

    assert (tmp_path / "new" / "toy.png").read_bytes().startswith(PNG_SIGNATURE)
    found = json.loads((tmp_path / "new" / "toy.json").read_text())
    assert found["settings"]["seed"] == 3
    assert found["provenance"]["versions"]["torch"]
    assert list(found["summary"]) == list(ESTIMATORS)
    for name in ESTIMATORS:
        assert torch.tensor(found["surfaces"][name]["mse"]["alpha_2"]).shape == (3, 3)
        assert len(found["trace"]["estimates"][name]["alpha_1"]) == 4


def test_same_seed_gives_the_same_numbers() -> None:
    settings = recipes.Settings(
        draws=3, grid=2, examples=50, trace_steps=2, trace_draws=2, networks=1, networks_grid=2, networks_draws=2
    )
    first, second = recipes.run(settings), recipes.run(settings)
    for part in ("network", "surfaces", "trace", "networks"):
        assert first[part] == second[part]


def test_registered_estimator_is_in_record_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = recipes.Settings(
        draws=400, grid=2, examples=50, trace_steps=2, trace_draws=2, networks=1, networks_grid=2, networks_draws=2
    )
    without = recipes.run(settings)
    monkeypatch.setattr(estimators, "REGISTERED", {})
    monkeypatch.setattr(record, "REGISTERED", estimators.REGISTERED)
    good, wrong = estimators.get("rloo-3"), estimators.get("rloo-2")
    estimators.register(good._replace(name="mine"))
    estimators.register(wrong._replace(name="wrong", gradients=lambda sites: [1 + g for g in wrong.gradients(sites)]))
    found = recipes.run(settings)
    assert list(found["summary"]) == [*without["summary"], "mine", "wrong"]
    for name, verdict in (("mine", "unbiased"), ("wrong", "biased")):
        assert {each["verdict"] for each in found["summary"][name].values()} == {verdict}
    assert figure.save(found, tmp_path / "toy.png").read_bytes().startswith(PNG_SIGNATURE)
