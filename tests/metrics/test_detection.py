"""AUROC and AURC against scikit-learn, against pairs, and against every order of equal scores."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from lbdrop.errors import DropoutError
from lbdrop.metrics import aurc, auroc, misclassification_auroc, out_of_distribution_auroc, risk_coverage_curve


def random_case(seed: int, examples: int = 300, levels: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    correct = torch.rand(examples, generator=generator) < 0.7
    score = torch.rand(examples, generator=generator, dtype=torch.float64) - 0.3 * correct
    return (score if levels is None else (levels * score).round()), correct


def aurc_in_order(wrong: list[bool]) -> float:
    return float(np.mean([np.mean(wrong[:i]) for i in range(1, len(wrong) + 1)]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("levels", [None, 20, 3])
def test_auroc_agrees_with_scikit_learn_with_and_without_ties(seed: int, levels: int | None):
    score, correct = random_case(seed, levels=levels)
    assert float(misclassification_auroc(score, correct)) == pytest.approx(roc_auc_score(~correct, score))
    inside, outside = score[correct], score[~correct]
    assert float(out_of_distribution_auroc(inside, outside)) == pytest.approx(roc_auc_score(~correct, score))


def test_auroc_is_the_share_of_pairs():
    score, positive = random_case(0, examples=40, levels=5)
    pairs = [(a, b) for a in score[positive].tolist() for b in score[~positive].tolist()]
    expected = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert float(auroc(score, positive)) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=25))
def test_auroc_of_the_negated_score_is_the_rest_and_only_ranks_matter(pairs: list[tuple[int, bool]]):
    score = torch.tensor([float(s) for s, _ in pairs], dtype=torch.float64)
    positive = torch.tensor([flag for _, flag in pairs])
    value = float(auroc(score, positive))
    if positive.all() or not positive.any():
        assert math.isnan(value)
        return
    assert 0 <= value <= 1
    assert float(auroc(-score, positive)) == pytest.approx(1 - value)
    assert float(auroc(score, ~positive)) == pytest.approx(1 - value)
    assert float(auroc(score.exp(), positive)) == value


def test_float32_ranks_are_exact_for_many_examples():
    positive = torch.arange(300_000) % 3 == 0
    assert float(auroc(torch.arange(300_000).float(), positive)) == pytest.approx(
        roc_auc_score(positive, np.arange(300_000)), abs=1e-12
    )


@pytest.mark.parametrize("seed", range(4))
def test_aurc_agrees_with_a_loop_where_no_scores_are_equal(seed: int):
    score, correct = random_case(seed)
    surest_first = np.argsort(score.numpy())
    assert float(aurc(score, correct)) == pytest.approx(aurc_in_order([not correct[i] for i in surest_first]))


@pytest.mark.parametrize("seed", range(4))
def test_aurc_of_equal_scores_is_the_mean_over_all_their_orders(seed: int):
    score, correct = random_case(seed, examples=6, levels=2)
    orders = [
        order
        for order in itertools.permutations(range(6))
        if all(score[a] <= score[b] for a, b in itertools.pairwise(order))
    ]
    expected = np.mean([aurc_in_order([not correct[i] for i in order]) for order in orders])
    assert float(aurc(score, correct)) == pytest.approx(expected)


def test_curve_of_a_case_computed_by_hand():
    # Surest first: right, (right, wrong at one score), wrong. Risk 0/1, .5/2, 1/3, 2/4.
    curve = risk_coverage_curve(torch.tensor([0.9, 0.4, 0.1, 0.4]), torch.tensor([False, True, True, False]))
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 0.25, 1 / 3, 0.5])


def test_curve_ends_at_the_error_rate_and_a_perfect_score_is_best():
    score, correct = random_case(5)
    assert float(risk_coverage_curve(score, correct).risk[-1]) == pytest.approx(float((~correct).double().mean()))
    knowing, useless = (~correct).double(), torch.zeros_like(score)
    assert float(aurc(knowing, correct)) < float(aurc(score, correct)) < float(aurc(useless, correct))
    assert float(aurc(useless, correct)) == pytest.approx(float((~correct).double().mean()))


def test_model_without_mistakes_has_no_risk_and_a_nan_auroc():
    score, correct = torch.tensor([0.1, 0.2]), torch.tensor([True, True])
    assert float(aurc(score, correct)) == 0
    assert math.isnan(float(misclassification_auroc(score, correct)))


@pytest.mark.usefixtures("without_type_checks")
def test_wrong_input_is_an_error_with_the_next_step():
    score, correct = random_case(0, examples=4)
    for measure in (auroc, misclassification_auroc, aurc, risk_coverage_curve):
        for arguments, says in [
            ((score[:3], correct), "one score per prediction"),
            ((score, correct.long()), "bool"),
            ((score[:0], correct[:0]), "at least one"),
            ((score * math.nan, correct), "NaN"),
        ]:
            with pytest.raises(DropoutError, match=says):
                measure(*arguments)
    for inside, outside in [(score[:0], score), (score, score[:0]), (score[None], score)]:
        with pytest.raises(DropoutError, match="one score per input"):
            out_of_distribution_auroc(inside, outside)
