r"""How well a score of uncertainty finds mistakes, or inputs from another distribution.

$$ \mathrm{AUROC} = P(s^+ > s^-) + \tfrac12 P(s^+ = s^-), \qquad
   \mathrm{AURC} = \frac1n \sum_{i=1}^n \frac{1}{i} \sum_{j \le i} 1[\hat y_{(j)} \ne y_{(j)}] $$

with $s^+$ the score of a random mistake (or foreign input), $s^-$ that of a random right answer (or familiar input),
and $(1), (2), \dots$ the examples from the most to the least certain. The score is any number that grows with
uncertainty: entropy, mutual information, one minus the confidence.

Hanley and McNeil 1982; Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers, ICLR 2019.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.metrics.predictions import check_scores

__all__ = [
    "RiskCoverageCurve",
    "aurc",
    "auroc",
    "misclassification_auroc",
    "out_of_distribution_auroc",
    "risk_coverage_curve",
]


@dataclass(frozen=True)
class RiskCoverageCurve:
    """Share of mistakes among the most certain examples, against how many of them are answered."""

    coverage: Float[Tensor, "batch"]
    """i / n for i = 1 … n: the share of examples that is answered."""
    risk: Float[Tensor, "batch"]
    """Mistakes among the i most certain, divided by i; the mean over all orders of equal scores."""


def auroc(score: Float[Tensor, "batch"], positive: Bool[Tensor, "batch"]) -> Float[Tensor, ""]:
    """The share of (positive, negative) pairs where the positive scores higher, ties counting one half.

    Divided by the number of pairs: NaN if there are only positives or only negatives. By ranks: O(n log n).

    >>> float(auroc(torch.tensor([0.9, 0.4, 0.4]), torch.tensor([True, True, False])))
    0.75
    """
    check_scores(score, positive, "positive")
    _, group, size = score.unique(return_inverse=True, return_counts=True)
    mean_rank = size.cumsum(0) - (size - 1).double() / 2
    n = positive.sum()
    above = mean_rank[group[positive]].sum() - n * (n + 1) // 2
    return above / (n * (~positive).sum()).double()


def misclassification_auroc(score: Float[Tensor, "batch"], correct: Bool[Tensor, "batch"]) -> Float[Tensor, ""]:
    """AUROC of finding the mistakes: divided by the (wrong, right) pairs; NaN if all are right or all are wrong."""
    check_scores(score, correct)
    return auroc(score, ~correct)


def out_of_distribution_auroc(
    inside: Float[Tensor, "familiar"], outside: Float[Tensor, "foreign"]
) -> Float[Tensor, ""]:
    """AUROC of telling foreign inputs from familiar ones by their scores, divided by the (foreign, familiar) pairs.

    >>> float(out_of_distribution_auroc(inside=torch.tensor([0.1, 0.2]), outside=torch.tensor([0.2, 0.7])))
    0.875
    """
    if inside.dim() != 1 or outside.dim() != 1 or not len(inside) or not len(outside):
        raise DropoutError(
            f"want scores (n,) of at least one input inside and one outside, got {tuple(inside.shape)} and"
            f" {tuple(outside.shape)}; give one score per input"
        )
    foreign = torch.cat([torch.zeros_like(inside, dtype=torch.bool), torch.ones_like(outside, dtype=torch.bool)])
    return auroc(torch.cat([inside, outside]), foreign)


def risk_coverage_curve(score: Float[Tensor, "batch"], correct: Bool[Tensor, "batch"]) -> RiskCoverageCurve:
    """Risk at every coverage, answering the most certain examples first.

    >>> curve = risk_coverage_curve(torch.tensor([0.1, 0.8, 0.4, 0.4]), torch.tensor([True, False, True, False]))
    >>> [round(risk, 3) for risk in curve.risk.tolist()]
    [0.0, 0.25, 0.333, 0.5]
    """
    check_scores(score, correct)
    _, group, size = score.unique(return_inverse=True, return_counts=True)
    # The order of equal scores is arbitrary, so each gets the mean risk of its group.
    share = torch.bincount(group, (~correct).double(), minlength=len(size)) / size
    answered = torch.arange(1, len(score) + 1, device=score.device, dtype=torch.float64)
    return RiskCoverageCurve(answered / len(score), share.repeat_interleave(size).cumsum(0) / answered)


def aurc(score: Float[Tensor, "batch"], correct: Bool[Tensor, "batch"]) -> Float[Tensor, ""]:
    """Area under the risk-coverage curve: the risk averaged over the n coverages; 0 is best, no mistake at all.

    It depends on the accuracy too: compare scores on the same model, or report the accuracy.
    """
    return risk_coverage_curve(score, correct).risk.mean()
