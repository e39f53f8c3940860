r"""Where odds to drop belong, as far as measurements tell: the mean of a posterior whose prior is a usual rate.

To first order noise of odds $o$ costs $k o$, and it should cost a share $s$ of the gap $g$, so the odds sought are
$s g / k$: a quotient of two measured numbers. Early in a run both are one or two standard errors from zero. Their quotient is
then anything, and a rule that follows it runs away: a network that has learned nothing yet has nothing for noise to destroy,
so noise looks free. Fieller's likelihood says how well odds fit what was measured, $\hat k \pm e_k$ and $\hat g \pm e_g$:

$$ \log L(o) = -\frac{(\hat k\,o - s\,\hat g)^2}{2\,(e_k^2 o^2 + s^2 e_g^2)}, \qquad
   \log o \sim \mathcal{N}(\log o_0, \tau^2) . $$

Where nothing is known it is flat, and the odds go to the prior's, those of a rate of .1. A cost and a gap that are certain to
a tenth leave a width of .14 in $\log o$, beside which a prior of width $\tau = 2$ has no say.

That prior is of networks that over-fit. Others need no noise at all: the gap is all that noise can win back, and what noise
costs in speed of learning shows in no measurement of one step. So there is none before there certainly is a gap.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lbdrop.dropout import logit_of
from lbdrop.rules.constants import CONSTANTS
from lbdrop.rules.measurements import Mean, Measurements

__all__ = ["expected_log_odds", "has_gap", "log_changes", "too_costly"]

POINTS = 257
"""Of the grid over log odds; neighbours differ by 3 %."""


def expected_log_odds(
    unit_cost: Mean, target: Mean, rates: int, prior: float, width: float, low: float, high: float
) -> Float[Tensor, ""]:
    """The posterior mean of the logarithm of the odds; makes no GPU wait.

    Args:
        unit_cost: what noise costs, for the sum of its odds.
        target: what it should cost.
        rates: how many rates have these odds.
        prior: its mean, as log odds.
        width: the prior's standard deviation.
        low: least log odds.
        high: largest log odds.

    Example:
        >>> value = lambda x: torch.tensor(x, dtype=torch.float64)
        >>> known, unknown, prior = Mean(value(2.0), value(0.02)), Mean(value(2.0), value(20.0)), -3.0
        >>> round(float(expected_log_odds(known, Mean(value(1.0), value(0.01)), 1, prior, 1.0, -7.0, 1.0).exp()), 2)
        0.5
        >>> round(float(expected_log_odds(unknown, Mean(value(1.0), value(1.0)), 1, prior, 1.0, -7.0, 1.0).exp()), 2)
        0.06
    """
    grid = torch.linspace(low, high, POINTS, dtype=unit_cost.value.dtype, device=unit_cost.value.device)
    odds = rates * grid.exp()
    variance = (odds * unit_cost.error).square() + target.error.square()
    # Neither is truly negative: found below 0, they would speak for much noise, whose cost is the least certain.
    difference = odds * unit_cost.value.clamp(min=0) - target.value.clamp(min=0)
    misfit = difference.square() / variance.clamp(min=torch.finfo(variance.dtype).tiny)
    # Without any spread yet, as in a closed form, misfits are huge: only differences count.
    surprise = ((grid - prior) / width).square()
    weights = torch.softmax(-0.5 * (misfit - misfit.amin() + surprise), 0)
    return (weights * grid).sum()


def log_changes(measurements: Measurements, odds: Float[Tensor, "rates"], moving: list[int]) -> Float[Tensor, "moving"]:
    """By what the log odds of each rate that moves should change at one measurement; 0 before enough is known."""
    c, now, alone = CONSTANTS, odds[moving], measurements.alone[:, moving]
    cost, gap = measurements.unit_cost(), measurements.gap()
    target = Mean(c.cost_share * gap.value, c.cost_share * gap.error)
    edges = -logit_of(c.min_rate), -logit_of(c.max_rate)
    aim = expected_log_odds(cost, target, len(now), -logit_of(c.prior_rate), c.prior_width, *edges)
    factor = (aim - now.mean().log()).clamp(-c.max_step, c.max_step)
    unit_cost = torch.where(alone[1] > 0, alone[0] / alone[1], cost.value)  # some have not had their turn yet
    # A layer counts as no cheaper than what is not told apart from nothing.
    unit_cost = torch.maximum(unit_cost, c.min_cost_share * unit_cost.max()).clamp(min=0) + cost.error
    unit_cost = unit_cost.clamp(min=torch.finfo(unit_cost.dtype).tiny)
    share = unit_cost**-c.cost_power
    # In these proportions, what noise would cost as much as now; and by the factor more or less.
    then = share * (unit_cost * now).sum() / (unit_cost * share).sum() * factor.exp()
    change = (then / now).log().clamp(-c.max_step, c.max_step)
    return torch.where(measurements.enough & change.isfinite(), change, 0.0)


def has_gap(measurements: Measurements, distinct: float) -> Bool[Tensor, ""]:
    """Whether the gap is above zero for certain."""
    gap, error = measurements.gap(distinct)
    return measurements.enough & (gap > CONSTANTS.z_gap * error)


def too_costly(measurements: Measurements, odds: Float[Tensor, ""], distinct: float) -> Bool[Tensor, ""]:
    """Whether the noise of these odds costs more than the gap for certain."""
    gap, error = measurements.gap(distinct)
    return measurements.unit_cost().value * odds > gap.clamp(min=0) + CONSTANTS.z_too_costly * error
