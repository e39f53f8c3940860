r"""PAvPU, patch accuracy vs patch uncertainty: how often a prediction is right and certain, or wrong and uncertain.

$$ \mathrm{PAvPU}(\theta) = \frac{n_{ac} + n_{iu}}{n_{ac} + n_{au} + n_{ic} + n_{iu}}, \qquad
   \text{uncertain} \iff H > \theta $$

with $n_{ac}$ the accurate and certain, $n_{au}$ the accurate and uncertain, $n_{ic}$ the inaccurate and certain,
$n_{iu}$ the inaccurate and uncertain. The unit is an example, or a window of $w \times w$ pixels with the
means of its pixels' correctness and entropy.

Mukhoti and Gal, Evaluating Bayesian Deep Learning Methods for Semantic Segmentation, 2018.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.metrics.predictions import check_scores

__all__ = [
    "PAvPUCounts",
    "patch_pavpu_counts",
    "patches",
    "pavpu_at_mean_entropy",
    "pavpu_counts",
    "pavpu_over_sweep",
    "sweep",
]

STEPS = 11
WINDOW = 2


@dataclass(frozen=True)
class PAvPUCounts:
    """The four counts, one entry per threshold; counts of several batches add up with ``+``."""

    n_ac: Int[Tensor, "thresholds"]
    n_au: Int[Tensor, "thresholds"]
    n_ic: Int[Tensor, "thresholds"]
    n_iu: Int[Tensor, "thresholds"]

    def __add__(self, other: "PAvPUCounts") -> "PAvPUCounts":
        return PAvPUCounts(
            self.n_ac + other.n_ac, self.n_au + other.n_au, self.n_ic + other.n_ic, self.n_iu + other.n_iu
        )

    @property
    def total(self) -> Int[Tensor, "thresholds"]:
        return self.n_ac + self.n_au + self.n_ic + self.n_iu

    @property
    def pavpu(self) -> Float[Tensor, "thresholds"]:
        """(n_ac + n_iu) divided by all counts; NaN without any."""
        return (self.n_ac + self.n_iu).double() / self.total

    @property
    def accurate_given_certain(self) -> Float[Tensor, "thresholds"]:
        """n_ac / (n_ac + n_ic): divided by the certain; NaN without any."""
        return self.n_ac.double() / (self.n_ac + self.n_ic)

    @property
    def uncertain_given_inaccurate(self) -> Float[Tensor, "thresholds"]:
        """n_iu / (n_ic + n_iu): divided by the inaccurate; NaN without any."""
        return self.n_iu.double() / (self.n_ic + self.n_iu)


def pavpu_counts(
    entropy: Float[Tensor, "batch"], correct: Bool[Tensor, "batch"], thresholds: Float[Tensor, "thresholds"]
) -> PAvPUCounts:
    """Counts for every threshold at once, in any order; an example is uncertain if its entropy exceeds the threshold.

    >>> counts = pavpu_counts(
    ...     torch.tensor([0.1, 0.6, 0.2, 0.9]), torch.tensor([True, True, False, False]), torch.tensor([0.5])
    ... )
    >>> counts.pavpu
    tensor([0.5000], dtype=torch.float64)
    """
    check_scores(entropy, correct)
    return _counts(entropy, correct, thresholds)


def patch_pavpu_counts(
    entropy: Float[Tensor, "batch height width"],
    correct: Bool[Tensor, "batch height width"],
    thresholds: Float[Tensor, "thresholds"],
    window: int = WINDOW,
    valid: Bool[Tensor, "batch height width"] | None = None,
) -> PAvPUCounts:
    """Counts over windows of window × window pixels, see :func:`patches`; images that are all void add no counts."""
    return _counts(*patches(entropy, correct, window, valid), thresholds)


def patches(
    entropy: Float[Tensor, "batch height width"],
    correct: Bool[Tensor, "batch height width"],
    window: int = WINDOW,
    valid: Bool[Tensor, "batch height width"] | None = None,
) -> tuple[Float[Tensor, "patches"], Bool[Tensor, "patches"]]:
    """Mean entropy of each window, and whether more than half of its pixels are right; both over valid pixels only.

    Windows do not overlap; those at the right and bottom edge hold what is left of the image. A window without a valid
    pixel is skipped. The result goes into :func:`pavpu_counts` and every other measure of a score and a bool.
    """
    check_scores(entropy, correct)
    if valid is not None and (valid.shape != correct.shape or valid.dtype != torch.bool):
        raise DropoutError(
            f"valid: want a bool of shape {tuple(correct.shape)}, got {tuple(valid.shape)} {valid.dtype}; pass"
            " labels != void"
        )
    if window < 1:
        raise DropoutError(f"window: want at least 1 pixel, got {window}; the paper's is 2")
    valid = torch.ones_like(correct) if valid is None else valid

    def summed(pixels: Tensor) -> Tensor:
        height, width = pixels.shape[1:]
        padded = torch.nn.functional.pad(pixels, (0, -width % window, 0, -height % window))
        return padded.unflatten(2, (-1, window)).unflatten(1, (-1, window)).sum((2, 4)).flatten()

    count = summed(valid.long())
    seen = count > 0
    means = summed(entropy.double().where(valid, 0))[seen] / count[seen]
    return means.to(entropy.dtype), 2 * summed((correct & valid).long())[seen] > count[seen]


def sweep(lowest: float, highest: float, steps: int = STEPS) -> Float[Tensor, "steps"]:
    """Thresholds lowest + t (highest − lowest) for t = 0, 1/(steps − 1), …, 1; take both ends from validation data.

    >>> sweep(0.0, 2.0, steps=3)
    tensor([0., 1., 2.], dtype=torch.float64)
    """
    if not lowest <= highest or steps < 2:
        raise DropoutError(
            f"sweep: want lowest ≤ highest and at least 2 steps, got {lowest}, {highest} and {steps}; take the smallest"
            " and the largest entropy of the validation set"
        )
    t = torch.arange(steps, dtype=torch.float64) / (steps - 1)
    # In this form t = 0 and t = 1 give both ends exactly, so the largest entropy is never above the last threshold.
    return (1 - t) * lowest + t * highest


def pavpu_at_mean_entropy(entropy: Float[Tensor, "batch"], correct: Bool[Tensor, "batch"]) -> Float[Tensor, ""]:
    """PAvPU at the threshold that is the mean entropy of these examples (or patches), divided by their number."""
    check_scores(entropy, correct)
    values = entropy.double()
    # Clamped, because rounding must not move the mean of equal values.
    mean = values.mean().clamp(values.min(), values.max())
    return _counts(entropy, correct, mean[None]).pavpu[0]


def pavpu_over_sweep(
    entropy: Float[Tensor, "batch"],
    correct: Bool[Tensor, "batch"],
    lowest: float,
    highest: float,
    steps: int = STEPS,
) -> Float[Tensor, ""]:
    """PAvPU averaged over the thresholds of :func:`sweep`, each divided by the number of examples (or patches)."""
    check_scores(entropy, correct)
    return _counts(entropy, correct, sweep(lowest, highest, steps)).pavpu.mean()


def _counts(entropy: Tensor, correct: Tensor, thresholds: Tensor) -> PAvPUCounts:
    if thresholds.dim() != 1 or bool(thresholds.isnan().any()):
        raise DropoutError(
            f"thresholds: want a vector of numbers, got shape {tuple(thresholds.shape)} and"
            f" {int(thresholds.isnan().sum())} NaN; make one with sweep(lowest, highest)"
        )
    k = len(thresholds)
    ordered, order = thresholds.to(entropy.device, torch.float64).sort()
    # The number of thresholds that each entropy exceeds gives the counts of all thresholds in one histogram.
    exceeded = torch.bucketize(entropy.double(), ordered)
    histogram = torch.bincount(exceeded + (k + 1) * correct, minlength=2 * (k + 1)).view(2, k + 1)
    certain = histogram.cumsum(1)[:, :-1]
    uncertain = histogram.sum(1, keepdim=True) - certain
    place = order.argsort()
    return PAvPUCounts(certain[1, place], uncertain[1, place], certain[0, place], uncertain[0, place])
