"""Noise that costs more than over-fitting is left alone; noise that may pay is not, and begins where it costs as much."""

import pytest
import torch
from helpers.least_squares_with_dropout import linear, squares
from lbdrop.rules.slopes import TRIAL
from lbdrop.rules.trial import (
    BEGIN,
    LEAST,
    MOST,
    RATE,
    SHIFT,
    STEPS,
    balanced,
    costs,
    shift_of,
    sums_of,
    too_dear,
    turn,
)
from torch import Tensor, nn

import lbdrop
from lbdrop import Objective, SelfTuning
from lbdrop.objective import _Batch


def trials(begin: Tensor | None = None, shift: Tensor | float | None = None, rates: int = 1) -> Tensor:
    """What a rule has summed up, where these have been seen."""
    found = torch.zeros(TRIAL, rates, dtype=torch.float64)
    for at, part in ((BEGIN, begin), (SHIFT, shift)):
        if part is not None:
            found[at] = part
    return found


def course(
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


def asked(model: nn.Module, x: Tensor, y: Tensor, held_out: Tensor) -> list[bool]:
    logit, generator = model[0].logit, torch.Generator().manual_seed(0)
    before = logit.detach().clone()
    evaluation = _Batch(Objective(model, lbdrop.Bound(model, len(x))), squares, (x, y))
    found = torch.zeros(9, 1, dtype=torch.float64)
    for _ in range(4):
        plain, cost = costs(evaluation, [logit], [0], generator)
        torch.testing.assert_close(plain, (model[1](x).squeeze(1) - y).detach().float() ** 2)
        found += sums_of(cost, [0], 1, plain, held_out)
    assert torch.equal(logit.detach(), before)
    return too_dear(trials(found))


def test_the_cost_of_noise_is_that_of_its_closed_form() -> None:
    """Dropping inputs of a linear model at rate p costs p/(1 − p) Σ (xw)² on average."""
    model, x, y = linear(5, 2000, 0.1)
    expected = 0.1 / 0.9 * (x * model[1].weight.detach()).square().sum(1).mean()
    evaluation = _Batch(Objective(model, lbdrop.Bound(model, len(x))), squares, (x, y))
    generator = torch.Generator().manual_seed(0)
    found = torch.cat([costs(evaluation, [model[0].logit], [0], generator)[1] for _ in range(20)])
    assert float(found.mean()) == pytest.approx(float(expected), rel=0.03)
    plain = (model[1](x).squeeze(1) - y).detach() ** 2
    assert asked(model, x, y, plain + 0.4 * expected) == [True]  # two gaps are less
    assert asked(model, x, y, plain + 0.6 * expected) == [False]
    assert asked(model, x, y, plain - 10 * expected) == [True]  # less than no gap is no gap


def test_a_cost_that_may_be_chance_is_none() -> None:
    model, x, y = linear(5, 2000, 0.1)
    plain = (model[1](x).squeeze(1) - y).detach() ** 2
    assert asked(model, x[:2], y[:2], plain[:2]) == [False]
    assert too_dear(trials(rates=3)) == [False] * 3  # nothing was tried
    one = torch.ones(1)
    assert too_dear(trials(sums_of(one[:, None], [0], 1, one, one))) == [False]  # one number has no spread
    for endless in (torch.nan, torch.inf):
        found = sums_of(endless * torch.ones(5, 1), [1], 2, torch.ones(5), torch.ones(5))
        assert too_dear(trials(found, rates=2)) == [False, True]


def test_a_network_that_over_fits_keeps_its_dropout_and_one_that_does_not_loses_it() -> None:
    for inputs, examples, noise, expected in ((40, 50, 3.0, False), (4, 400, 0.1, True)):
        model, x, y = linear(inputs, examples, noise)
        _, more, answers = linear(inputs, examples + 400, noise)  # of the same truth
        held = (model[1](more[examples:]).squeeze(1) - answers[examples:]).detach() ** 2
        assert asked(model, x, y, held) == [expected]


def test_the_rule_asks_once_the_first_steps_are_over_and_a_rate_that_is_off_stays_off() -> None:
    torch.manual_seed(0)
    model, x, y = linear(4, 400, 0.1)
    rule = SelfTuning(model, [(x[200:], y[200:])], steps=100, examples=200, every=1)
    optimizer = torch.optim.SGD(lbdrop.parameter_groups(model), lr=1e-4)
    off = [rate < 1e-6 for rate in course(model, rule, optimizer, x[:200], y[:200], 60)]
    assert off == [False] * 8 + [True] * 52
    assert rule.settled  # nothing is left to tune, so that held-out examples are given back at once
    assert rule.slopes.steps == 8


def test_rates_begin_where_all_noise_together_costs_what_over_fitting_takes() -> None:
    """The closed form again: at the rate that comes out, the noise of two dropouts costs as much as the gap."""
    model, x, y = linear(5, 2000, 0.1)
    each = (x * model[1].weight.detach()).square().sum(1)  # times p/(1 − p)
    plain = (model[1](x).squeeze(1) - y).detach() ** 2
    chance = (2 * plain.var(correction=0) / len(plain)).sqrt()  # of the means of training and held-out examples
    for rate in (0.08, 0.2, 0.4):
        gap = 2 * rate / (1 - rate) * each.mean() + chance
        tried = sums_of((0.1 / 0.9 * each)[:, None].expand(-1, 2), [0, 1], 2, plain, plain + gap)
        found = trials(tried, rates=2)
        assert balanced(found, [True, True]) == pytest.approx(rate, rel=1e-3)  # n or n − 1
        alone = balanced(found, [True, False])  # what is off costs nothing, so that the other may cost twice as much
        assert alone / (1 - alone) == pytest.approx(min(2 * rate / (1 - rate), MOST / (1 - MOST)), rel=1e-3)
    for cost, gap, expected in (
        (1, -1, LEAST),
        (-1, 1, MOST),
        (-1, -1, LEAST),
        (torch.inf, 1, LEAST),
        (torch.nan, 1, LEAST),
    ):
        assert balanced(trials(sums_of(cost * each[:, None], [0], 1, plain, plain + gap)), [True]) == expected
    assert balanced(trials(), [True]) == RATE  # nothing was tried


@pytest.mark.parametrize("start", [None, 0.3])
def test_what_is_left_begins_at_the_balance_or_where_it_is_told(start: float | None) -> None:
    torch.manual_seed(0)
    model, x, y = linear(40, 100, 3.0)
    _, more, answers = linear(40, 500, 3.0)
    rule = SelfTuning(model, [(more[100:], answers[100:])], steps=100, start=start)
    objective = Objective(model, rule)
    for _ in range(9):
        objective(squares, x, y)
    expected = balanced(rule.slopes.trial, [True]) if start is None else start
    assert LEAST <= expected <= MOST
    assert model[0].p == pytest.approx(expected)


def test_runs_from_models_with_different_rates_are_the_same_run() -> None:
    _, x, y = linear(40, 100, 3.0)
    found = []
    for own in (0.05, 0.3, 0.7):
        torch.manual_seed(0)
        model = lbdrop.convert(nn.Sequential(nn.Dropout(own), nn.Linear(40, 1)).double(), verbose=False)
        rule = SelfTuning(model, [(x[60:], y[60:])], steps=200, examples=60, every=1)
        optimizer = torch.optim.Adam(lbdrop.parameter_groups(model), lr=1e-2)
        rates = course(model, rule, optimizer, x[:60], y[:60], 100)
        assert rates[20] != rates[70]  # it moves
        found.append(rates)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("rates", "at_once"), [(1, 1), (3, 3), (9, 4), (50, 4), (170, 9)])
def test_every_rate_has_its_turn_and_no_step_tries_very_many(rates: int, at_once: int) -> None:
    logits = [nn.Parameter(torch.zeros(()), requires_grad=rate != 1) for rate in range(rates + (rates > 1))]
    turns = [turn(step, logits) for step in range(7, 7 + STEPS)]
    assert all(len(set(each)) == len(each) == at_once for each in turns)
    assert {rate for each in turns for rate in each} == {rate for rate in range(len(logits)) if rate != 1 or rates == 1}


def test_a_cost_that_was_not_tried_counts_for_nothing() -> None:
    costs, losses = torch.rand(6, 2), torch.rand(6)
    found = sums_of(costs, [0, 2], 3, losses, losses[:4])
    assert found[0].tolist() == [6, 0, 6]
    torch.testing.assert_close(found[1, [0, 2]].float(), costs.sum(0))
    assert found[3].tolist() == [6, 6, 6]
    assert found[6].tolist() == [4, 4, 4]


def test_noise_is_not_judged_before_every_example_was_trained_on() -> None:
    """A quarter of an epoch without dropout: held-out and training examples are as new, and any cost is above the gap."""
    for examples, expected in ((20_000, False), (1_000, True)):
        torch.manual_seed(0)
        model, x, y = linear(4, 400, 0.1)
        rule = SelfTuning(model, [(x[200:], y[200:])], steps=100, examples=examples)
        objective = Objective(model, rule)
        for _ in range(9):
            objective(squares, x[:200], y[:200])
        assert (model[0].p < 1e-6) == expected


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


def test_a_gap_that_was_there_before_anything_was_learned_is_no_over_fitting() -> None:
    model, x, y = linear(5, 2000, 0.1)
    each = (x * model[1].weight.detach()).square().sum(1)
    plain = (model[1](x).squeeze(1) - y).detach() ** 2
    gap = 0.2 / 0.8 * each.mean()
    found = sums_of((0.1 / 0.9 * each)[:, None], [0], 1, plain, plain + gap)
    without = balanced(trials(found), [True])
    assert without == pytest.approx(0.2, abs=0.01)

    def begins(*shares: float) -> float:
        return balanced(trials(found, sum(shift_of(plain, plain + share * gap, 1) for share in shares)), [True])

    assert begins(-1, 1.5, -1, 1.5) == without  # of either sign: chance
    assert begins(1) == begins(0.99, 1.0, 1.0, 1.01) == without  # of few looks nothing is sure
    half = begins(0.49, 0.5, 0.5, 0.5, 0.51)
    assert half / (1 - half) == pytest.approx(without / (1 - without) - 0.1 / 0.8, rel=0.02)
    assert begins(0.99, 1.0, 1.0, 1.0, 1.01) == LEAST
    whole = trials(found, sum(shift_of(plain, plain + share * gap, 1) for share in (0.99, 1.0, 1.0, 1.0, 1.01)))
    assert too_dear(whole) == too_dear(trials(found))  # whether noise pays is asked of the whole gap


@pytest.mark.parametrize("harder", [0.0, 30.0])
def test_rates_begin_at_the_same_place_where_held_out_data_are_harder(harder: float) -> None:
    """Answers of held-out examples have further noise: their loss is larger from the first step on."""
    torch.manual_seed(0)
    model, x, y = linear(40, 400, 3.0)
    nn.init.zeros_(model[1].weight)
    _, more, answers = linear(40, 800, 3.0)
    worse = answers[400:] + harder**0.5 * torch.randn(400, dtype=torch.float64)
    rule = SelfTuning(model, [(more[400:], worse)], steps=2500, examples=400, every=1)
    optimizer = torch.optim.SGD(lbdrop.parameter_groups(model), lr=5e-3)
    objective, batches = Objective(model, rule), torch.arange(400).split(20)
    for step in range(rule.begins + 1):
        rows = batches[step % 20]
        optimizer.zero_grad()
        objective(squares, x[rows], y[rows]).backward()
        optimizer.step()
    assert float(rule.slopes.trial[9, 0]) == 20
    assert model[0].p < 0.1  # with the whole gap it would begin at .5


def test_a_look_at_shift_takes_nothing_from_the_held_out_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run whose held-out data are not harder is the same with and without."""
    _, x, y = linear(40, 200, 3.0)
    held_out, found = list(zip(x[100:].split(10), y[100:].split(10), strict=True)), []
    for looks in (True, False):
        torch.manual_seed(0)
        model = lbdrop.convert(nn.Sequential(nn.Dropout(0.2), nn.Linear(40, 1)).double(), verbose=False)
        rule = SelfTuning(model, held_out, steps=1000, examples=100, every=1)
        if not looks:
            monkeypatch.setattr(rule.first_epoch, "last", lambda: range(0))
        optimizer = torch.optim.Adam(lbdrop.parameter_groups(model), lr=1e-2)
        found.append(course(model, rule, optimizer, x[:20], y[:20], 200))
        assert float(rule.slopes.trial[9, 0]) == 5 * looks
    assert found[0] == found[1]


def test_shift_is_asked_for_where_the_first_epoch_is_known_and_over_in_time() -> None:
    model, x, y = linear(4, 400, 0.1)
    batch = _Batch(Objective(model, lbdrop.Bound(model, 400)), squares, (x[:4], y[:4]))
    for examples, expected in (
        (None, range(0)),
        (40, range(10)),
        (200, range(30, 50)),
        (1200, range(280, 300)),  # after rates have begun, and before they settle, after 400 steps
        (1600, range(380, 400)),
        (1604, range(0)),
    ):
        rule = SelfTuning(model, [(x, y)], steps=1000, examples=examples)
        rule.first_epoch.note(batch, torch.device("cpu"))
        assert rule.first_epoch.last() == expected
    rule = SelfTuning(model, [(x, y)], steps=1000, examples=200)
    rule.first_epoch.note(_Batch(batch._objective, squares, ()), torch.device("cpu"))
    assert rule.first_epoch.last() == range(0)


def test_a_run_taken_up_again_in_its_first_epoch_judges_no_noise_either() -> None:
    torch.manual_seed(0)
    model, x, y = linear(4, 400, 0.1)
    made = [SelfTuning(model, [(x[200:], y[200:])], steps=100, examples=20_000)]
    for _ in range(8):
        Objective(model, made[0])(squares, x[:200], y[:200])
    again, *_ = linear(4, 400, 0.1)
    made.append(SelfTuning(again, [(x[200:], y[200:])], steps=100, examples=20_000))
    again.load_state_dict(model.state_dict())
    for each, rule in zip((model, again), made, strict=True):
        Objective(each, rule)(squares, x[:200], y[:200])
        assert each[0].p == pytest.approx(LEAST)
