"""The calibration measures against loops over their definitions, and against scikit-learn."""

import importlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from lbdrop.errors import DropoutError
from lbdrop.metrics import accuracy, brier, ece, nll, reliability_curve


def random_case(seed: int, classes: int = 10, examples: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.softmax(3 * torch.randn(examples, classes, generator=generator, dtype=torch.float64), 1)
    return probs, torch.randint(classes, (examples,), generator=generator)


def ece_by_loop(probs: np.ndarray, labels: np.ndarray, bins: int) -> float:
    total = 0.0
    for b in range(bins):
        right, sure = [], []
        for row, label in zip(probs, labels, strict=True):
            confidence = max(row)
            if b / bins < confidence <= (b + 1) / bins:
                right.append(float(np.argmax(row) == label))
                sure.append(confidence)
        if right:
            total += len(right) / len(labels) * abs(sum(right) / len(right) - sum(sure) / len(sure))
    return total


@pytest.mark.parametrize("seed", range(5))
def test_accuracy_nll_and_brier_agree_with_scikit_learn(seed: int):
    probs, labels = random_case(seed)
    classes = list(range(probs.shape[1]))
    assert float(accuracy(probs, labels)) == pytest.approx(accuracy_score(labels, probs.argmax(1)))
    assert float(nll(probs, labels)) == pytest.approx(log_loss(labels, probs.numpy(), labels=classes))
    binary, binary_labels = random_case(seed, classes=2)
    # For two classes scikit-learn sums over one of them.
    assert float(brier(binary, binary_labels)) == pytest.approx(
        2 * brier_score_loss(binary_labels.numpy(), binary[:, 1].numpy())
    )


def test_brier_of_many_classes_sums_over_all_of_them():
    probs, labels = random_case(0)
    truth = np.eye(10)[labels.numpy()]
    assert float(brier(probs, labels)) == pytest.approx(((probs.numpy() - truth) ** 2).sum(1).mean())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bins", [1, 7, 15])
def test_ece_agrees_with_a_loop_over_bins_and_examples(seed: int, bins: int):
    probs, labels = random_case(seed, examples=150)
    assert float(ece(probs, labels, bins)) == pytest.approx(ece_by_loop(probs.numpy(), labels.numpy(), bins))


@pytest.mark.parametrize("bins", [7, 15])
def test_ece_agrees_with_torchmetrics(bins: int):
    functional = importlib.import_module("torchmetrics.functional.classification")
    probs, labels = random_case(6)
    expected = functional.multiclass_calibration_error(probs, labels, num_classes=10, n_bins=bins, norm="l1")
    assert float(ece(probs, labels, bins)) == pytest.approx(float(expected))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 6), st.integers(1, 40), st.integers(1, 30))
def test_every_measure_stays_in_its_range(seed: int, classes: int, examples: int, bins: int):
    probs, labels = random_case(seed, classes, examples)
    assert 0 <= float(ece(probs, labels, bins)) <= 1
    assert 0 <= float(accuracy(probs, labels)) <= 1
    assert 0 <= float(brier(probs, labels)) <= 2
    assert float(nll(probs, labels)) >= 0


def test_ece_has_fifteen_bins_by_default():
    probs, labels = random_case(1)
    assert torch.equal(ece(probs, labels), ece(probs, labels, 15))
    assert len(reliability_curve(probs, labels).count) == 15


def test_measures_of_a_case_computed_by_hand():
    # Confidences .9 (right), .8 (wrong), .6 (right) in two bins: all in the upper one.
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0])
    assert float(accuracy(probs, labels)) == pytest.approx(2 / 3)
    assert float(nll(probs, labels)) == pytest.approx(-math.log(0.9 * 0.2 * 0.6) / 3)
    assert float(brier(probs, labels)) == pytest.approx((2 * 0.01 + 2 * 0.64 + 2 * 0.16) / 3)
    assert float(ece(probs, labels, bins=2)) == pytest.approx(abs(2 / 3 - 2.3 / 3))
    # In ten bins each is alone: (.1 + .8 + .4) / 3.
    assert float(ece(probs, labels, bins=10)) == pytest.approx(1.3 / 3)


def test_curve_counts_every_example_once_and_empty_bins_are_nan():
    probs, labels = random_case(2)
    curve = reliability_curve(probs, labels)
    assert int(curve.count.sum()) == len(labels)
    empty = curve.count == 0
    assert empty[0]  # ten classes: no confidence lies below .1
    assert bool(curve.confidence[empty].isnan().all())
    assert bool(curve.accuracy[empty].isnan().all())
    weighted = (curve.accuracy.nan_to_num() * curve.count).sum() / len(labels)
    assert float(weighted) == pytest.approx(float(accuracy(probs, labels)))


def test_upper_edge_belongs_to_its_bin():
    probs = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    assert reliability_curve(probs, torch.tensor([0, 0]), bins=4).count.tolist() == [0, 1, 0, 1]


def test_perfect_forecast_has_no_error_and_a_calibrated_one_no_ece():
    labels = torch.arange(10)
    perfect = torch.eye(10)[labels]
    assert [float(measure(perfect, labels)) for measure in (nll, brier, ece)] == [0, 0, 0]
    quarter = torch.full((8, 4), 0.25)  # argmax is class 0, true for a quarter
    assert float(ece(quarter, torch.arange(8) % 4)) == 0


def test_nll_stays_finite_for_a_probability_of_zero():
    value = nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert 87 < float(value) < 88


def test_order_of_examples_does_not_matter():
    probs, labels = random_case(3)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    for measure in (accuracy, nll, brier, ece):
        assert float(measure(probs[order], labels[order])) == pytest.approx(float(measure(probs, labels)))


@pytest.mark.parametrize(
    ("probs", "labels", "says"),
    [
        (torch.tensor([[2.0, -1.0]]), torch.tensor([0]), "softmax"),
        (torch.tensor([[2.0, 1.0]]), torch.tensor([0]), "softmax"),
        (torch.tensor([[math.nan, 1.0]]), torch.tensor([0]), "softmax"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), "classes 0 to 1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([-1]), "ignore index"),
        (torch.empty(0, 2), torch.empty(0, dtype=torch.long), "at least one example"),
    ],
)
def test_wrong_input_is_an_error_with_the_next_step(probs: torch.Tensor, labels: torch.Tensor, says: str):
    for measure in (accuracy, nll, brier, ece, reliability_curve):
        with pytest.raises(DropoutError, match=says):
            measure(probs, labels)
