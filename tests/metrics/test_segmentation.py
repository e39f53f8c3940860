"""Mean IoU against loops over pixels, torchmetrics and scikit-learn."""

import importlib

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix as sklearn_confusion
from sklearn.metrics import jaccard_score

from lbdrop.errors import DropoutError
from lbdrop.metrics import class_iou, confusion_matrix, mean_iou, pixel_accuracy


def random_case(seed: int, classes: int = 11) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes + 1, (4, 12, 10), generator=generator)  # the last one is void
    noise = torch.randint(classes, labels.shape, generator=generator)
    agree = torch.rand(labels.shape, generator=generator) < 0.6
    return torch.where(agree & (labels < classes), labels, noise), labels


def test_measures_of_a_matrix_computed_by_hand():
    # truth      0 0 1      predicted  0 1 1
    #            2 2 ·                 2 0 1
    # class 0: intersection 1, union {3 pixels} → 1/3; class 1: 1 of 2; class 2: 1 of 2; right 3 of 5.
    labels, predicted = torch.tensor([[[0, 0, 1], [2, 2, 3]]]), torch.tensor([[[0, 1, 1], [2, 0, 1]]])
    confusion = confusion_matrix(predicted, labels, classes=3, void=3)
    assert confusion.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]
    assert class_iou(confusion).tolist() == pytest.approx([1 / 3, 1 / 2, 1 / 2])
    assert float(mean_iou(confusion)) == pytest.approx((1 / 3 + 1 / 2 + 1 / 2) / 3)
    assert float(pixel_accuracy(confusion)) == 3 / 5


@pytest.mark.parametrize("seed", range(4))
def test_iou_agrees_with_sets_of_pixels(seed: int):
    predicted, labels = random_case(seed)
    ious, right, counted = [], 0, 0
    for k in range(11):
        truth = {p for p in np.ndindex(4, 12, 10) if labels[p] == k}
        guess = {p for p in np.ndindex(4, 12, 10) if predicted[p] == k and labels[p] != 11}
        ious.append(len(truth & guess) / len(truth | guess))
        right, counted = right + len(truth & guess), counted + len(truth)
    confusion = confusion_matrix(predicted, labels, 11, void=11)
    assert class_iou(confusion).tolist() == pytest.approx(ious)
    assert float(mean_iou(confusion)) == pytest.approx(sum(ious) / 11)
    assert float(pixel_accuracy(confusion)) == pytest.approx(right / counted)


@pytest.mark.parametrize("seed", range(4))
def test_matrix_and_mean_agree_with_scikit_learn(seed: int):
    predicted, labels = random_case(seed)
    truth, guess = labels[labels != 11].numpy(), predicted[labels != 11].numpy()
    confusion = confusion_matrix(predicted, labels, 11, void=11)
    assert confusion.tolist() == sklearn_confusion(truth, guess, labels=range(11)).tolist()
    assert float(mean_iou(confusion)) == pytest.approx(jaccard_score(truth, guess, average="macro"))


def test_mean_agrees_with_torchmetrics():
    classification = importlib.import_module("torchmetrics.classification")
    predicted, labels = random_case(9)
    theirs = classification.MulticlassJaccardIndex(num_classes=11, ignore_index=-1)
    expected = theirs(predicted, torch.where(labels == 11, -1, labels))
    assert float(mean_iou(confusion_matrix(predicted, labels, 11, void=11))) == pytest.approx(float(expected))


def test_intersections_are_summed_over_images_before_they_are_divided():
    predicted, labels = random_case(2)
    whole = confusion_matrix(predicted, labels, 11, void=11)
    parts = [confusion_matrix(p, y, 11, void=11) for p, y in zip(predicted, labels, strict=True)]
    assert torch.equal(sum(parts, torch.zeros_like(whole)), whole)
    of_images = torch.stack([mean_iou(part) for part in parts]).mean()
    assert float(of_images) != pytest.approx(float(mean_iou(whole)), rel=1e-3)


def test_missed_class_has_iou_zero_and_an_absent_one_none():
    missed = confusion_matrix(torch.tensor([0, 0]), torch.tensor([0, 1]), classes=3)
    assert float(mean_iou(missed)) == pytest.approx((1 / 2 + 0) / 2)
    assert bool(class_iou(missed)[2].isnan())
    invented = confusion_matrix(torch.tensor([0, 2]), torch.tensor([0, 0]), classes=3)
    assert float(mean_iou(invented)) == pytest.approx((1 / 2 + 0) / 2)


def test_void_may_be_any_number_and_its_predictions_do_not_matter():
    predicted, labels = random_case(3)
    expected = confusion_matrix(predicted, labels, 11, void=11)
    for void in (255, -100):
        relabelled = torch.where(labels == 11, void, labels)
        elsewhere = torch.where(labels == 11, 0, predicted)
        assert torch.equal(confusion_matrix(elsewhere, relabelled, 11, void), expected)


def test_small_integer_types_do_not_overflow():
    predicted, labels = random_case(4, classes=20)  # 20 × 20 cells are more than a byte can number
    expected = confusion_matrix(predicted, labels, 20, void=20)
    assert torch.equal(confusion_matrix(predicted.to(torch.uint8), labels.to(torch.uint8), 20, void=20), expected)


def test_image_of_void_alone_adds_nothing():
    assert int(confusion_matrix(torch.tensor([0]), torch.tensor([2]), 2, void=2).sum()) == 0


@pytest.mark.usefixtures("without_type_checks")
def test_wrong_input_is_an_error_with_the_next_step():
    one, none = torch.tensor([0]), torch.empty(0, dtype=torch.long)
    refused = [
        (lambda: confusion_matrix(torch.tensor([[0, 1]]), torch.tensor([0, 1]), 2), "argmax"),
        (lambda: confusion_matrix(none, none, 2), "at least one pixel"),
        (lambda: confusion_matrix(one, one, 0), "without void"),
        (lambda: confusion_matrix(one, torch.tensor([11]), 11), "labels: want classes 0 to 10, got 11"),
        (lambda: confusion_matrix(torch.tensor([11]), one, 11), "predicted: want classes 0 to 10, got 11"),
        (lambda: mean_iou(torch.zeros(2, 2, dtype=torch.long)), "at least one pixel"),
        (lambda: pixel_accuracy(torch.ones(2, 3, dtype=torch.long)), "square"),
    ]
    for call, says in refused:
        with pytest.raises(DropoutError, match=says):
            call()
