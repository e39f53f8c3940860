r"""The measures as torchmetrics: update with batches, compute once, over any number of processes.

$$ \text{compute}\big(\text{update}(B_1), \dots, \text{update}(B_n)\big) = \text{function}(B_1 \cup \dots \cup B_n) $$

A measure that is a sum stores sums. A measure that needs all scores at once (a rank, or the mean entropy as threshold) stores
them: four bytes each for score and correctness; ``compute_on_cpu=True`` keeps them on the host. Classifiers are updated with
``(probs, labels)``, so one ``MetricCollection`` can hold them all. Every ``compute`` returns a dict of scalars, as Lightning's
``log_dict`` takes it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.metrics import calibration, detection, pavpu, segmentation
from lbdrop.metrics.predictions import check_probabilities, check_scores, flatten, judge

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "lbdrop.metrics.streams needs torchmetrics; install it with pip install 'lbdrop[vision]', or use the functions"
        " of lbdrop.metrics",
        name=error.name,
    ) from error

__all__ = ["Calibration", "EntropyRange", "MeanIoU", "Misclassification", "OutOfDistribution", "PAvPU", "PatchPAvPU"]

Scalars = dict[str, Tensor]
Probs = Float[Tensor, "batch classes *space"]
Labels = Int[Tensor, "batch *space"]
Score = Float[Tensor, "batch *space"]
Bound = float | Float[Tensor, ""]


class _Stream(Metric):
    is_differentiable = False
    full_state_update = False  # so that forward calls update once

    def _sum(self, *names: str, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> None:
        # In double precision, so that small terms are not lost in a large sum.
        for name in names:
            self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")


class _StoredScores(_Stream):
    """Stores a score and a bool of every prediction."""

    score: list[Tensor]
    flag: list[Tensor]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("score", [], dist_reduce_fx="cat")
        self.add_state("flag", [], dist_reduce_fx="cat")

    def _store(self, score: Tensor, flag: Tensor) -> None:
        # Both in the metric's own type, in which a process without data adds an empty tensor.
        self.score.append(score.detach().to(self.dtype))
        self.flag.append(flag.to(self.dtype))

    def _all(self) -> tuple[Tensor, Tensor]:
        if not len(self.score):
            raise DropoutError("compute: want at least one batch, got none; call update first")
        return dim_zero_cat(self.score), dim_zero_cat(self.flag).bool()


class _StoredJudgements(_StoredScores):
    """Stores uncertainty and correctness of each example, each pixel that is not void, or each window of pixels."""

    def __init__(self, window: int | None, void: int | None, **settings: Any) -> None:
        super().__init__(**settings)
        self.window, self.void = window, void

    def update(self, probs: Probs, labels: Labels, score: Score | None = None) -> None:
        """Add a batch; ``score``, such as the mutual information, replaces the entropy of ``probs``."""
        self._store(*_judgements(probs, labels, score, self.window, self.void))


def _judgements(
    probs: Tensor, labels: Tensor, score: Tensor | None, window: int | None, void: int | None
) -> tuple[Tensor, Tensor]:
    judged = judge(probs, labels, void)
    score = judged.entropy if score is None else score
    check_scores(score, judged.correct)
    if window is not None:
        return pavpu.patches(score, judged.correct, window, judged.valid)
    return score[judged.valid], judged.correct[judged.valid]


class Calibration(_Stream):
    """Accuracy, NLL, Brier score and ECE, each divided by the number of examples, or of pixels that are not void."""

    bin_count: Tensor
    bin_right: Tensor
    bin_confidence: Tensor
    nll: Tensor
    brier: Tensor

    def __init__(self, bins: int = calibration.BINS, void: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._sum("bin_count", "bin_right", "bin_confidence", shape=(bins,))
        self._sum("nll", "brier")
        self.bins, self.void = bins, void

    def update(self, probs: Probs, labels: Labels) -> None:
        rows, truth = flatten(probs.to(torch.promote_types(probs.dtype, torch.float32)), labels, self.void)
        if not len(truth):  # every label is void
            return
        curve = calibration.reliability_curve(rows, truth, self.bins)
        self.bin_count += curve.count
        self.bin_right += (curve.accuracy.double().nan_to_num() * curve.count).round()
        self.bin_confidence += curve.confidence.double().nan_to_num() * curve.count
        self.nll += calibration.nll(rows, truth).double() * len(truth)
        self.brier += calibration.brier(rows, truth).double() * len(truth)

    def compute(self) -> Scalars:
        n = self.bin_count.sum()
        gaps = (self.bin_right - self.bin_confidence).abs()
        sums = {"accuracy": self.bin_right.sum(), "nll": self.nll, "brier": self.brier, "ece": gaps.sum()}
        return {name: total / n for name, total in sums.items()}


class EntropyRange(_Stream):
    """The smallest and the largest entropy: of examples, of pixels, or of patches if ``window`` is given.

    On the validation set these are the ends of the sweep: ``PAvPU(**entropy_range.compute())``.
    """

    lowest: Tensor
    highest: Tensor

    def __init__(self, window: int | None = None, void: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("lowest", torch.tensor(torch.inf), dist_reduce_fx="min")
        self.add_state("highest", torch.tensor(-torch.inf), dist_reduce_fx="max")
        self.window, self.void = window, void

    def update(self, probs: Probs, labels: Labels, score: Score | None = None) -> None:
        seen, _ = _judgements(probs, labels, score, self.window, self.void)
        self.lowest = torch.cat([self.lowest[None], seen.to(self.lowest)]).min()
        self.highest = torch.cat([self.highest[None], seen.to(self.highest)]).max()

    def compute(self) -> Scalars:
        return {"lowest": self.lowest, "highest": self.highest}


class _Sweep(_StoredJudgements):
    higher_is_better = True
    thresholds: Tensor

    def compute(self) -> Scalars:
        """PAvPU at the mean entropy of all predictions, averaged over the sweep, and at each of its steps."""
        entropy, correct = self._all()
        curve = pavpu.pavpu_counts(entropy, correct, self.thresholds).pavpu
        steps = {f"pavpu_t{i / (len(curve) - 1):.3g}": value for i, value in enumerate(curve)}
        at_mean = pavpu.pavpu_at_mean_entropy(entropy, correct)
        return {"pavpu_at_mean_entropy": at_mean, "pavpu_over_sweep": curve.mean(), **steps}


class PAvPU(_Sweep):
    """PAvPU of single predictions, divided by the number of examples, or of pixels that are not void.

    ``lowest`` and ``highest`` are the validation set's, see :class:`EntropyRange`.
    """

    def __init__(
        self, lowest: Bound, highest: Bound, steps: int = pavpu.STEPS, void: int | None = None, **settings: Any
    ) -> None:
        super().__init__(None, void, **settings)
        self.thresholds = pavpu.sweep(float(lowest), float(highest), steps)


class PatchPAvPU(_Sweep):
    """PAvPU of windows of window × window pixels, divided by the number of windows that are not all void.

    ``lowest`` and ``highest`` are the validation set's, see :class:`EntropyRange` with the same window.
    """

    def __init__(
        self,
        lowest: Bound,
        highest: Bound,
        steps: int = pavpu.STEPS,
        window: int = pavpu.WINDOW,
        void: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(window, void, **settings)
        self.thresholds = pavpu.sweep(float(lowest), float(highest), steps)


class Misclassification(_StoredJudgements):
    """AUROC of finding mistakes, divided by (wrong, right) pairs, and AURC, averaged over coverages; void left out."""

    def __init__(self, void: int | None = None, **settings: Any) -> None:
        super().__init__(None, void, **settings)

    def compute(self) -> Scalars:
        score, correct = self._all()
        found = detection.misclassification_auroc(score, correct)
        return {"misclassification_auroc": found, "aurc": detection.aurc(score, correct)}


class OutOfDistribution(_StoredScores):
    """AUROC of telling foreign inputs from familiar ones by a score, divided by (foreign, familiar) pairs."""

    higher_is_better = True

    def update(self, score: Float[Tensor, "batch"], foreign: Bool[Tensor, "batch"]) -> None:
        check_scores(score, foreign, "foreign")
        self._store(score, foreign)

    def compute(self) -> Scalars:
        return {"out_of_distribution_auroc": detection.auroc(*self._all())}


class MeanIoU(_Stream):
    """IoU summed over the data set and averaged over classes; pixel accuracy; IoU of each class by name or number."""

    higher_is_better = True
    confusion: Tensor

    def __init__(
        self, classes: int, void: int | None = None, names: Sequence[str] | None = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        if names is not None and len(names) != classes:
            raise DropoutError(f"names: want one for each of {classes} classes, got {len(names)}; leave out void")
        self._sum("confusion", shape=(classes, classes), dtype=torch.long)
        self.void, self.names = void, names or range(classes)

    def update(self, probs: Probs, labels: Labels) -> None:
        check_probabilities(probs, labels, self.void)
        self.confusion += segmentation.confusion_matrix(probs.argmax(1), labels, len(self.confusion), self.void)

    def compute(self) -> Scalars:
        whole = {"mean_iou": segmentation.mean_iou, "pixel_accuracy": segmentation.pixel_accuracy}
        each = zip(self.names, segmentation.class_iou(self.confusion), strict=True)
        return {key: of(self.confusion) for key, of in whole.items()} | {f"iou_{name}": iou for name, iou in each}
