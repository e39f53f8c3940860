"""Entropy, correctness and void: the inputs of every measure."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from lbdrop.errors import DropoutError
from lbdrop.metrics import flatten, judge, predictive_entropy


def random_images(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.softmax(2 * torch.randn(3, 4, 5, 6, generator=generator, dtype=torch.float64), 1)
    return probs, torch.randint(5, (3, 5, 6), generator=generator)  # 4 is void


def test_entropy_agrees_with_scipy_for_vectors_and_images():
    probs, _ = random_images()
    np.testing.assert_allclose(predictive_entropy(probs), scipy.stats.entropy(probs.numpy(), axis=1))
    np.testing.assert_allclose(predictive_entropy(probs[:, :, 0, 0]), scipy.stats.entropy(probs[:, :, 0, 0], axis=1))


def test_entropy_of_half_precision_is_taken_in_single():
    even = torch.full((1, 1000), 1e-3).half()
    assert float(predictive_entropy(even)) == pytest.approx(math.log(1000), rel=1e-3)
    assert predictive_entropy(even).dtype == torch.float32


def test_void_is_neither_valid_nor_correct():
    probs, labels = random_images()
    judged = judge(probs, labels, void=4)
    for n, i, j in np.ndindex(3, 5, 6):
        void = int(labels[n, i, j]) == 4
        right = int(np.argmax(probs[n, :, i, j].numpy())) == int(labels[n, i, j])
        assert bool(judged.valid[n, i, j]) != void
        assert bool(judged.correct[n, i, j]) == (right and not void)


def test_void_label_inside_the_classes_is_not_correct():
    judged = judge(torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([0, 1]), void=0)
    assert judged.correct.tolist() == [False, True]
    assert judged.valid.tolist() == [False, True]


def test_flatten_keeps_pixels_with_their_labels():
    probs, labels = random_images()
    rows, truth = flatten(probs, labels, void=4)
    expected = [(probs[k[0], :, k[1], k[2]], labels[k]) for k in np.ndindex(3, 5, 6) if int(labels[k]) != 4]
    assert torch.equal(rows, torch.stack([row for row, _ in expected]))
    assert truth.tolist() == [int(label) for _, label in expected]


def test_flatten_of_void_alone_is_empty():
    probs, labels = random_images()
    rows, truth = flatten(probs, torch.full_like(labels, 4), void=4)
    assert rows.shape == (0, 4)
    assert not len(truth)


@pytest.mark.parametrize(
    ("probs", "labels", "void", "says"),
    [
        (torch.full((2, 3), 1 / 3), torch.tensor([0]), None, "second place"),
        (torch.full((1, 3, 2, 2), 1 / 3), torch.zeros(1, 2, dtype=torch.long), None, "second place"),
        (torch.empty(0, 3), torch.empty(0, dtype=torch.long), None, "at least one example"),
        (torch.tensor([[0.5, 0.2]]), torch.tensor([0]), None, "softmax"),
        (torch.tensor([[1.5, -0.5]]), torch.tensor([0]), None, "softmax"),
        (torch.tensor([[math.nan, 0.5]]), torch.tensor([0]), None, "softmax"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), None, "classes 0 to 1, got 2"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([-1]), 255, "ignore index"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_wrong_input_is_an_error_with_the_next_step(
    probs: torch.Tensor, labels: torch.Tensor, void: int | None, says: str
):
    for function in (judge, flatten):
        with pytest.raises(DropoutError, match=says):
            function(probs, labels, void)
