"""Calibration and overlap of segmentations over batches, as torchmetrics: what CamVid's table needs in one pass."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.metrics import calibration, segmentation
from lbdrop.metrics.predictions import check_probabilities, flatten
from lbdrop.metrics.streams import Labels, Probs, Scalars, Stream

__all__ = ["Calibration", "MeanIoU"]


class Calibration(Stream):
    """Accuracy, NLL, Brier score and ECE, each divided by the number of examples, or of pixels that are not void."""

    bin_count: Tensor
    bin_right: Tensor
    bin_confidence: Tensor
    nll: Tensor
    brier: Tensor

    def __init__(self, bins: int = calibration.BINS, void: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_sums("bin_count", "bin_right", "bin_confidence", shape=(bins,))
        self.add_sums("nll", "brier")
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


class MeanIoU(Stream):
    """IoU summed over the data set and averaged over classes; pixel accuracy; IoU of each class by name or number."""

    higher_is_better = True
    confusion: Tensor

    def __init__(
        self, classes: int, void: int | None = None, names: Sequence[str] | None = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        if names is not None and len(names) != classes:
            raise DropoutError(f"names: want one for each of {classes} classes, got {len(names)}; leave out void")
        self.add_sums("confusion", shape=(classes, classes), dtype=torch.long)
        self.void, self.names = void, names or range(classes)

    def update(self, probs: Probs, labels: Labels) -> None:
        check_probabilities(probs, labels, self.void)
        self.confusion += segmentation.confusion_matrix(probs.argmax(1), labels, len(self.confusion), self.void)

    def compute(self) -> Scalars:
        whole = {"mean_iou": segmentation.mean_iou, "pixel_accuracy": segmentation.pixel_accuracy}
        each = zip(self.names, segmentation.class_iou(self.confusion), strict=True)
        return {key: of(self.confusion) for key, of in whole.items()} | {f"iou_{name}": iou for name, iou in each}
