r"""How much noise there is in all: self-tuning's check of the cost of noise against the generalisation gap.

Rates that follow the held-out loss of the present are right at every moment and may be wrong in the end: weights that have
memorised are not taught to forget by a rate that rises late. So every measurement also has the cost of noise and the gap
(:mod:`lbdrop.rules.measurements`). If the cost is below half of the gap, or above all of it, by more than the standard
errors of both, the odds $p_l / (1 - p_l)$ of all rates are multiplied by one factor. Slopes say which layer has more noise.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.rules.measurements import MIN_MEASUREMENTS, Mean, Measurements

__all__ = ["AT_LEAST", "AT_MOST", "MAX_STEP", "beyond", "correction"]

# The share of the gap that noise costs at least, and at most: more than all of it cannot pay.
AT_LEAST, AT_MOST = 1 / 2, 1.0
# By what factor the odds may change at one measurement, as a logarithm: what is far away is not known well.
MAX_STEP = math.log(2)


def cost_at(measurements: Measurements, odds: Float[Tensor, ""]) -> Mean:
    """What the noise of all rates costs at these odds: a little noise costs in proportion to them."""
    count, cost, _, square, _, total = measurements.sums[:6]
    mean, factor = cost / count, odds.to(cost) / (total / count)
    return Mean(mean * factor, ((square / count - mean**2).clamp(min=0) / count).sqrt() * factor)


def correction(measurements: Measurements, odds: Float[Tensor, ""], distinct: float = math.inf) -> Float[Tensor, ""]:
    """The logarithm of the factor for all odds, ``odds`` in all by now; 0 where noise costs about what it should.

    Args:
        measurements: the latest.
        odds: the sum of the odds to drop.
        distinct: how many held-out batches differ: to see one again tells nothing new.
    """
    (cost, cost_error), (gap, error) = cost_at(measurements, odds), measurements.gap(distinct)
    least, most = AT_LEAST * (gap - error), AT_MOST * (gap.clamp(min=0) + error)
    up, down = (least / (cost + cost_error)).log(), (most / (cost - cost_error)).log()
    # Comparisons with NaN, as after no measurement, are false.
    too_little, too_much = (up > 0) & (cost + cost_error > 0), (down < 0) & (cost > cost_error)
    return torch.where(too_little, up, torch.where(too_much, down, 0.0)).clamp(-MAX_STEP, MAX_STEP)


def beyond(measurements: Measurements, odds: Float[Tensor, ""], distinct: float = math.inf) -> tuple[Tensor, Tensor]:
    """Whether noise of these odds certainly costs less than half of the gap; how many times as much the gap is."""
    (cost, cost_error), (gap, error) = cost_at(measurements, odds), measurements.gap(distinct)
    certain = (measurements.sums[0] > MIN_MEASUREMENTS) & (AT_LEAST * (gap - 2 * error) > cost + cost_error)
    return certain, (gap - error) / (cost + cost_error).clamp(min=torch.finfo(cost.dtype).tiny)
