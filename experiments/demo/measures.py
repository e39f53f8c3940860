"""What the demo measures of its networks: scores, PAvPU over thresholds, rates at the end and over training."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from lbdrop.metrics import accuracy, brier, ece, nll, pavpu_counts, sweep
from lbdrop.prediction import Predictive

__all__ = ["RateHistory", "measure", "over_training", "pavpu_curve", "plain", "rate_ranges", "summary"]

RateHistory = dict[int, dict[str, float]]
"""By epoch the mean drop rate of each layer, from the start on."""


def measure(probs: Float[Tensor, "n classes"], labels: Int[Tensor, "n"]) -> dict[str, float]:
    """All four measures by name."""
    return {m.__name__: round(float(m(probs, labels)), 6) for m in (accuracy, nll, brier, ece)}


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and standard error over seeds; one seed has no error to tell."""
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "se": error}


def rate_ranges(per_seed: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Per layer, over seeds and units: the mean, and the range that nine in ten fall into."""
    pooled = {name: np.concatenate([part["rates"][name] for part in per_seed]) for name in per_seed[0]["rates"]}
    what = {"mean": np.mean, "low": lambda v: np.quantile(v, 0.05), "high": lambda v: np.quantile(v, 0.95)}
    return {name: {key: float(of(values)) for key, of in what.items()} for name, values in pooled.items()}


def over_training(histories: Sequence[RateHistory]) -> dict[str, list[list[float]]]:
    """Layer by layer the mean rate at each noted epoch, over seeds."""
    return {
        layer: [[epoch, round(float(np.mean([each[epoch][layer] for each in histories])), 4)] for epoch in histories[0]]
        for layer in histories[0][0]
    }


def pavpu_curve(
    tests: Sequence[Predictive], labels: Int[Tensor, "n"], validation: Sequence[Predictive]
) -> dict[str, Any]:
    """PAvPU over thresholds between the least and the largest entropy of the validation digits, seed by seed."""
    found = []
    for test, valid in zip(tests, validation, strict=True):
        assert test.entropy is not None
        assert valid.entropy is not None
        thresholds = sweep(float(valid.entropy.min()), float(valid.entropy.max()))
        found.append(pavpu_counts(test.entropy, test.mean.argmax(1) == labels, thresholds).pavpu.tolist())
    columns = [summary(values) for values in zip(*found, strict=True)]
    return {"t": np.linspace(0, 1, len(columns)).round(6).tolist(), "pavpu": columns}


def plain(values: Tensor) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 6) for value in values.tolist()]
