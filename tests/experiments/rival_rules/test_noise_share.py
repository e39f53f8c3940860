"""Noise in all: raised where it costs less than half of the generalisation gap, lowered where it costs more than all of it."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.least_squares_with_dropout import linear, over_fitted, squares
from torch import Tensor, nn

import lbdrop
from experiments.rival_rules.noise_share import AT_LEAST, MAX_STEP, beyond, correction
from experiments.rival_rules.noise_trial import MOST, within
from experiments.rival_rules.self_tuning import LIFTED, LOWEST, SelfTuning
from experiments.rival_rules.slopes import Slopes
from lbdrop import Objective
from lbdrop.dropout import logit_of
from lbdrop.integrations.rates import Whole
from lbdrop.rules.measurements import Measurements, shift_sums, sums_of

ODDS = torch.tensor(0.5)


def measured(
    cost: float, gap: float, *, cost_spread: float = 0.0, gap_spread: float = 0.0, count: int = 8, shift: float = 0.0
) -> Measurements:
    """So many measurements with these means; half of them lower, half of them higher by the standard deviations."""
    found, plain = Measurements(1), torch.rand((), dtype=torch.float64)
    for number in range(count):
        sign = 1 - 2 * (number % 2)
        noisy, held_out = plain + cost + sign * cost_spread, plain + gap + sign * gap_spread
        sums = sums_of(plain, noisy, held_out, ODDS)
        found.add(sums, [0], torch.zeros(2, 1, dtype=torch.float64), keep=1.0, keep_alone=1.0)
    for _ in range(5):
        found.shift_sums = found.shift_sums + shift_sums(plain, plain + shift)
    return found


def corrected(found: Measurements, odds: Tensor = ODDS, **options: Any) -> float:
    return float(correction(found, odds, **options))


def test_correction_leads_to_a_cost_between_half_and_all_of_the_gap() -> None:
    for cost in (0.501, 0.7, 0.999):
        assert corrected(measured(cost, 1.0)) == 0
    assert corrected(measured(0.4, 1.0)) == pytest.approx(math.log(0.5 / 0.4), abs=1e-5)
    assert corrected(measured(1.2, 1.0)) == pytest.approx(-math.log(1.2), abs=1e-5)
    assert corrected(measured(0.01, 1.0)) == -corrected(measured(5.0, 1.0)) == pytest.approx(MAX_STEP)
    assert corrected(measured(0.4, 1.0), 1.5 * ODDS) == 0  # there is half as much noise again since


def test_correction_is_zero_where_cost_or_gap_may_be_chance() -> None:
    """Eight measurements: standard errors are standard deviations by √8, with three batches that differ by √3."""
    root = 8**0.5
    assert corrected(measured(0.4, 1.0, gap_spread=0.19 * root)) == pytest.approx(math.log(0.5 * 0.81 / 0.4), abs=1e-5)
    assert corrected(measured(0.4, 1.0, gap_spread=0.21 * root)) == 0
    assert corrected(measured(0.4, 1.0, cost_spread=0.11 * root)) == 0
    assert corrected(measured(1.2, 1.0, gap_spread=0.1 * root)) == pytest.approx(-math.log(1.2 / 1.1), abs=1e-5)
    assert corrected(measured(1.2, 1.0, gap_spread=0.21 * root)) == 0
    assert corrected(measured(1.2, 1.0, cost_spread=0.21 * root)) == 0
    assert corrected(measured(0.4, 1.0, gap_spread=0.19 * root), distinct=3.0) == 0
    assert corrected(measured(0.4, 1.0, gap_spread=0.19 * 3**0.5), distinct=3.0) > 0


def test_correction_leaves_out_what_was_harder_from_the_beginning() -> None:
    assert corrected(measured(0.2, 1.0, shift=0.5)) == pytest.approx(math.log(0.25 / 0.2), abs=1e-5)
    assert corrected(measured(0.4, 1.0, shift=0.5)) == 0


def test_correction_is_zero_where_nothing_is_measured() -> None:
    assert corrected(Measurements(1)) == 0
    for cost, gap in ((-1.0, 1.0), (math.nan, 1.0), (1.0, math.nan), (0.0, 0.0), (0.0, -1.0)):
        assert corrected(measured(cost, gap)) == 0
    assert corrected(measured(1.0, -1.0)) == -MAX_STEP  # no over-fitting at all


def test_noise_certainly_pays_where_the_gap_is_larger_by_two_standard_errors() -> None:
    for gap, spread, expected in ((1.0, 0.0, True), (1.0, 0.09, True), (1.0, 0.11, False), (0.7, 0.0, False)):
        certain, times = beyond(measured(0.4, gap, gap_spread=spread * 8**0.5), ODDS)
        assert bool(certain) == expected
        assert float(times) == pytest.approx((gap - spread) / 0.4, rel=1e-4)
    assert not beyond(measured(0.4, 1.0, count=4), ODDS)[0]  # after few measurements nothing is certain
    assert not beyond(Measurements(1), ODDS)[0]
    certain, times = beyond(measured(-1.0, 1e30), ODDS)  # noise that costs nothing
    assert bool(certain)
    assert within(float(times)) == within(math.inf) == MOST


# ------------------------------------------------------------------------------------------------------------ in a run


def test_correction_moves_the_odds_of_all_learned_rates_within_their_range(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = (0.05, 0.2, 0.8, 0.05)
    layers = [lbdrop.LearnableDropout(8, rate=rate) for rate in rates]
    model = nn.Sequential(*layers, nn.Linear(8, 1))
    layers[3].logit.requires_grad_(False)
    x, y = torch.randn(4, 8), torch.randn(4)
    rule = SelfTuning(model, [(x, y)], steps=100, plain=0.0, every=1)
    objective, layers = Objective(model, rule), list(rule.layers.values())
    for _ in range(5):
        objective(squares, x, y)
    monkeypatch.setattr(rule.slopes, "step", lambda now, window: torch.zeros_like(now))
    for layer, rate in zip(layers, rates, strict=True):
        layer.logit.data.fill_(logit_of(rate))
    layers[0].logit.data += torch.linspace(-0.1, 0.1, 8)
    before = [layer.logit.detach().clone() for layer in layers]

    def moved(by: float) -> list[Tensor]:
        monkeypatch.setattr(
            "experiments.rival_rules.noise_share.correction", lambda *_, **__: torch.tensor(by).double()
        )
        objective(squares, x, y)
        return [layer.logit.detach() for layer in layers]

    assert all(torch.equal(*pair) for pair in zip(moved(0.0), before, strict=True))
    after = moved(math.log(3))
    torch.testing.assert_close(after[0], before[0] - math.log(3))  # and their differences stay
    assert layers[1].p / (1 - layers[1].p) == pytest.approx(3 * 0.25)
    assert torch.equal(after[2], before[2])  # above the highest rate that noise is raised to
    assert torch.equal(after[3], before[3])  # not learned
    moved(20.0)
    assert layers[0].p == pytest.approx(LIFTED)
    assert layers[2].p == pytest.approx(0.8)
    after = moved(-math.log(2))
    assert layers[2].p / (1 - layers[2].p) == pytest.approx(4 / 2)
    assert torch.equal(after[3], before[3])
    moved(-20.0)
    assert all(layer.p == pytest.approx(LOWEST) for layer in layers[:3])


def test_too_little_noise_is_raised_until_it_costs_half_of_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    model, train, held_out, expected = over_fitted(AT_LEAST)
    rule = SelfTuning(model, [held_out], steps=100, start=0.05, plain=0.0, every=1)
    monkeypatch.setattr(rule.slopes, "step", lambda now, window: torch.zeros_like(now))  # the correction alone
    objective = Objective(model, rule)
    for _ in range(rule.settles):
        objective(squares, *train)
    found = model[0].p / (1 - model[0].p)
    assert found == pytest.approx(expected, rel=0.2)
    assert found > 1.5 * 0.05 / 0.95


def run(
    model: nn.Module, data: tuple[Tensor, Tensor], held_out: Any, steps: int, **options: Any
) -> tuple[SelfTuning, list[float]]:
    """The rule of a run of 1000 steps after some of them, without a change of weights, and the rate after each."""
    rule = SelfTuning(model, [held_out], steps=1000, **options)
    objective, rates = Objective(model, rule), []
    for _ in range(steps):
        objective(squares, *data)
        rates.append(model[0].p)
    return rule, rates


def test_warm_up_ends_early_where_a_model_certainly_over_fits() -> None:
    model, train, held_out, expected = over_fitted(AT_LEAST)
    rule, rates = run(model, train, held_out, 12, every=1)
    assert rule.begins == rule.began == 10  # an eighth of 80 steps
    assert rates[9] == pytest.approx(0.1)
    balance = 2 * expected  # where noise costs all of the gap
    assert rates[10] == pytest.approx(min(balance / (1 + balance), MOST), rel=0.2)


def test_warm_up_goes_on_where_nothing_over_fits_and_through_a_first_epoch() -> None:
    model, x, y = linear(4, 400, 0.1)
    rule, rates = run(model, (x, y), (x, y), 12, every=1)
    assert (rule.begins, rule.began) == (80, 0)
    assert rates[-1] == pytest.approx(0.1)
    model, train, held_out, _ = over_fitted(AT_LEAST)
    rule, rates = run(model, train, held_out, 12, every=1, examples=60 * 40)
    assert (rule.begins, rule.began) == (80, 0)
    assert rates[-1] == pytest.approx(0.1)


def test_warm_up_measures_more_often_than_later_steps() -> None:
    model, train, held_out, _ = over_fitted(AT_LEAST)
    rule, _ = run(model, train, held_out, 45)
    # Of ten measurements after forty steps enough count to be certain; of five, as there would be later, not.
    assert rule.every == 8
    assert rule.begins == 40


def test_run_that_began_early_is_resumed_as_one() -> None:
    model, train, held_out, _ = over_fitted(AT_LEAST)
    rule, _ = run(model, train, held_out, 14, every=1)
    again, *_ = linear(20, 60, 3.0)
    other = SelfTuning(again, [held_out], steps=1000, every=1)
    again.load_state_dict(model.state_dict())
    Objective(again, other).load_state_dict(Objective(model, rule).state_dict())
    for each, its in ((model, rule), (again, other)):
        torch.manual_seed(1)
        Objective(each, its)(squares, *train)
    assert other.began == other.begins == rule.begins == 10
    assert torch.equal(other.measurements.sums, rule.measurements.sums)
    assert torch.equal(other.slopes.sums, rule.slopes.sums)
    assert other.slopes.sums[0, 0] > 0


@pytest.mark.parametrize(("epochs", "measured"), [(0.5, True), (3, True), (3, False)])
def test_noise_rises_by_harder_held_out_data_only_where_the_first_epoch_is_not_known(
    epochs: float, measured: bool
) -> None:
    """Plenty of examples and little to over-fit: in a first epoch, and in one that ends before rates are frozen."""
    torch.manual_seed(0)
    model, x, y = linear(10, 400, 0.5)
    _, more, answers = linear(10, 500, 0.5)
    worse = answers[400:] + 5 * torch.randn(100, dtype=torch.float64)
    held_out, examples = [(more[400:], worse)], 400 if measured else None
    rule = SelfTuning(model, held_out, steps=int(epochs * 40), examples=examples, start=0.1, plain=0.0, every=1)
    model[1].weight.data += 0.02 * torch.randn(1, 10, dtype=torch.float64)
    batches, objective = torch.arange(400).split(10), Objective(model, rule)
    for step in range(rule.settles):
        rows = batches[step % 40]
        objective(squares, x[rows], y[rows]).backward()
    if measured:
        assert model[0].p <= 0.101
    else:
        assert model[0].p > 0.3
    assert bool(rule.measurements.sums.any()) == (epochs > 1)  # nothing is measured in a first epoch


def test_distinct_batches_are_counted_and_a_stream_has_any_number() -> None:
    model, x, y = linear(4, 40, 0.1)
    batches = list(zip(x.split(10), y.split(10), strict=True))
    evaluation = Objective(model, examples=40).evaluation(squares, *batches[0])

    class Stream:
        def __iter__(self) -> Iterator[Any]:
            return iter(batches)

    for held_out, count in ((batches, 4), (Stream(), math.inf), (Whole(batches), 4), (Whole(Stream()), math.inf)):
        rule = SelfTuning(model, held_out, steps=10, example=x)
        rule.first_epoch.note(evaluation, torch.device("cpu"))
        assert rule.first_epoch.distinct == count


def test_rate_at_the_edge_is_off_by_examples_that_differ() -> None:
    """A slope of −2 standard errors of 400 examples: certain if all differ, and not if they are 40, ten times each."""
    model, x, y = linear(4, 40, 0.1)
    batches = list(zip(x.split(10), y.split(10), strict=True))
    rule = SelfTuning(model, batches, steps=10)
    model[0].logit.data.fill_(logit_of(LOWEST))
    slopes = torch.ones(400, 1) * torch.tensor([1.0, -1.0]).repeat(200)[:, None] - 0.1
    rule.slopes.add(Slopes.sums_of(torch.zeros(400, 1), slopes), window=10.0)
    assert rule._useless() == [True]
    rule.first_epoch.note(Objective(model, rule).evaluation(squares, x, y), torch.device("cpu"))
    assert rule._useless() == [False]


def test_slopes_and_gap_are_measured_on_every_held_out_batch() -> None:
    """Of an even number in a fixed order, too."""
    model, x, y = linear(4, 50, 0.1)
    train, batches = (x[:10], y[:10]), list(zip(x[10:].split(10), y[10:].split(10), strict=True))
    seen: dict[bool, set[float]] = {True: set(), False: set()}

    def losses(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if not m.training and float(y[0]) != float(train[1][0]):
            seen[torch.is_grad_enabled()].add(float(y[0]))  # slopes need a gradient, the gap none
        return squares(m, x, y)

    objective = Objective(model, SelfTuning(model, batches, steps=100, plain=0.0, every=1))
    for _ in range(8):
        objective(losses, *train)
    assert seen[True] == seen[False] == {float(held_out[0]) for _, held_out in batches}
