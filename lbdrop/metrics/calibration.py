r"""Accuracy, log loss, Brier score and calibration error of class probabilities.

With $c_i = \max_k p_{ik}$ the confidence of example $i$, and $B_b$ the examples whose confidence falls in bin $b$:

$$ \mathrm{ECE} = \sum_b \frac{|B_b|}{N}\,\big|\mathrm{acc}(B_b) - \mathrm{conf}(B_b)\big|, \qquad
   \mathrm{acc}(B) = \tfrac{1}{|B|}\sum_{i\in B} 1[\hat y_i = y_i], \quad
   \mathrm{conf}(B) = \tfrac{1}{|B|}\sum_{i\in B} c_i $$

Guo et al., On Calibration of Modern Neural Networks, ICML 2017; Brier 1950.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.metrics.predictions import check_probabilities

__all__ = ["BINS", "ReliabilityCurve", "accuracy", "brier", "ece", "nll", "reliability_curve"]

BINS = 15


@dataclass(frozen=True)
class ReliabilityCurve:
    """Confidence against accuracy, bin by bin; both are NaN where a bin is empty."""

    confidence: Float[Tensor, "bins"]
    """Mean confidence of the bin's examples."""
    accuracy: Float[Tensor, "bins"]
    """Share of them whose most probable class is the true one."""
    count: Int[Tensor, "bins"]
    """How many examples the bin holds."""


def accuracy(probs: Float[Tensor, "batch classes"], labels: Int[Tensor, "batch"]) -> Float[Tensor, ""]:
    """The share of examples whose most probable class is the true one; of equal ones the first counts.

    >>> float(accuracy(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1])))
    0.5
    """
    _check(probs, labels)
    return (probs.argmax(1) == labels).to(probs.dtype).mean()


def nll(probs: Float[Tensor, "batch classes"], labels: Int[Tensor, "batch"]) -> Float[Tensor, ""]:
    """The negative log likelihood in nats, averaged over examples.

    A probability of 0 counts as the smallest normal number of its type (87 nats in float32), so that one
    example does not make the mean infinite.
    """
    _check(probs, labels)
    true = probs.gather(1, labels.long()[:, None])
    return -true.clamp(min=torch.finfo(probs.dtype).tiny).log().mean()


def brier(probs: Float[Tensor, "batch classes"], labels: Int[Tensor, "batch"]) -> Float[Tensor, ""]:
    """The squared distance to the one-hot truth, summed over classes and averaged over examples: from 0 to 2."""
    _check(probs, labels)
    truth = torch.nn.functional.one_hot(labels.long(), probs.shape[1])
    return (probs - truth).square().sum(1).mean()


def ece(probs: Float[Tensor, "batch classes"], labels: Int[Tensor, "batch"], bins: int = BINS) -> Float[Tensor, ""]:
    """Expected calibration error: |accuracy − confidence| per bin, averaged over examples.

    Bins are of equal width over [0, 1], by default 15, as in Guo et al.; :func:`reliability_curve` gives their edges.
    The error depends on the number of bins: compare only values with the same number.
    """
    curve = reliability_curve(probs, labels, bins)
    gaps = (curve.accuracy - curve.confidence).abs().nan_to_num()
    return (gaps * curve.count).sum() / len(labels)


def reliability_curve(
    probs: Float[Tensor, "batch classes"], labels: Int[Tensor, "batch"], bins: int = BINS
) -> ReliabilityCurve:
    """Confidence and accuracy in bins of equal width: bin b holds confidences in (b/bins, (b+1)/bins].

    >>> curve = reliability_curve(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]), bins=2)
    >>> curve.count.tolist(), float(curve.confidence[1]), float(curve.accuracy[1])
    ([0, 2], 0.75, 0.5)
    """
    _check(probs, labels)
    if bins < 1:
        raise DropoutError(f"bins: want at least 1, got {bins}")
    confidence, predicted = probs.max(1)
    inner = torch.arange(1, bins, device=probs.device, dtype=probs.dtype) / bins
    bin_of = torch.bucketize(confidence.contiguous(), inner)
    count = torch.bincount(bin_of, minlength=bins)

    def mean(values: Tensor) -> Tensor:
        return torch.bincount(bin_of, values.double(), minlength=bins).to(probs.dtype) / count

    return ReliabilityCurve(mean(confidence), mean(predicted == labels), count)


def _check(probs: Tensor, labels: Tensor) -> None:
    if probs.dim() != 2 or labels.dim() != 1 or len(probs) != len(labels) or not len(labels):
        raise DropoutError(
            f"want probabilities (batch, classes) and labels (batch,) of at least one example, got {tuple(probs.shape)}"
            f" and {tuple(labels.shape)}; pixels and tokens go through metrics.flatten first"
        )
    check_probabilities(probs, labels)
