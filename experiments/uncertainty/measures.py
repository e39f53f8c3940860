"""What is measured of a predictive distribution of classes, plain and after temperature scaling."""

import math

import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from torch import Tensor

from lbdrop import metrics

__all__ = ["adaptive_ece", "calibrated", "judge", "temperature"]


def judge(probs: Float[Tensor, "batch classes"], labels: Int[Tensor, "batch"]) -> dict[str, float]:
    """All measures that need the classes."""
    correct, entropy = probs.argmax(1) == labels, torch.special.entr(probs).sum(1)
    found = {
        "nll": metrics.nll(probs, labels), "accuracy": metrics.accuracy(probs, labels), "ece": metrics.ece(probs, labels),
        "adaptive ece": adaptive_ece(probs, labels), "brier": metrics.brier(probs, labels),
        "error auroc": metrics.misclassification_auroc(entropy, correct), "aurc": metrics.aurc(entropy, correct),
    }  # fmt: skip
    return {name: float(value) for name, value in found.items()}


def adaptive_ece(probs: Float[Tensor, "batch classes"], labels: Int[Tensor, "batch"], bins: int = 15) -> Tensor:
    """|accuracy − confidence| over bins of equally many examples, after Nixon et al. 2019."""
    confidence, predicted = probs.max(1)
    order = confidence.argsort()
    gap = (predicted == labels).double() - confidence.double()
    return torch.stack([part.sum().abs() for part in gap[order].tensor_split(bins)]).sum() / len(labels)


def temperature(probs: Float[Tensor, "batch classes"], labels: Int[Tensor, "batch"]) -> float:
    """The one that makes these most likely: of the mean over samples, as of any other prediction."""
    nll = lambda log: float(metrics.nll(calibrated(probs, math.exp(log)), labels))  # noqa: E731
    return math.exp(float(minimize_scalar(nll, bounds=(-3, 3), method="bounded").x))  # pyright: ignore


def calibrated(probs: Float[Tensor, "batch classes"], temperature: float) -> Float[Tensor, "batch classes"]:
    return (probs.clamp(min=1e-30).log() / temperature).softmax(1)
