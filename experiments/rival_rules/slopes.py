r"""What held-out examples say about the rates: their slopes, fitted by a line for each rate, and the way to its zero.

Every held-out example has a slope $g_i = \partial \ell_i / \partial \lambda_i$ of its own, at logits $\lambda_i$ of its own
that are drawn around the present ones. Over the latest measurements their regression on $\lambda$ has the slope and the
curvature of the held-out loss,

$$ g(\lambda) \approx \bar g + a\,(\lambda - \bar\lambda), \qquad
   a = \max\!\Big(0, \tfrac{\mathrm{cov}(\lambda, g)}{\mathrm{var}(\lambda)}\Big), $$

so that a rate can go to where its slope is zero instead of feeling its way down, and knows how sure it is: a slope of
standard error $s$ moves it by $-g/(a + 2s)$, a share of that at a time. Of several rates each has its own line.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["Slopes"]

# Of the way to the zero of the line in one measurement; of the standard error, added to the curvature.
SHARE, CAUTION = 0.1, 2.0
# By how many standard errors, of examples that differ, a slope below zero is no chance.
SURE = 1.5
# How far a rate may go in one window, in logits: the line is known as far as examples look around.
TRAVEL = 2.0


class Slopes:
    """Sums over the latest measurements, for each of ``rates`` rates: what is needed of them, and how many steps were taken.

    Args:
        rates: how many rates there are.

    Example:
        >>> slopes, logits = Slopes(1), torch.linspace(-1, 3, 100)[:, None]
        >>> for _ in range(20):  # a loss of (λ − 1)²/2
        ...     slopes.add(slopes.sums_of(logits, logits - 1), window=10.0)
        >>> round(float(slopes.step(torch.tensor([1.5]), window=10.0)), 2)  # a tenth of the way to 1
        -0.05
    """

    def __init__(self, rates: int):
        self.rates, self.steps = rates, 0
        self.sums = torch.zeros(6, rates)

    @staticmethod
    def sums_of(
        logits: Float[Tensor, "examples rates"], slopes: Float[Tensor, "examples rates"]
    ) -> Float[Tensor, "6 rates"]:
        """What one measurement adds: number, λ, g, λ², λg and g², summed over examples. Sums of several processes add up."""
        parts = (torch.ones_like(logits), logits, slopes, logits**2, logits * slopes, slopes**2)
        return torch.stack(parts).sum(1)

    def add(self, sums: Float[Tensor, "6 rates"], window: float) -> None:
        """Take in a measurement, and forget earlier ones over ``window`` of them."""
        self.sums = sums.add(self.sums.to(sums), alpha=1 - 1 / window)

    def line(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For each rate the mean logit and slope, the curvature there, and the mean slope's standard error."""
        count = self.sums[0]
        at, slope, at_at, at_slope, slope_slope = self.sums[1:] / count
        curvature = (at_slope - at * slope) / (at_at - at**2).clamp(min=1e-6)
        error = ((slope_slope - slope**2).clamp(min=0) / count).sqrt()
        return at, slope, curvature.clamp(min=0), error

    def step(self, logits: Float[Tensor, "rates"], window: float) -> Float[Tensor, "rates"]:
        """How far to move the logits now."""
        at, slope, curvature, error = self.line()
        here = slope + curvature * (logits - at)
        target = -here / (curvature + CAUTION * error).clamp(min=torch.finfo(here.dtype).tiny)
        return (SHARE * target).clamp(-TRAVEL / window, TRAVEL / window)

    def surely_down(self, different: float = math.inf) -> Bool[Tensor, "rates"]:
        """Which slopes are below zero by one and a half standard errors: more to keep, less to drop, would be better.

        Args:
            different: how many held-out examples there are: to see them again tells little that is new.
        """
        _, slope, _, error = self.line()
        again = self.sums[0] / self.sums[0].clamp(max=different)
        return slope < -SURE * error * again.sqrt()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.sums = state["steps"], state["sums"].clone()
