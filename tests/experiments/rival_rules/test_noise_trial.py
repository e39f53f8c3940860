"""Noise that costs more than the generalisation gap is off; noise that may pay begins where it costs as much."""

import pytest
import torch
from helpers.least_squares_with_dropout import linear, squares
from torch import Tensor, nn

import lbdrop
from experiments.rival_rules.noise_trial import (
    LEAST,
    MOST,
    RATE,
    STEPS,
    costs,
    start_rate,
    sums_of,
    too_costly,
    turn,
)
from experiments.rival_rules.self_tuning import SelfTuning, parameter_groups
from lbdrop import Objective
from lbdrop.rules.measurements import Measurements, shift_sums

Shift = tuple[Tensor, Tensor]
NO_SHIFT = (torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64))


def nothing_tried(rates: int) -> Tensor:
    return torch.zeros(9, rates, dtype=torch.float64)


def rates_of_run(
    model: nn.Module, rule: SelfTuning, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int
) -> list[float]:
    """The rate after each training step."""
    objective, found = Objective(model, rule), []
    for _ in range(steps):
        optimizer.zero_grad()
        objective(squares, x, y).backward()
        optimizer.step()
        found.append(model[0].p)
    return found


def judged(model: nn.Module, x: Tensor, y: Tensor, held_out: Tensor) -> bool:
    """Whether a trial finds the noise too costly, beside these losses of held-out examples."""
    logit, generator = model[0].logit, torch.Generator().manual_seed(0)
    before = logit.detach().clone()
    evaluation = Objective(model, examples=len(x)).evaluation(squares, x, y)
    found = nothing_tried(1)
    for _ in range(4):
        plain, cost = costs(evaluation, [logit], [0], generator)
        torch.testing.assert_close(plain, (model[1](x).squeeze(1) - y).detach().float() ** 2)
        found += sums_of(cost, [0], 1, plain, held_out)
    assert torch.equal(logit.detach(), before)
    (answer,) = too_costly(found)
    return answer


def test_cost_of_noise_is_that_of_its_closed_form() -> None:
    """Dropping inputs of a linear model at rate p costs p/(1 − p) Σ (xw)² on average."""
    model, x, y = linear(5, 2000, 0.1)
    expected = 0.1 / 0.9 * (x * model[1].weight.detach()).square().sum(1).mean()
    evaluation = Objective(model, examples=len(x)).evaluation(squares, x, y)
    generator = torch.Generator().manual_seed(0)
    found = torch.cat([costs(evaluation, [model[0].logit], [0], generator)[1] for _ in range(20)])
    assert float(found.mean()) == pytest.approx(float(expected), rel=0.03)
    plain = (model[1](x).squeeze(1) - y).detach() ** 2
    assert judged(model, x, y, plain + 0.4 * expected)  # two gaps are less
    assert not judged(model, x, y, plain + 0.6 * expected)
    assert judged(model, x, y, plain - 10 * expected)  # a gap below zero counts as zero


def test_cost_that_may_be_chance_is_not_too_high() -> None:
    model, x, y = linear(5, 2000, 0.1)
    plain = (model[1](x).squeeze(1) - y).detach() ** 2
    assert not judged(model, x[:2], y[:2], plain[:2])
    assert too_costly(nothing_tried(3)) == [False] * 3
    one = torch.ones(1)
    assert too_costly(sums_of(one[:, None], [0], 1, one, one)) == [False]  # one number has no spread
    for endless in (torch.nan, torch.inf):
        found = sums_of(endless * torch.ones(5, 1), [1], 2, torch.ones(5), torch.ones(5))
        assert too_costly(found) == [False, True]


def test_noise_is_too_costly_where_a_network_does_not_over_fit() -> None:
    for inputs, examples, noise, expected in ((40, 50, 3.0, False), (4, 400, 0.1, True)):
        model, x, y = linear(inputs, examples, noise)
        _, more, answers = linear(inputs, examples + 400, noise)  # of the same truth
        held_out = (model[1](more[examples:]).squeeze(1) - answers[examples:]).detach() ** 2
        assert judged(model, x, y, held_out) == expected


def test_rate_is_off_for_good_when_the_trial_finds_it_too_costly() -> None:
    torch.manual_seed(0)
    model, x, y = linear(4, 400, 0.1)
    rule = SelfTuning(model, [(x[200:], y[200:])], steps=100, examples=200, every=1)
    optimizer = torch.optim.SGD(parameter_groups(model), lr=1e-4)
    off = [rate < 1e-6 for rate in rates_of_run(model, rule, optimizer, x[:200], y[:200], 12)]
    assert off == [False] * 8 + [True] * 4
    assert rule.phase == "frozen"  # nothing is left to tune, so held-out examples are released at once
    assert rule.slopes.steps == 8


def test_rates_start_where_all_noise_together_costs_the_gap() -> None:
    """The closed form again: at the rate that comes out, the noise of two dropouts costs as much as the gap."""
    model, x, y = linear(5, 2000, 0.1)
    each = (x * model[1].weight.detach()).square().sum(1)  # times p/(1 − p)
    plain = (model[1](x).squeeze(1) - y).detach() ** 2
    chance = (2 * plain.var(correction=0) / len(plain)).sqrt()  # of the means of training and held-out examples
    for rate in (0.08, 0.2, 0.4):
        gap = 2 * rate / (1 - rate) * each.mean() + chance
        found = sums_of((0.1 / 0.9 * each)[:, None].expand(-1, 2), [0, 1], 2, plain, plain + gap)
        assert start_rate(found, [True, True], NO_SHIFT) == pytest.approx(rate, rel=1e-3)  # n or n − 1
        alone = start_rate(found, [True, False], NO_SHIFT)  # what is off costs nothing: twice as much for the other
        assert alone / (1 - alone) == pytest.approx(min(2 * rate / (1 - rate), MOST / (1 - MOST)), rel=1e-3)
    for cost, gap, expected in (
        (1, -1, LEAST),
        (-1, 1, MOST),
        (-1, -1, LEAST),
        (torch.inf, 1, LEAST),
        (torch.nan, 1, LEAST),
    ):
        found = sums_of(cost * each[:, None], [0], 1, plain, plain + gap)
        assert start_rate(found, [True], NO_SHIFT) == expected
    assert start_rate(nothing_tried(1), [True], NO_SHIFT) == RATE


def test_rates_start_without_the_shift_that_held_out_data_had_before_training() -> None:
    model, x, y = linear(5, 2000, 0.1)
    each = (x * model[1].weight.detach()).square().sum(1)
    plain = (model[1](x).squeeze(1) - y).detach() ** 2
    gap = 0.2 / 0.8 * each.mean()
    found = sums_of((0.1 / 0.9 * each)[:, None], [0], 1, plain, plain + gap)
    without = start_rate(found, [True], NO_SHIFT)
    assert without == pytest.approx(0.2, abs=0.01)

    def started(*shares: float) -> float:
        measurements = Measurements(1)
        for share in shares:
            measurements.shift_sums = measurements.shift_sums + shift_sums(
                plain.double().mean(), (plain + share * gap).double().mean()
            )
        return start_rate(found, [True], measurements.shift())

    assert started(-1, 1.5, -1, 1.5) == without  # of either sign: chance
    assert started(1) == started(0.99, 1.0, 1.0, 1.01) == without  # after few measurements nothing is certain
    half = started(0.49, 0.5, 0.5, 0.5, 0.51)
    assert half / (1 - half) == pytest.approx(without / (1 - without) - 0.1 / 0.8, rel=0.02)
    assert started(0.99, 1.0, 1.0, 1.0, 1.01) == LEAST


@pytest.mark.parametrize("start", [None, 0.3])
def test_rate_that_is_not_off_starts_where_the_trial_or_the_user_says(start: float | None) -> None:
    torch.manual_seed(0)
    model, x, y = linear(40, 100, 3.0)
    _, more, answers = linear(40, 500, 3.0)
    rule = SelfTuning(model, [(more[100:], answers[100:])], steps=100, start=start)
    objective = Objective(model, rule)
    for _ in range(9):
        objective(squares, x, y)
    expected = start_rate(rule.trial_sums, [True], rule.measurements.shift()) if start is None else start
    assert LEAST <= expected <= MOST
    assert model[0].p == pytest.approx(expected)


def test_run_does_not_depend_on_the_rates_of_the_model() -> None:
    _, x, y = linear(40, 100, 3.0)
    found = []
    for rate in (0.05, 0.7):
        torch.manual_seed(0)
        model = lbdrop.convert(nn.Sequential(nn.Dropout(rate), nn.Linear(40, 1)).double(), verbose=False)
        rule = SelfTuning(model, [(x[60:], y[60:])], steps=100, examples=60, every=1)
        optimizer = torch.optim.Adam(parameter_groups(model), lr=1e-2)
        rates = rates_of_run(model, rule, optimizer, x[:60], y[:60], 30)
        assert rates[10] != rates[29]  # it moves
        found.append(rates)
    assert found[0] == found[1]


@pytest.mark.parametrize(("rates", "at_once"), [(1, 1), (3, 3), (9, 4), (50, 4), (170, 9)])
def test_every_rate_has_its_turn_and_no_step_tries_very_many(rates: int, at_once: int) -> None:
    logits = [nn.Parameter(torch.zeros(()), requires_grad=rate != 1) for rate in range(rates + (rates > 1))]
    turns = [turn(step, logits) for step in range(7, 7 + STEPS)]
    assert all(len(set(each)) == len(each) == at_once for each in turns)
    assert {rate for each in turns for rate in each} == {rate for rate in range(len(logits)) if rate != 1 or rates == 1}


def test_cost_that_was_not_tried_counts_for_nothing() -> None:
    costs, losses = torch.rand(6, 2), torch.rand(6)
    found = sums_of(costs, [0, 2], 3, losses, losses[:4])
    assert found[0].tolist() == [6, 0, 6]
    torch.testing.assert_close(found[1, [0, 2]].float(), costs.sum(0))
    assert found[3].tolist() == [6, 6, 6]
    assert found[6].tolist() == [4, 4, 4]


def test_noise_is_judged_only_after_every_example_was_trained_on() -> None:
    """A quarter of an epoch without dropout: held-out and training examples are as new, and any cost is above the gap."""
    x, y = linear(4, 400, 0.1)[1:]

    def made(model: nn.Module, examples: int) -> Objective:
        return Objective(model, SelfTuning(model, [(x[200:], y[200:])], steps=100, examples=examples))

    def steps(objective: Objective, count: int) -> None:
        torch.manual_seed(0)
        for _ in range(count):
            objective(squares, x[:200], y[:200])

    for examples, off in ((20_000, False), (1_000, True)):
        model, again = linear(4, 400, 0.1)[0], linear(4, 400, 0.1)[0]
        first = made(model, examples)
        steps(first, 8)
        resumed = made(again, examples)  # a run resumed in its first epoch judges no noise either
        again.load_state_dict(model.state_dict())
        resumed.load_state_dict(first.state_dict())
        steps(first, 1)
        steps(resumed, 1)
        assert (model[0].p < 1e-6) == off
        assert again[0].p == model[0].p


def test_batch_norm_behind_a_dropout_is_trained_as_ever_while_noise_is_tried() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    lbdrop.convert(model, verbose=False)
    x, y = torch.randn(20, 6), torch.randn(20)
    objective = Objective(model, SelfTuning(model, [(100 + x, y)], steps=100))
    for step in range(1, 9):  # each of them tries noise
        model.zero_grad()
        objective(squares, x, y).backward()
        assert int(model[2].num_batches_tracked) == step
        assert model.training
    assert model[2].running_mean.abs().max() < 1


@pytest.mark.parametrize(("harder", "examples", "raised"), [(0.0, 400, False), (30.0, 400, False), (30.0, None, True)])
def test_harder_held_out_data_raise_the_start_only_where_the_first_epoch_is_not_known(
    harder: float, examples: int | None, raised: bool
) -> None:
    """Answers of held-out examples have further noise: their loss is larger from the first step on."""
    torch.manual_seed(0)
    model, x, y = linear(40, 400, 3.0)
    nn.init.zeros_(model[1].weight)
    _, more, answers = linear(40, 800, 3.0)
    worse = answers[400:] + harder**0.5 * torch.randn(400, dtype=torch.float64)
    rule = SelfTuning(model, [(more[400:], worse)], steps=500, examples=examples, every=1)
    optimizer = torch.optim.SGD(parameter_groups(model), lr=4e-2)
    objective, batches = Objective(model, rule), torch.arange(400).split(20)
    while rule.phase == "warm-up" or rule.slopes.steps == rule.begins:
        rows = batches[rule.slopes.steps % 20]
        optimizer.zero_grad()
        objective(squares, x[rows], y[rows]).backward()
        optimizer.step()
    assert float(rule.measurements.shift_sums[0]) == (0 if examples is None else 20)
    assert (model[0].p > 0.3) == raised
    assert (model[0].p < 0.1) != raised


def test_shift_is_measured_without_taking_held_out_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run whose held-out data are not harder is the same with and without."""
    _, x, y = linear(40, 200, 3.0)
    held_out, found = list(zip(x[100:].split(10), y[100:].split(10), strict=True)), []
    for measured in (True, False):
        torch.manual_seed(0)
        model = lbdrop.convert(nn.Sequential(nn.Dropout(0.2), nn.Linear(40, 1)).double(), verbose=False)
        rule = SelfTuning(model, held_out, steps=200, examples=100, every=1)
        if not measured:
            monkeypatch.setattr(rule.first_epoch, "last", lambda: range(0))
        optimizer = torch.optim.Adam(parameter_groups(model), lr=1e-2)
        found.append(rates_of_run(model, rule, optimizer, x[:20], y[:20], 40))
        assert float(rule.measurements.shift_sums[0]) == 5 * measured
    assert found[0] == found[1]
    assert found[0][20] != found[0][39]


def test_shift_is_measured_where_the_first_epoch_is_known_and_over_in_time() -> None:
    model, x, y = linear(4, 400, 0.1)
    objective = Objective(model, examples=400)

    def last(examples: int | None, *batch: Tensor) -> range:
        rule = SelfTuning(model, [(x, y)], steps=1000, examples=examples)
        rule.first_epoch.note(objective.evaluation(squares, *batch), torch.device("cpu"))
        return rule.first_epoch.last()

    for examples, expected in (
        (None, range(0)),
        (40, range(10)),
        (200, range(30, 50)),
        (1200, range(280, 300)),  # after rates have begun to move, and before they are frozen, after 400 steps
        (1600, range(380, 400)),
        (1604, range(0)),
    ):
        assert last(examples, x[:4], y[:4]) == expected
    assert last(200) == range(0)  # a batch of unknown size
