"""Measures of a predictive distribution, as plain functions of probabilities and labels."""

from lbdrop.metrics.calibration import ReliabilityCurve, accuracy, brier, ece, nll, reliability_curve

__all__ = ["ReliabilityCurve", "accuracy", "brier", "ece", "nll", "reliability_curve"]
