r"""Mean intersection over union, and pixel accuracy, from one confusion matrix over the whole data set.

With $C_{jk}$ the number of pixels of true class $j$ that are predicted as class $k$:

$$ \mathrm{IoU}_k = \frac{C_{kk}}{\sum_j C_{jk} + \sum_j C_{kj} - C_{kk}}, \qquad
   \mathrm{mIoU} = \frac1K \sum_k \mathrm{IoU}_k, \qquad
   \mathrm{accuracy} = \frac{\sum_k C_{kk}}{\sum_{jk} C_{jk}} $$

Matrices of batches add up; means of IoUs over images do not, and are another measure. Everingham et al., The PASCAL
Visual Object Classes Challenge, IJCV 2015.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.metrics.predictions import check_labels

__all__ = ["class_iou", "confusion_matrix", "mean_iou", "pixel_accuracy"]


def confusion_matrix(
    predicted: Int[Tensor, "*shape"], labels: Int[Tensor, "*shape"], classes: int, void: int | None = None
) -> Int[Tensor, "classes classes"]:
    """Pixels of true class (row) that were predicted as class (column); pixels labelled ``void`` are left out.

    >>> confusion_matrix(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 2]), classes=2, void=2)
    tensor([[1, 1],
            [0, 1]])
    """
    if predicted.shape != labels.shape or not labels.numel():
        raise DropoutError(
            f"want predicted classes and labels of one shape, at least one pixel, got {tuple(predicted.shape)} and"
            f" {tuple(labels.shape)}; take the argmax of the probabilities over their class axis"
        )
    if classes < 1:
        raise DropoutError(f"classes: want at least 1, got {classes}; count them without void")
    check_labels(labels, classes, void)
    if void is not None:
        counted = labels != void
        predicted, labels = predicted[counted], labels[counted]
    predicted, labels = predicted.reshape(-1).long(), labels.reshape(-1).long()
    if predicted.numel() and not bool((predicted.min() >= 0) & (predicted.max() < classes)):
        raise DropoutError(
            f"predicted: want classes 0 to {classes - 1}, got {int(predicted.min())} to {int(predicted.max())}; give the"
            " model as many outputs as there are classes, void not among them"
        )
    return torch.bincount(classes * labels + predicted, minlength=classes**2).view(classes, classes)


def class_iou(confusion: Int[Tensor, "classes classes"]) -> Float[Tensor, "classes"]:
    """Intersection divided by union of every class, both summed over the data set; NaN where the union is empty.

    >>> class_iou(torch.tensor([[1, 1], [0, 1]]))
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    _check(confusion)
    intersection = confusion.diagonal()
    return intersection.double() / (confusion.sum(0) + confusion.sum(1) - intersection)


def mean_iou(confusion: Int[Tensor, "classes classes"]) -> Float[Tensor, ""]:
    """IoU averaged over classes, each with equal weight.

    A class that is never predicted though it is there, or never there though predicted, counts 0; one that is neither
    has no IoU and leaves the average.
    """
    return class_iou(confusion).nanmean()


def pixel_accuracy(confusion: Int[Tensor, "classes classes"]) -> Float[Tensor, ""]:
    """Pixels predicted right, divided by all pixels that are not void."""
    _check(confusion)
    return confusion.diagonal().sum().double() / confusion.sum()


def _check(confusion: Tensor) -> None:
    if confusion.dim() != 2 or confusion.shape[0] != confusion.shape[1] or not bool(confusion.sum() > 0):
        raise DropoutError(
            f"confusion: want a square matrix that counts at least one pixel, got shape {tuple(confusion.shape)} and"
            f" {int(confusion.sum())} pixels; check that not every label is void"
        )
