"""Balanced noise: its cost is half of the generalisation gap wherever that has a closed form, from any start."""

from typing import Any

import pytest
import torch
from helpers.least_squares_with_dropout import Pair, linear, over_fitted, squares
from helpers.small_classifier import cross_entropies, small_classifier
from torch import Tensor, nn

import lbdrop
from lbdrop import Balanced, Objective, parameter_groups
from lbdrop.rules.balanced import CONSTANTS as C

# ------------------------------------------------------------------------------------------------- cost in closed form


def odds(layer: Any) -> float:
    return layer.p / (1 - layer.p)


@pytest.mark.parametrize("start", [0.05, 0.7])
def test_cost_of_noise_is_its_share_of_the_gap_from_far_below_and_far_above(start: float) -> None:
    model, train, held_out, expected = over_fitted(C.cost_share, copies=8)
    rule = Balanced(model, [held_out], steps=400, start=start, every=1)
    objective = Objective(model, rule)
    for _ in range(rule.frozen_after):  # weights stay where they are
        objective(squares, *train)
    assert 1.5 * C.start / (1 - C.start) < expected < 0.7 * C.max_rate / (1 - C.max_rate)
    assert odds(model[0]) == pytest.approx(expected, rel=0.1)
    assert rule.phase == "frozen"


class Halves(nn.Module):
    """A dropout for each half of the inputs."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.first, self.second = lbdrop.LearnableDropout(rate=0.3), lbdrop.LearnableDropout(rate=0.3)
        self.out = nn.Linear(weight.shape[1], 1, bias=False).double()
        self.out.weight.data = weight

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return self.out(torch.cat([self.first(a), self.second(b)], 1))


def test_costlier_layer_has_less_noise_and_both_cost_the_share_together() -> None:
    plain, (x, _), (more, _), _ = over_fitted(C.cost_share, copies=8)
    weight = plain[1].weight.detach().clone()
    weight[:, 10:] *= 2
    model = Halves(weight).double()
    unit_costs = (x * weight).square().mean(0).view(2, 10).sum(1)
    held_out = more, (more @ weight.T)[:, 0] + 6 * torch.randn(len(more), dtype=torch.float64)
    train = x, (x @ weight.T)[:, 0] + 2 * torch.randn(len(x), dtype=torch.float64)
    gap = (squares(model.out, *held_out).mean() - squares(model.out, *train).mean()).detach()
    rule = Balanced(model, [held_out], steps=400, every=1)
    objective = Objective(model, rule)
    for _ in range(rule.frozen_after):
        objective(squares, *train)
    found = torch.tensor([odds(model.first), odds(model.second)]).double()
    assert float(found @ unit_costs) == pytest.approx(float(C.cost_share * gap), rel=0.1)
    expected = float((unit_costs[1] / unit_costs[0]) ** C.cost_power)
    assert float(found[0] / found[1]) == pytest.approx(expected, rel=0.2)
    assert found[0] > 1.3 * found[1]


def regression(noise: float = 3.0) -> tuple[Pair, Pair]:
    g = torch.Generator().manual_seed(0)
    w = 0.5 * torch.randn(40, generator=g)

    def some(n: int) -> Pair:
        x = torch.randn(n, 40, generator=g)
        return x, x @ w + noise * torch.randn(n, generator=g)

    return some(60), some(2000)


def at_rate(train: Pair, held_out: Pair, rate: float) -> tuple[float, float]:
    """Held-out loss, and the cost of noise as a share of the gap, of the weights that a rate leads to.

    Dropout of a linear regression's inputs is ridge: min ‖y − Xw‖² + rate/(1−rate)·Σ_j (XᵀX)_jj w_j².
    """
    x, y = train
    gram, o = x.T @ x, rate / (1 - rate)
    w = torch.linalg.solve(gram + o * torch.diag(gram.diagonal()), x.T @ y)
    trained, unseen = (float(((a @ w - b) ** 2).mean()) for a, b in (train, held_out))
    return unseen, o * float((gram.diagonal() * w**2).sum()) / len(y) / (unseen - trained)


def trained(rule_of: Any, train: Pair, steps: int = 300) -> nn.Module:
    torch.manual_seed(0)
    model = lbdrop.convert(nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1, bias=False)), verbose=False)
    objective = Objective(model, rule_of(model, steps))
    optimizer = torch.optim.Adam(parameter_groups(model, lr=0.05))
    for _ in range(steps):
        optimizer.zero_grad()
        objective(squares, *train).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("start", [0.05, 0.7])
def test_rate_of_a_linear_regression_ends_near_its_best_from_far_below_and_far_above(start: float) -> None:
    train, held_out = regression()
    grid = [i / 100 for i in range(1, 90)]
    best = min(at_rate(train, held_out, rate)[0] for rate in grid)
    balanced = next(rate for rate in grid if at_rate(train, held_out, rate)[1] >= C.cost_share)
    model = trained(lambda m, n: Balanced(m, [held_out], steps=n, share=0.9, start=start, masks=4), train)
    assert model[0].p == pytest.approx(balanced, abs=0.08)
    assert at_rate(train, held_out, model[0].p)[0] < 1.03 * best
    assert at_rate(train, held_out, 0.01)[0] > 1.2 * best  # there is something to gain
    assert at_rate(train, held_out, 0.7)[0] > 1.05 * best


def test_dropout_is_off_where_every_rate_hurts() -> None:
    train, held_out = regression(noise=0.0)  # as many equations as it takes, and exact ones: nothing is over-fitted
    model = trained(lambda m, n: Balanced(m, [held_out], steps=n, share=0.9, masks=2), train)
    assert model[0].keep == 1.0
    assert not model[0].logit.requires_grad


def test_noise_at_the_best_ridge_costs_half_of_the_gap() -> None:
    """Weights of prior variance τ², inputs at right angles: at λ = σ²/τ² noise costs σ²·df/n, and the gap is 2σ²·df/n."""
    torch.manual_seed(0)
    examples, inputs, noise, tau, runs = 200, 40, 3.0, 0.5, 2000
    x = torch.linalg.qr(torch.randn(examples, inputs).double())[0] * examples**0.5
    ridge = noise**2 / tau**2
    mean = tau * torch.randn(runs, inputs).double() @ x.T
    seen, new = mean + noise * torch.randn(2, runs, examples).double()
    found = seen @ x / (examples + ridge)
    costs = ridge * found.square().sum(1) / examples
    gaps = (new - found @ x.T).square().mean(1) - (seen - found @ x.T).square().mean(1)
    assert float(costs.mean() / gaps.mean()) == pytest.approx(0.5, abs=0.03)


# -------------------------------------------------------------------------------------------------------------- a step


def test_rates_get_no_gradient_and_move_at_measurements_alone() -> None:
    model, train, held_out, _ = over_fitted(C.cost_share)
    objective = Objective(model, Balanced(model, [held_out], steps=3000, every=3))
    moved = []
    for _ in range(21):
        before = model[0].logit.detach().clone()
        objective(squares, *train).backward()
        moved.append(not torch.equal(model[0].logit, before))
        assert model[0].logit.grad is None
        assert model[1].weight.grad.abs().sum() > 0
    # Four measurements are too few to move by.
    assert moved == [False] * 14 + [True] + [False] * 2 + [True] + [False] * 2 + [True]


def rate_with_noise(rule: Balanced) -> float:
    """The rate of the first layer, or the one that it would have with noise."""
    with rule.gate.measuring():
        return float(torch.sigmoid(-rule.logits[0].detach()))


def test_rates_only_rise_in_warm_up_and_are_off_after_it_where_noise_is_certainly_too_costly() -> None:
    model, x, y = linear(4, 400, 0.1)  # nothing to over-fit
    rule = Balanced(model, [(x, y)], steps=500, every=1)
    objective, rates = Objective(model, rule), []
    for _ in range(60):
        objective(squares, x, y)
        rates.append(rate_with_noise(rule))
    early = round(C.warm_up * rule.frozen_after)
    assert min(rates[: early - 1]) > C.start - 1e-6
    assert rates[0] == pytest.approx(C.start)
    assert rates[early - 2] < C.prior_rate  # held-out data are the training data, so that there is no gap at all
    assert rates[-1] < 1e-20
    assert rule.phase == "frozen"
    assert rule.step == early


def shifted_squares(model: nn.Module, x: Tensor, y: Tensor, shift: Tensor) -> Tensor:
    return squares(model, x, y) + shift


def run_with_gaps(gaps: list[tuple[float, float]], steps: int = 500) -> tuple[Balanced, list[float]]:
    """A run in which, one after the other, these are the gaps of both held-out batches; the rule, and each step's rate."""
    model, x, y = linear(4, 400, 0.1)  # the cost of noise at the rate where it starts is about .2
    nothing, held_out = torch.zeros(400), []
    rule = Balanced(model, held_out, steps=steps, every=1)
    objective, rates = Objective(model, rule), []
    for each in gaps:
        held_out[:] = [(x, y, nothing + gap) for gap in each]
        for _ in range(rule.frozen_after // len(gaps)):
            objective(shifted_squares, x, y, nothing)
            rates.append(rate_with_noise(rule))
    return rule, rates


def test_rate_falls_and_can_rise_again_where_noise_is_not_certainly_too_costly() -> None:
    rule, rates = run_with_gaps([(2.0, 2.0), (0.0, 0.0), (2.0, 2.0)], steps=900)
    third = rule.frozen_after // 3
    assert max(rates[:third]) > 2 * C.start
    assert min(rates[third : 2 * third]) < 0.5 * C.start
    assert rates[-1] > 2 * C.start
    assert rule.phase == "frozen"


def test_gap_that_is_not_told_apart_from_nothing_leaves_rates_near_their_start_and_dropout_off() -> None:
    rule, rates = run_with_gaps([(-100.0, 102.0)])
    assert 0.5 * C.start < min(rates[:-1])
    assert max(rates) < 2 * C.start
    assert rule.off == [0]
    assert rule.layers["0"].p < 1e-20


def test_weights_are_trained_without_noise_until_there_certainly_is_a_gap() -> None:
    model, x, y = linear(4, 400, 0.1)
    nothing = torch.zeros(400)
    held_out = [(x, y, nothing + gap) for gap in (-0.1, 0.1)] * 10
    rule = Balanced(model, held_out, steps=5000, every=1, examples=400)
    objective, plain = Objective(model, rule), squares(model[1], x, y).mean()
    model.train()
    for _ in range(30):
        torch.testing.assert_close(objective(shifted_squares, x, y, nothing), plain)
    held_out[:] = [(x, y, nothing + gap) for gap in (1.9, 2.1)] * 10
    found = [objective(shifted_squares, x, y, nothing) for _ in range(60)]
    assert rule.gate.is_open
    assert all(not torch.isclose(each, plain) for each in found[-20:])
    other = Balanced(model, held_out, steps=5000, every=1, examples=400)
    other.load_state_dict(rule.state_dict())
    assert other.gate.is_open


def test_rate_stays_in_its_range() -> None:
    with pytest.warns(UserWarning, match="'0' frozen at 0.7, the highest rate there is"):
        _, rates = run_with_gaps([(1e6, 1e6)])
    assert rates[-2] == pytest.approx(C.max_rate, abs=0.01)
    assert max(rates) < C.max_rate + 1e-6
    _, rates = run_with_gaps([(2.0, 2.0), (-1.0, -1.0)])
    assert C.min_rate - 1e-6 < min(rates[:-1]) < 4 * C.min_rate


def test_rate_without_a_gradient_stays_and_the_others_move() -> None:
    plain, train, held_out, _ = over_fitted(C.cost_share)
    model = Halves(plain[1].weight.detach().clone()).double()
    model.first.logit.requires_grad_(False)
    objective = Objective(model, Balanced(model, [held_out], steps=1000, every=1))
    for _ in range(20):
        objective(squares, *train)
    assert model.first.p == pytest.approx(0.3)
    assert model.second.p > 1.5 * C.start


def test_noise_of_every_layer_is_measured_in_turn() -> None:
    model = nn.Sequential(*(lbdrop.LearnableDropout(rate=0.1) for _ in range(5)), nn.Linear(4, 1)).double()
    x, y = torch.randn(20, 4).double(), torch.randn(20).double()
    objective = Objective(model, Balanced(model, [(x, y)], steps=100, every=1))
    for count, measured in ((1, 2), (2, 4), (3, 5)):
        objective(squares, x, y)
        found = objective.state_dict()["state"]["measurements"]
        assert found["count"] == count
        assert int((found["alone"][1] > 0).sum()) == measured


def test_measurement_leaves_modes_and_running_statistics_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    lbdrop.convert(model, verbose=False)
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    rule = Balanced(model, [(100 + x, y)], steps=100, every=1)
    model[3].eval()
    Objective(model, rule)(cross_entropies, x, y).backward()
    assert rule.measurements.count == 1
    assert int(model[1].num_batches_tracked) == 1
    assert model[1].running_mean.abs().max() < 1  # of the training batch, not of the held-out one
    assert [module.training for module in model] == [True, True, True, False]


def test_short_run_measures_more_often() -> None:
    model, x, y = small_classifier()
    for steps, every in ((10, 1), (300, 3), (10_000, 8)):
        assert Balanced(model, [(x, y)], steps=steps).every == every
    assert Balanced(model, [(x, y)], steps=10, every=5).every == 5


def steps(objective: Objective, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    for _ in range(20):
        optimizer.zero_grad()
        objective(cross_entropies, x, y).backward()
        optimizer.step()


def test_rates_of_the_converted_model_do_not_matter() -> None:
    ends = []
    for rate in (0.05, 0.7):
        torch.manual_seed(0)
        model, x, y = small_classifier(rate)
        objective = Objective(model, held_out=[(x, 2 - y)] * 20, steps=50)
        assert isinstance(objective.rule, Balanced)
        optimizer = torch.optim.Adam(parameter_groups(model, lr=0.1))
        steps(objective, optimizer, x, y)  # held-out answers are wrong ones
        assert objective.rule.gate.is_open
        ends.append([model[0].p, model[3].p])
    assert ends[0] == ends[1]
    assert max(ends[0]) > 2 * C.start


@pytest.mark.parametrize("given", [True, False])
def test_harder_held_out_data_raise_noise_only_where_the_number_of_examples_is_not_given(
    given: bool,
) -> None:
    """Plenty of examples and little to over-fit."""
    torch.manual_seed(0)
    model, x, y = linear(10, 1200, 0.5)
    _, more, answers = linear(10, 2200, 0.5)
    worse = answers[1200:] + 5 * torch.randn(1000, dtype=torch.float64)
    batches = list(zip(x.split(20), y.split(20), strict=True))
    rule = Balanced(model, [(more[1200:], worse)], steps=8 * len(batches), examples=1200 if given else None, every=1)
    model[1].weight.data += 0.02 * torch.randn(1, 10, dtype=torch.float64)
    objective = Objective(model, rule)
    for step in range(rule.frozen_after):
        objective(squares, *batches[step % len(batches)]).backward()
    assert (model[0].p > 0.3) != given
    assert model[0].p <= C.start + 1e-6 or not given


@pytest.mark.parametrize("start", [0.2, None])
def test_run_too_short_to_measure_is_off_or_at_its_start_releases_held_out_data_at_once_and_says_so(
    start: float | None,
) -> None:
    model, x, y = linear(4, 60, 0.5)
    rule = Balanced(model, [(x + 100, y)], steps=12, examples=60, start=start)  # two epochs of six batches
    objective, seen = Objective(model, rule), []

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.append(bool((x > 50).any()) and model.training)
        return squares(model, x, y)

    with pytest.warns(
        UserWarning,
        match=r"got one of 6 steps, frozen after 5: .* dropout is off, or at the rate given .*, and held-out",
    ):
        objective(losses, x[:10], y[:10]).backward()
    seen.clear()
    objective(losses, x[10:20], y[10:20]).backward()
    assert seen == [True]
    assert rule.phase == "frozen"
    assert model[0].p == pytest.approx(start or 0.0)
    assert rule.measurements.count == 0
