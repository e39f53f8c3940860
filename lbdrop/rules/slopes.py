r"""What held-out examples say about the rates: their slopes, fitted by a line for each rate, and the way to its zero.

Every held-out example has a slope $g_i = \partial \ell_i / \partial \lambda_i$ of its own, at logits $\lambda_i$ of its own
that are drawn around the present ones. Over the latest looks their regression on $\lambda$ has the held-out loss's slope and
curvature,

$$ g(\lambda) \approx \bar g + a\,(\lambda - \bar\lambda), \qquad
   a = \max\!\Big(0, \tfrac{\mathrm{cov}(\lambda, g)}{\mathrm{var}(\lambda)}\Big), $$

so that a rate can go to where its slope is zero instead of feeling its way down, and knows how sure it is: a slope of
standard error $s$ moves it by $-g/(a + 2s)$, a share of that at a time. Of several rates each has its own line.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

__all__ = ["Slopes"]

# Of the way to the zero of the line in one look; of the standard error, added to the curvature.
SHARE, CAUTION = 0.1, 2.0
# By how many standard errors, of examples that differ, a slope below zero is no chance.
SURE = 1.5
# Rows of what :mod:`lbdrop.rules.trial` and :mod:`lbdrop.rules.balance` sum up.
TRIAL = 19
# How far a rate may go in one window, in logits: the line is known as far as examples look around.
TRAVEL = 2.0


class Slopes(nn.Module):
    """Sums over the latest looks, for each of ``rates`` rates: what is needed of them, and how many steps were taken.

    They belong to the model's state, so that a run taken up again goes on with them, but are not moved or rounded with it.

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
        super().__init__()
        self.rates, self.steps = rates, 0
        self.sums = torch.zeros(6, rates)
        self.trial = torch.zeros(TRIAL, rates, dtype=torch.float64)
        """What :mod:`lbdrop.rules.trial` and :mod:`lbdrop.rules.balance` have summed up, and the step of an early beginning."""

    @staticmethod
    def sums_of(
        logits: Float[Tensor, "examples rates"], slopes: Float[Tensor, "examples rates"]
    ) -> Float[Tensor, "6 rates"]:
        """What one look adds: number, λ, g, λ², λg and g², summed over examples. Sums of several processes add up."""
        parts = (torch.ones_like(logits), logits, slopes, logits**2, logits * slopes, slopes**2)
        return torch.stack(parts).sum(1)

    def add(self, sums: Float[Tensor, "6 rates"], window: float) -> None:
        """Take a look in, and forget earlier ones over ``window`` looks."""
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

    def get_extra_state(self) -> Tensor:
        steps = self.sums.new_full((1, self.rates), self.steps, dtype=torch.float64)
        return torch.cat([steps, self.sums.double(), self.trial.to(self.sums.device)])

    def set_extra_state(self, state: Tensor) -> None:
        self.steps, self.sums, self.rates = int(state[0, 0]), state[1:7].float(), state.shape[1]
        self.trial = state.new_zeros(TRIAL, self.rates)
        held = state[7 : 7 + TRIAL]
        self.trial[: len(held)] = held  # an older state has less of a trial, or none
