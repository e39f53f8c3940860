"""What is promised from held-out data is kept by questions whose right answer is known, over many draws."""

import math

import pytest
import torch
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.guards.promises import conformal_scale, largest_doubt
from lbdrop.prediction import Predictive

DRAWS, HELD_OUT = 400, 1_000


def questions(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Doubts, and whether the answer is wrong: the chance of it is 0.4 × doubt²."""
    doubt = torch.rand(count, generator=generator)
    return doubt, torch.rand(count, generator=generator) < 0.4 * doubt**2


@pytest.mark.filterwarnings("ignore:no question is answered")
@pytest.mark.parametrize(("error", "risk"), [(0.05, 0.1), (0.08, 0.05), (0.1, 0.2)])
def test_promised_error_rate_is_broken_by_at_most_the_risk(error: float, risk: float) -> None:
    generator = torch.Generator().manual_seed(0)
    found = [largest_doubt(*questions(HELD_OUT, generator), error, risk)[0] for _ in range(DRAWS)]
    # Up to a doubt of t, 0.4 t² / 3 of the answers are wrong.
    broken = sum(0.4 / 3 * max(at, 0.0) ** 2 > error for at in found) / DRAWS
    assert broken <= risk + 2 * math.sqrt(risk * (1 - risk) / DRAWS)
    # And it is no empty promise: most draws answer at least half of what could be answered.
    assert sorted(found)[DRAWS // 2] > min(1.0, math.sqrt(3 * error / 0.4)) / 2


def test_all_questions_are_answered_where_no_answer_is_wrong() -> None:
    doubt = torch.rand(200, generator=torch.Generator().manual_seed(0))
    assert largest_doubt(doubt, torch.zeros(200, dtype=torch.bool), 0.05, 0.05) == (float(doubt.max()), 1.0)


def test_no_question_is_answered_where_doubt_says_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    doubt, wrong = torch.rand(300, generator=generator), torch.rand(300, generator=generator) < 0.5
    with pytest.warns(UserWarning, match="no question is answered"):
        at, share = largest_doubt(doubt, wrong, 0.05, 0.05)
    assert (at, share) == (-math.inf, 0.0)


def test_too_few_held_out_examples_are_refused_with_the_number_needed() -> None:
    with pytest.raises(DropoutError, match="want at least 118"):
        largest_doubt(torch.rand(100), torch.zeros(100, dtype=torch.bool), 0.05, 0.05)
    with pytest.raises(DropoutError, match="want at least 19"):
        conformal_scale(torch.rand(18), 0.95)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_hold_the_promised_share_over_many_draws(level: float) -> None:
    generator = torch.Generator().manual_seed(0)
    inside = []
    for _ in range(DRAWS):
        # The model says a deviation of one everywhere, and is wrong: it is three, and not Gaussian.
        samples = torch.tensor([-1.0, 1.0])[:, None, None].expand(-1, 60, 1)
        held_out, new = Predictive.of(samples, "regression"), Predictive.of(samples, "regression")
        y = 3 * torch.randn(120, generator=generator).sign() * torch.rand(120, generator=generator)
        low, high = new.interval(held_out, y[:60], level)
        inside.append(float(((low[:, 0] <= y[60:]) & (y[60:] <= high[:, 0])).float().mean()))
    share = sum(inside) / DRAWS
    assert level - 0.01 <= share <= level + 2 / 61 + 0.01


def test_predictive_abstains_at_the_promised_rate() -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(count: int) -> tuple[Predictive, Tensor]:
        logit = 6 * torch.rand(count, generator=generator)
        wrong = torch.rand(count, generator=generator) < torch.sigmoid(-logit)  # calibrated
        return Predictive.of(torch.stack([torch.zeros(count), logit], 1)[None]), (~wrong).long()

    held_out, labels = drawn(1_000)
    test, truth = drawn(20_000)
    answers = test.abstain(held_out, labels, error=0.05, risk=0.05)
    wrong = test.mean.argmax(1) != truth
    assert 0.2 < float(answers.answered.float().mean()) < 0.9
    assert float(wrong[answers.answered].float().mean()) < 0.05 < float(wrong.float().mean())


def test_wrong_kinds_are_refused() -> None:
    classes, values = Predictive.of(torch.zeros(2, 200, 3)), Predictive.of(torch.zeros(2, 200, 1), "regression")
    with pytest.raises(DropoutError, match="regression has interval"):
        values.abstain(values, torch.zeros(200))
    with pytest.raises(DropoutError, match="those have abstain"):
        classes.interval(classes, torch.zeros(200))
    with pytest.raises(DropoutError, match="labels: want shape"):
        classes.abstain(classes, torch.zeros(3))
    with pytest.raises(DropoutError, match="noise: want a variance above 0"):
        values.interval(values, torch.zeros(200))
