r"""The inputs of every measure of a classifier: correctness, uncertainty, and which labels count.

$$ \hat y = \arg\max_k p_k, \qquad H[p] = -\sum_k p_k \log p_k \;\text{ in nats, from } 0 \text{ to } \log K $$

Classes are the second axis; later axes are space: pixels, tokens, or none. The probabilities are those of the predictive
mean, averaged over masks before the entropy is taken.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lbdrop.errors import DropoutError

__all__ = ["Judged", "check_labels", "check_probabilities", "check_scores", "flatten", "judge", "predictive_entropy"]


@dataclass(frozen=True)
class Judged:
    """Predictions against their labels, class axis removed."""

    entropy: Float[Tensor, "batch *space"]
    """Entropy of each prediction in nats."""
    correct: Bool[Tensor, "batch *space"]
    """Whether the most probable class is the true one; of equal ones the first counts. False at a void label."""
    valid: Bool[Tensor, "batch *space"]
    """Whether the label counts: false where it is void."""


def predictive_entropy(probs: Float[Tensor, "batch classes *space"]) -> Float[Tensor, "batch *space"]:
    """−Σₖ pₖ log pₖ in nats, summed over classes: one number per example, or per pixel.

    >>> predictive_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.6931, 0.0000])
    """
    return torch.special.entr(probs.to(torch.promote_types(probs.dtype, torch.float32))).sum(1)


def judge(
    probs: Float[Tensor, "batch classes *space"], labels: Int[Tensor, "batch *space"], void: int | None = None
) -> Judged:
    """Entropy and correctness of every prediction; labels equal to ``void`` are marked as not counting."""
    check_probabilities(probs, labels, void)
    valid = torch.ones_like(labels, dtype=torch.bool) if void is None else labels != void
    return Judged(predictive_entropy(probs), (probs.argmax(1) == labels) & valid, valid)


def flatten(
    probs: Float[Tensor, "batch classes *space"], labels: Int[Tensor, "batch *space"], void: int | None = None
) -> tuple[Float[Tensor, "pixels classes"], Int[Tensor, "pixels"]]:
    """Every pixel as an example, without void ones: the input of accuracy, NLL, Brier score and ECE."""
    check_probabilities(probs, labels, void)
    rows, labels = probs.movedim(1, -1).reshape(-1, probs.shape[1]), labels.reshape(-1)
    return (rows, labels) if void is None else (rows[labels != void], labels[labels != void])


def check_probabilities(probs: Tensor, labels: Tensor, void: int | None = None) -> None:
    """An error unless these are distributions over classes with one label each."""
    if probs.dim() < 2 or labels.shape != probs.shape[:1] + probs.shape[2:] or not labels.numel():
        raise DropoutError(
            "want probabilities (batch, classes, …) and labels (batch, …) of at least one example, got"
            f" {tuple(probs.shape)} and {tuple(labels.shape)}; move the class axis to the second place"
        )
    sums = probs.float().sum(1)
    # This form fails for NaN too; in half precision sums have errors of a few thousandths.
    if not bool((probs.min() >= 0) & ((sums - 1).abs().max() < 1e-2)):
        raise DropoutError(
            f"probabilities: want values ≥ 0 that sum to 1 over classes, got values from {float(probs.min()):.3g} and"
            f" sums from {float(sums.min()):.3g} to {float(sums.max()):.3g}; apply softmax to logits first"
        )
    check_labels(labels, probs.shape[1], void)


def check_labels(labels: Tensor, classes: int, void: int | None = None) -> None:
    """An error about labels outside 0 … classes − 1 that are not void."""
    counted = labels if void is None else labels[labels != void]
    if counted.numel() and not bool((counted.min() >= 0) & (counted.max() < classes)):
        raise DropoutError(
            f"labels: want classes 0 to {classes - 1}, got {int(counted.min())} to {int(counted.max())}; drop examples"
            " that carry an ignore index, or name it with void= where that is offered"
        )


def check_scores(score: Tensor, flag: Tensor, name: str = "correct", empty: bool = False) -> None:
    """An error unless score and bool have the same shape and no NaN; ``empty`` allows empty ones."""
    if score.shape != flag.shape or flag.dtype != torch.bool:
        raise DropoutError(
            f"want a score and a bool {name} of one shape, got {tuple(score.shape)} {score.dtype} and"
            f" {tuple(flag.shape)} {flag.dtype}; give one score per prediction, not one per batch or class"
        )
    if not empty and not flag.numel():
        raise DropoutError(f"want at least one prediction, got none; check that not every {name} was filtered out")
    if bool(score.isnan().any()):
        raise DropoutError(f"score: want numbers, got {int(score.isnan().sum())} NaN; check the model's outputs")
