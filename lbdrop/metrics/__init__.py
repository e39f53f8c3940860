"""Measures of a predictive distribution, as plain functions of tensors; :mod:`lbdrop.metrics.streams` accumulates them."""

from lbdrop.metrics.calibration import ReliabilityCurve, accuracy, brier, ece, nll, reliability_curve
from lbdrop.metrics.detection import (
    RiskCoverageCurve,
    aurc,
    auroc,
    misclassification_auroc,
    out_of_distribution_auroc,
    risk_coverage_curve,
)
from lbdrop.metrics.pavpu import (
    PAvPUCounts,
    patch_pavpu_counts,
    patches,
    pavpu_at_mean_entropy,
    pavpu_counts,
    pavpu_over_sweep,
    sweep,
)
from lbdrop.metrics.predictions import Judged, flatten, judge, predictive_entropy
from lbdrop.metrics.regression import gaussian_nll, interval_coverage, mixture_nll, rmse
from lbdrop.metrics.segmentation import class_iou, confusion_matrix, mean_iou, pixel_accuracy

__all__ = [
    "Judged",
    "PAvPUCounts",
    "ReliabilityCurve",
    "RiskCoverageCurve",
    "accuracy",
    "aurc",
    "auroc",
    "brier",
    "class_iou",
    "confusion_matrix",
    "ece",
    "flatten",
    "gaussian_nll",
    "interval_coverage",
    "judge",
    "mean_iou",
    "misclassification_auroc",
    "mixture_nll",
    "nll",
    "out_of_distribution_auroc",
    "patch_pavpu_counts",
    "patches",
    "pavpu_at_mean_entropy",
    "pavpu_counts",
    "pavpu_over_sweep",
    "pixel_accuracy",
    "predictive_entropy",
    "reliability_curve",
    "risk_coverage_curve",
    "rmse",
    "sweep",
]
