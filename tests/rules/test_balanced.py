"""Balanced noise: where what it should cost has a closed form it costs that, from any start; and nothing else moves a rate."""

from typing import Any

import pytest
import torch
from helpers.least_squares_with_dropout import linear, over_fitted, squares
from helpers.small_classifier import cross_entropies, small_classifier
from torch import Tensor, nn

import lbdrop
from lbdrop import Balanced, Objective, parameter_groups
from lbdrop.rules.balanced import CONSTANTS as C

Pair = tuple[Tensor, Tensor]

# ------------------------------------------------------------------------------------------------ known right answers


def odds(layer: Any) -> float:
    return layer.p / (1 - layer.p)


@pytest.mark.parametrize("start", [0.05, 0.7])
def test_noise_costs_its_share_of_what_over_fitting_takes_from_below_and_from_above(start: float) -> None:
    model, train, held_out, expected = over_fitted(C.cost_share)
    rule = Balanced(model, [held_out], steps=1000, start=start, every=1)
    objective = Objective(model, rule)
    for _ in range(rule.frozen_after):  # weights stay where they are
        objective(squares, *train)
    assert 1.5 * C.start / (1 - C.start) < expected < 0.7 * C.max_rate / (1 - C.max_rate)
    assert odds(model[0]) == pytest.approx(expected, rel=0.15)
    assert rule.phase == "frozen"


class Halves(nn.Module):
    """Two dropouts side by side, the noise of the second dearer than that of the first."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.first, self.second = lbdrop.LearnableDropout(rate=0.3), lbdrop.LearnableDropout(rate=0.3)
        self.out = nn.Linear(weight.shape[1], 1, bias=False).double()
        self.out.weight.data = weight

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return self.out(torch.cat([self.first(a), self.second(b)], 1))


def test_a_dearer_layer_has_less_noise_and_both_cost_the_share_together() -> None:
    plain, train, held_out, _ = over_fitted(C.cost_share)
    weight = plain[1].weight.detach().clone()
    weight[:, 10:] *= 2
    model = Halves(weight).double()
    prices = (train[0] * weight).square().mean(0).view(2, 10).sum(1)
    out = held_out[0], (held_out[0] @ weight.T)[:, 0] + 6 * torch.randn(4000, dtype=torch.float64)
    within = train[0], (train[0] @ weight.T)[:, 0] + 2 * torch.randn(60, dtype=torch.float64)
    gap = (squares(model.out, *out).mean() - squares(model.out, *within).mean()).detach()
    rule = Balanced(model, [out], steps=2000, every=1)
    objective = Objective(model, rule)
    for _ in range(rule.frozen_after):
        objective(squares, *within)
    found = torch.tensor([odds(model.first), odds(model.second)]).double()
    assert float(found @ prices) == pytest.approx(float(C.cost_share * gap), rel=0.2)
    assert float(found[0] / found[1]) == pytest.approx(float((prices[1] / prices[0]) ** C.cost_power), rel=0.3)
    assert found[0] > 1.3 * found[1]


def regression(noise: float = 3.0) -> tuple[Pair, Pair]:
    g = torch.Generator().manual_seed(0)
    w = 0.5 * torch.randn(40, generator=g)

    def some(n: int) -> Pair:
        x = torch.randn(n, 40, generator=g)
        return x, x @ w + noise * torch.randn(n, generator=g)

    return some(60), some(2000)


def at_rate(train: Pair, held: Pair, rate: float) -> tuple[float, float]:
    """Held-out loss, and what noise costs beside what over-fitting takes, of the weights that a rate leads to.

    Dropout of a linear regression's inputs is ridge: min ‖y − Xw‖² + rate/(1−rate)·Σ_j (XᵀX)_jj w_j².
    """
    x, y = train
    gram, o = x.T @ x, rate / (1 - rate)
    w = torch.linalg.solve(gram + o * torch.diag(gram.diagonal()), x.T @ y)
    fitted, beyond = (float(((a @ w - b) ** 2).mean()) for a, b in (train, held))
    return beyond, o * float((gram.diagonal() * w**2).sum()) / len(y) / (beyond - fitted)


def trained(model: nn.Module, rule: Balanced, train: Pair, steps: int) -> None:
    objective = Objective(model, rule)
    optimizer = torch.optim.Adam(parameter_groups(model, lr=0.02))
    for _ in range(steps):
        optimizer.zero_grad()
        objective(squares, *train).backward()
        optimizer.step()


@pytest.mark.parametrize("start", [0.05, 0.7])
def test_a_linear_regression_ends_near_its_best_rate_from_far_below_and_far_above(start: float) -> None:
    train, held = regression()
    grid = [i / 100 for i in range(1, 90)]
    best = min(at_rate(train, held, rate)[0] for rate in grid)
    balanced = next(rate for rate in grid if at_rate(train, held, rate)[1] >= C.cost_share)
    torch.manual_seed(0)
    model = lbdrop.convert(nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1, bias=False)), verbose=False)
    trained(model, Balanced(model, [held], steps=900, share=0.9, start=start, masks=4), train, 900)
    assert model[0].p == pytest.approx(balanced, abs=0.06)
    assert at_rate(train, held, model[0].p)[0] < 1.03 * best
    assert at_rate(train, held, 0.01)[0] > 1.2 * best  # there is something to gain
    assert at_rate(train, held, 0.7)[0] > 1.05 * best


def test_at_the_best_ridge_noise_costs_half_of_what_over_fitting_takes() -> None:
    """Weights of prior variance τ², inputs at right angles: at λ = σ²/τ² noise costs σ²·df/n, and the gap is 2σ²·df/n."""
    torch.manual_seed(0)
    examples, inputs, noise, tau = 200, 40, 3.0, 0.5
    x = torch.linalg.qr(torch.randn(examples, inputs).double())[0] * examples**0.5
    ridge = noise**2 / tau**2
    costs, gaps = [], []
    for _ in range(2000):
        mean = x @ (tau * torch.randn(inputs).double())
        seen, new = mean + noise * torch.randn(2, examples).double()
        found = x.T @ seen / (examples + ridge)
        costs.append(ridge * found.square().sum() / examples)
        gaps.append((new - x @ found).square().mean() - (seen - x @ found).square().mean())
    assert float(sum(costs) / sum(gaps)) == pytest.approx(0.5, abs=0.03)


def test_where_every_rate_hurts_dropout_is_off() -> None:
    train, held = regression(noise=0.0)  # no noise, as many equations as it takes: nothing to hold back
    torch.manual_seed(0)
    model = lbdrop.convert(nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1, bias=False)), verbose=False)
    trained(model, Balanced(model, [held], steps=900, share=0.9, masks=2), train, 900)
    assert model[0].keep == 1.0
    assert not model[0].logit.requires_grad


# -------------------------------------------------------------------------------------------------------------- a step


def test_rates_get_no_gradient_and_move_at_looks_alone() -> None:
    model, train, held_out, _ = over_fitted(C.cost_share)
    objective = Objective(model, Balanced(model, [held_out], steps=3000, every=3))
    moved = []
    for _ in range(21):
        before = model[0].logit.detach().clone()
        objective(squares, *train).backward()
        moved.append(not torch.equal(model[0].logit, before))
        assert model[0].logit.grad is None
        assert model[1].weight.grad.abs().sum() > 0
    # Of few looks nothing is known.
    assert moved == [False] * 14 + [True] + [False] * 2 + [True] + [False] * 2 + [True]


def test_in_the_first_steps_rates_only_rise() -> None:
    model, x, y = linear(4, 400, 0.1)  # nothing to over-fit
    rule = Balanced(model, [(x, y)], steps=1000, every=1)
    objective, rates = Objective(model, rule), []
    for _ in range(120):
        objective(squares, x, y)
        rates.append(model[0].p)
    early = round(C.warm_up * 0.4 * 1000)
    assert rates[: early - 1] == pytest.approx([C.start] * (early - 1))
    assert rates[-1] < 1e-20  # then it is off, for it surely costs more than it can give
    assert rule.phase == "frozen"
    assert rule.step == early


def test_what_may_be_of_use_later_is_not_off_for_good_when_the_first_steps_are_over() -> None:
    model, x, y = linear(4, 400, 0.1)
    rule = Balanced(model, [(x, y)], steps=1000, every=1)
    objective, rates = Objective(model, rule), []
    for step in range(200):
        objective(squares, x, y)
        if step < 100:  # a gap of nothing, give or take ten
            rule.measurements.sums[4] += 100
        elif step > 150:
            rule.measurements.sums[2] += 10
        rates.append(model[0].p)
    assert rule.judged
    assert rule.phase == "measuring"
    assert rates[149] == pytest.approx(C.min_rate)
    assert rates[-1] > C.start


def test_a_frozen_rate_stays_and_the_others_move() -> None:
    plain, train, held_out, _ = over_fitted(C.cost_share)
    model = Halves(plain[1].weight.detach().clone()).double()
    model.first.logit.requires_grad_(False)
    objective = Objective(model, Balanced(model, [held_out], steps=1000, every=1))
    for _ in range(20):
        objective(squares, *train)
    assert model.first.p == pytest.approx(0.3)
    assert model.second.p > 1.5 * C.start


def test_every_rate_has_its_turn() -> None:
    model = nn.Sequential(*(lbdrop.LearnableDropout(rate=0.1) for _ in range(5)), nn.Linear(4, 1)).double()
    x, y = torch.randn(20, 4).double(), torch.randn(20).double()
    rule = Balanced(model, [(x, y)], steps=100, every=1)
    objective = Objective(model, rule)
    for looks, known in ((1, 2), (2, 4), (3, 5)):
        objective(squares, x, y)
        assert rule.measurements.count == looks
        assert int((rule.measurements.alone[1] > 0).sum()) == known


def test_calls_without_gradients_are_no_steps() -> None:
    model, x, y = small_classifier()
    rule = Balanced(model, [(x, y)], steps=100)
    objective = Objective(model, rule)
    for _ in range(4):
        objective(cross_entropies, x, y).backward()
        with torch.no_grad():
            objective(cross_entropies, x, y)
    assert rule.step == 4


def test_a_look_leaves_modes_and_running_statistics_as_they_were() -> None:
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


def test_a_short_run_looks_oftener() -> None:
    model, x, y = small_classifier()
    for steps, every in ((10, 1), (300, 3), (10_000, 8)):
        assert Balanced(model, [(x, y)], steps=steps).every == every
    assert Balanced(model, [(x, y)], steps=10, every=5).every == 5


def test_the_rates_that_a_model_comes_with_do_not_matter() -> None:
    ends = []
    for rate in (0.05, 0.7):
        torch.manual_seed(0)
        model, x, y = small_classifier(rate)
        objective = Objective(model, held_out=[(x, 2 - y)], steps=100)
        assert isinstance(objective.rule, Balanced)
        optimizer = torch.optim.Adam(parameter_groups(model, lr=0.05))
        for _ in range(60):
            optimizer.zero_grad()
            objective(cross_entropies, x, y).backward()
            optimizer.step()
        ends.append([model[0].p, model[3].p])
    assert ends[0] == ends[1]
    assert max(ends[0]) > 2 * C.start


@pytest.mark.parametrize(("epochs", "known"), [(0.5, True), (8, True), (8, False)])
def test_noise_rises_by_harder_held_out_data_only_where_nobody_can_know_that_they_are(
    epochs: float, known: bool
) -> None:
    """Plenty of examples and little to over-fit: in a first epoch, and in one that ends before rates are settled."""
    torch.manual_seed(0)
    model, x, y = linear(10, 4000, 0.5)
    _, more, answers = linear(10, 5000, 0.5)
    worse = answers[4000:] + 5 * torch.randn(1000, dtype=torch.float64)
    steps = int(epochs * 200)
    rule = Balanced(model, [(more[4000:], worse)], steps=steps, examples=4000 if known else None, every=1)
    model[1].weight.data += 0.02 * torch.randn(1, 10, dtype=torch.float64)
    batches, objective = torch.arange(4000).split(20), Objective(model, rule)
    for step in range(rule.frozen_after):
        rows = batches[step % 200]
        objective(squares, x[rows], y[rows]).backward()
    assert (model[0].p > 0.3) != known
    assert model[0].p <= C.start + 1e-6 or not known
    assert (rule.measurements.count > 0) == (epochs > 1)  # in a first epoch nothing is compared
