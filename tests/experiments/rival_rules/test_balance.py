"""Noise in all: lifted where over-fitting takes more than twice what it costs, lowered where it costs more than that."""

import copy
import math
from typing import Any

import pytest
import torch
from helpers.least_squares_with_dropout import linear, over_fitted, squares
from lbdrop.rules.balance import AT_LEAST, STRIDE, beyond, correction, sums_of
from lbdrop.rules.selftuning import LIFTED, LOWEST
from lbdrop.rules.trial import BALANCE, BEGAN, MOST, within
from torch import Tensor, nn

import lbdrop
from lbdrop import Objective, SelfTuning
from lbdrop.dropout import logit_of
from lbdrop.integrations.rates import Whole
from lbdrop.objective import _Batch
from lbdrop.rules.held_out import HeldOut

NONE = (torch.tensor(0.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
ODDS = torch.tensor(0.5)


def looks(cost: float, gap: float, of_cost: float = 0.0, of_gap: float = 0.0, count: int = 8) -> Tensor:
    """So many looks with these means; half of them lower, half of them higher by the standard deviations."""
    plain = torch.rand(10)
    found = []
    for look in range(count):
        sign = 1 - 2 * (look % 2)
        noisy, held_out = plain + cost + sign * of_cost, plain.mean() + gap + sign * of_gap
        found.append(sums_of(plain, noisy, held_out.expand(7), ODDS))
    return torch.stack(found).sum(0)


def by(sums: Tensor, odds: Tensor = ODDS, shift: tuple[Tensor, Tensor] = NONE, **more: Any) -> float:
    return float(correction(sums, odds, shift, **more))


def test_noise_that_costs_between_half_and_all_of_what_over_fitting_takes_is_left_alone() -> None:
    for cost in (0.501, 0.7, 0.999):
        assert by(looks(cost, 1.0)) == 0
    assert by(looks(0.4, 1.0)) == pytest.approx(math.log(0.5 / 0.4), abs=1e-5)
    assert by(looks(1.2, 1.0)) == pytest.approx(-math.log(1.2), abs=1e-5)
    assert by(looks(0.01, 1.0)) == -by(looks(5.0, 1.0)) == pytest.approx(STRIDE)  # not too far at once
    assert by(looks(0.4, 1.0), 1.5 * ODDS) == 0  # there is half as much again since


def test_what_may_be_chance_is_none() -> None:
    """Eight looks: standard errors are standard deviations by √8, with three batches that differ by √3."""
    root = 8**0.5
    assert by(looks(0.4, 1.0, of_gap=0.19 * root)) == pytest.approx(math.log(0.5 * 0.81 / 0.4), abs=1e-5)
    assert by(looks(0.4, 1.0, of_gap=0.21 * root)) == by(looks(0.4, 1.0, of_cost=0.11 * root)) == 0
    assert by(looks(1.2, 1.0, of_gap=0.1 * root)) == pytest.approx(-math.log(1.2 / 1.1), abs=1e-5)
    assert by(looks(1.2, 1.0, of_gap=0.21 * root)) == by(looks(1.2, 1.0, of_cost=0.21 * root)) == 0
    assert by(looks(0.4, 1.0, of_gap=0.19 * root), distinct=3.0) == 0
    assert by(looks(0.4, 1.0, of_gap=0.19 * 3**0.5), distinct=3.0) > 0


def test_what_held_out_data_lose_from_the_beginning_is_no_over_fitting() -> None:
    shift = (torch.tensor(0.5).double(), torch.tensor(0.0).double())
    assert by(looks(0.2, 1.0), shift=shift) == pytest.approx(math.log(0.25 / 0.2), abs=1e-5)
    assert by(looks(0.4, 1.0), shift=shift) == 0


def test_where_nothing_is_known_nothing_changes() -> None:
    assert by(torch.zeros(6, dtype=torch.float64)) == 0
    for cost, gap in ((-1.0, 1.0), (math.nan, 1.0), (1.0, math.nan), (0.0, 0.0), (0.0, -1.0)):
        assert by(looks(cost, gap)) == 0
        assert not math.isnan(by(looks(cost, gap)))
    assert by(looks(1.0, -1.0)) == -STRIDE  # no over-fitting at all


def test_noise_surely_pays_where_over_fitting_is_beyond_two_standard_errors() -> None:
    for gap, of_gap, expected in ((1.0, 0.0, True), (1.0, 0.09, True), (1.0, 0.11, False), (0.7, 0.0, False)):
        sure, times = beyond(looks(0.4, gap, of_gap=of_gap * 8**0.5), ODDS, NONE)
        assert bool(sure) == expected
        assert float(times) == pytest.approx((gap - of_gap) / 0.4, rel=1e-4)
    assert not beyond(looks(0.4, 1.0, count=4), ODDS, NONE)[0]  # of few looks nothing is sure
    assert not beyond(torch.zeros(6, dtype=torch.float64), ODDS, NONE)[0]
    sure, times = beyond(looks(-1.0, 1e30), ODDS, NONE)  # noise that costs nothing
    assert bool(sure)
    assert within(float(times)) == within(math.inf) == MOST


# ------------------------------------------------------------------------------------------------------------ in a run


def test_what_is_lifted_or_lowered_takes_all_that_move_along_and_none_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    own = (0.05, 0.2, 0.8, 0.05)
    layers = [lbdrop.LearnableDropout(8, rate=rate) for rate in own]
    layers[3].logit.requires_grad_(False)
    model = nn.Sequential(*layers, nn.Linear(8, 1))
    x, y = torch.randn(4, 8), torch.randn(4)
    rule = SelfTuning(model, [(x, y)], steps=100, plain=0.0, every=1)
    objective = Objective(model, rule)
    for _ in range(5):
        objective(squares, x, y)
    monkeypatch.setattr(rule.slopes, "step", lambda now, window: torch.zeros_like(now))
    for layer, rate in zip(layers, own, strict=True):
        layer.logit.data.fill_(logit_of(rate))
    layers[0].logit.data += torch.linspace(-0.1, 0.1, 8)
    before = [layer.logit.detach().clone() for layer in layers]

    def moved(by: float) -> list[Tensor]:
        monkeypatch.setattr("lbdrop.rules.balance.correction", lambda *_, **__: torch.tensor(by).double())
        objective(squares, x, y)
        return [layer.logit.detach() for layer in layers]

    assert all(torch.equal(*pair) for pair in zip(moved(0.0), before, strict=True))
    after = moved(math.log(3))
    torch.testing.assert_close(after[0], before[0] - math.log(3))  # and their differences stay
    assert layers[1].p / (1 - layers[1].p) == pytest.approx(3 * 0.25)
    assert torch.equal(after[2], before[2])  # above what any is lifted to
    assert torch.equal(after[3], before[3])  # not learned
    moved(20.0)
    assert layers[0].p == pytest.approx(LIFTED)
    assert layers[2].p == pytest.approx(0.8)
    after = moved(-math.log(2))
    assert layers[2].p / (1 - layers[2].p) == pytest.approx(4 / 2)
    assert torch.equal(after[3], before[3])
    moved(-20.0)
    assert all(layer.p == pytest.approx(LOWEST) for layer in layers[:3])


def test_noise_that_is_too_little_is_lifted_until_it_costs_half_of_what_over_fitting_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, train, held_out, expected = over_fitted(AT_LEAST)
    rule = SelfTuning(model, [held_out], steps=500, start=0.05, plain=0.0, every=1)
    monkeypatch.setattr(rule.slopes, "step", lambda now, window: torch.zeros_like(now))  # the balance alone
    objective = Objective(model, rule)
    for _ in range(rule.settles):
        objective(squares, *train)
    found = model[0].p / (1 - model[0].p)
    assert found == pytest.approx(expected, rel=0.2)
    assert found > 1.5 * 0.05 / 0.95


def test_the_steps_without_dropout_end_early_where_something_surely_over_fits() -> None:
    model, train, held_out, expected = over_fitted(AT_LEAST)
    rule = SelfTuning(model, [held_out], steps=1000, every=1)
    objective, rates = Objective(model, rule), []
    assert rule.begins == 80
    for _ in range(30):
        objective(squares, *train)
        rates.append(model[0].p)
    assert rule.begins == 10  # an eighth of them
    assert rates[9] == pytest.approx(0.1)
    balance = 2 * expected  # where it costs all of it
    assert rates[10] == pytest.approx(min(balance / (1 + balance), MOST), rel=0.2)
    assert float(rule.slopes.trial[BEGAN, 0]) == 10
    # Where nothing over-fits they go on to their end; nor can it in a first epoch.
    model, x, y = linear(4, 400, 0.1)
    for data, examples in (((x, y), None), (held_out, 60 * 40)):
        fits = over_fitted(AT_LEAST)[0] if examples else model
        rule = SelfTuning(fits, [data], steps=1000, examples=examples, every=1)
        objective = Objective(fits, rule)
        for _ in range(30):
            objective(squares, *(train if examples else (x, y)))
        assert rule.begins == 80
        assert fits[0].p == pytest.approx(0.1)


def test_steps_without_dropout_compare_losses_oftener_than_looks_come_later() -> None:
    model, train, held_out, _ = over_fitted(AT_LEAST)
    rule = SelfTuning(model, [held_out], steps=1000)
    objective = Objective(model, rule)
    for _ in range(45):
        objective(squares, *train)
    # Of ten comparisons after forty steps enough count to be sure; of five, as there would be by looks alone, not.
    assert rule.every == 8
    assert rule.begins == 40


def test_a_run_that_began_early_and_is_taken_up_again_knows_that_it_did() -> None:
    model, train, held_out, _ = over_fitted(AT_LEAST)
    rule = SelfTuning(model, [held_out], steps=1000, every=1)
    objective = Objective(model, rule)
    for _ in range(20):
        objective(squares, *train)
    again, *_ = linear(20, 60, 3.0)
    other = SelfTuning(again, [held_out], steps=1000, every=1)
    again.load_state_dict(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(other.slopes.trial[BALANCE], rule.slopes.trial[BALANCE])
    for each, its in ((model, rule), (again, other)):
        torch.manual_seed(1)
        Objective(each, its)(squares, *train)
    assert other.begins == rule.begins == 10
    assert float(other.slopes.sums[0, 0]) == pytest.approx(float(rule.slopes.sums[0, 0]))
    assert other.slopes.sums[0, 0] > 0


@pytest.mark.parametrize(("epochs", "known"), [(0.5, True), (8, True), (20, True), (8, False)])
def test_noise_rises_by_harder_held_out_data_only_where_nobody_can_know_that_they_are(
    epochs: float, known: bool
) -> None:
    """Plenty of examples and little to over-fit: in a first epoch, in one that ends after rates have begun, and in one before."""
    torch.manual_seed(0)
    model, x, y = linear(10, 4000, 0.5)
    _, more, answers = linear(10, 5000, 0.5)
    worse = answers[4000:] + 5 * torch.randn(1000, dtype=torch.float64)
    steps = int(epochs * 200)
    examples = 4000 if known else None
    rule = SelfTuning(model, [(more[4000:], worse)], steps=steps, examples=examples, start=0.1, plain=0.0, every=1)
    model[1].weight.data += 0.02 * torch.randn(1, 10, dtype=torch.float64)
    batches, objective = torch.arange(4000).split(20), Objective(model, rule)
    for step in range(rule.settles):
        rows = batches[step % 200]
        objective(squares, x[rows], y[rows]).backward()
    if known:
        assert model[0].p <= 0.101
    else:
        assert model[0].p > 0.3
    assert bool(rule.slopes.trial[BALANCE].any()) == (epochs > 1)  # in a first epoch nothing is weighed


def test_batches_that_differ_are_counted_over_all_processes_and_those_without_a_number_are_many() -> None:
    model, x, y = linear(4, 40, 0.1)
    batches = list(zip(x.split(10), y.split(10), strict=True))
    batch = _Batch(Objective(model, lbdrop.Bound(model, 40)), squares, batches[0])

    class Stream:
        def __iter__(self) -> Any:
            return iter(batches)

    for held_out, count in ((batches, 4), (Stream(), math.inf), (Whole(batches), 4), (Whole(Stream()), math.inf)):
        rule = SelfTuning(model, held_out, steps=10, example=x)
        rule.first_epoch.note(batch, torch.device("cpu"))
        assert rule.first_epoch.distinct == count
    rule = SelfTuning(model, batches, steps=10)
    assert rule._at_once == 10
    assert HeldOut([(object(),)], x).at_once == math.inf


def test_rates_at_the_edge_are_judged_by_examples_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = linear(4, 40, 0.1)
    rule = SelfTuning(model, list(zip(x.split(10), y.split(10), strict=True)), steps=10)
    rule.first_epoch.note(_Batch(Objective(model, rule), squares, (x, y)), torch.device("cpu"))
    model[0].logit.data.fill_(logit_of(LOWEST))
    asked = []
    monkeypatch.setattr(rule.slopes, "surely_down", lambda count: asked.append(count) or torch.tensor([True]))
    assert rule._useless() == [True]
    assert asked == [40]


def test_a_look_and_what_is_weighed_see_every_held_out_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an even number in a fixed order, too."""
    model, x, y = linear(4, 40, 0.1)
    seen: dict[str, set[float]] = {"look": set(), "weighed": set()}
    rule = SelfTuning(model, list(zip(x.split(10), y.split(10), strict=True)), steps=100, plain=0.0, every=1)
    look, losses = rule.look, rule._held_out_losses
    monkeypatch.setattr(rule, "look", lambda e: seen["look"].add(float(rule.held_out.peek()[1][0])) or look(e))
    monkeypatch.setattr(
        rule, "_held_out_losses", lambda e, batch: seen["weighed"].add(float(batch[1][0])) or losses(e, batch)
    )
    objective = Objective(model, rule)
    for _ in range(8):
        objective(squares, x, y)
    assert seen["look"] == seen["weighed"] == {float(each) for each in y[::10]}
