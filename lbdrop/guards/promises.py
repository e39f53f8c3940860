r"""Acting on uncertainty at a promised rate: which questions to answer, and how wide an interval has to be.

**Abstention.** Questions are answered from the most certain on. Let $k$ be the errors among the held-out ones up to that of
some rank, and $m$ their number without that one. Given its score, the others are drawn as any that are more certain, so that
their errors are binomial; an error rate above $a$ among what is answered there has a chance of at most $\delta / J$ to pass

$$ P\big(\mathrm{Bin}(m, a) \le k\big) \le \delta / J . $$

The largest of $J = 20$ shares that passes is taken (Geifman and El-Yaniv, Selective Classification for Deep Neural Networks,
2017; Angelopoulos et al., Learn then Test, 2021). **Intervals** are those of split conformal prediction (Lei et al. 2018) on
the error in units of its predicted deviation. Both promise something of questions drawn as the held-out ones were, and of no
others.
"""

import math
import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lbdrop.errors import DropoutError

__all__ = ["Answers", "conformal_scale", "largest_doubt"]

SHARES = 20


@dataclass(frozen=True)
class Answers:
    """Which questions are answered."""

    answered: Bool[Tensor, "batch"]
    largest_doubt: float
    """The entropy up to which questions are answered; −∞ if none may be."""
    share_held_out: float
    """Of the held-out questions, how many are answered."""


def largest_doubt(
    doubt: Float[Tensor, "held_out"], wrong: Bool[Tensor, "held_out"], error: float, risk: float
) -> tuple[float, float]:
    """The doubt up to which at most ``error`` of the answers are wrong, but for a chance of ``risk``, and the share held there.

    >>> doubt = torch.arange(400.0)
    >>> largest_doubt(doubt, doubt >= 300, error=0.05, risk=0.05)
    (299.0, 0.75)
    """
    _check_share("error", error)
    _check_share("risk", risk)
    if doubt.dim() != 1 or doubt.shape != wrong.shape:
        raise DropoutError(
            f"held-out doubt and labels: want one of each for every example, (n,), got {tuple(doubt.shape)} and"
            f" {tuple(wrong.shape)}"
        )
    n = len(doubt)
    needed = math.ceil(math.log(risk / SHARES) / math.log(1 - error)) + 1
    if n < needed:
        raise DropoutError(
            f"held-out examples: want at least {needed} for an error rate of {error:g} with a certainty of {1 - risk:g}, got"
            f" {n}; hold more out, or promise less"
        )
    order = doubt.double().argsort()
    sorted_doubt, errors = doubt[order], wrong[order].cumsum(0)
    for share in range(SHARES, 0, -1):
        at = float(sorted_doubt[math.ceil(n * share / SHARES) - 1])
        answered = int((sorted_doubt <= at).sum())  # more than the rank where doubts are equal
        if _binomial_cdf(int(errors[answered - 1]), answered - 1, error) <= risk / SHARES:
            return at, share / SHARES
    warnings.warn(
        f"no question is answered: even the most certain of {n} held-out ones do not show an error rate of at most {error:g};"
        " promise less, or train a better model",
        stacklevel=3,
    )
    return -math.inf, 0.0


def conformal_scale(scores: Float[Tensor, "held_out"], level: float) -> float:
    """The score that a new one is at most, with a chance of at least ``level``.

    >>> conformal_scale(torch.arange(1.0, 100.0), level=0.9)
    90.0
    """
    _check_share("level", level)
    rank = math.ceil((len(scores) + 1) * level)
    if rank > len(scores):
        raise DropoutError(
            f"held-out examples: want at least {math.ceil(level / (1 - level))} for intervals of level {level:g}, got"
            f" {len(scores)}; hold more out, or promise less"
        )
    return float(scores.sort().values[rank - 1])


def _binomial_cdf(k: int, n: int, p: float) -> float:
    """The chance of at most k of n."""
    i = torch.arange(min(k, n) + 1, dtype=torch.float64)
    total = torch.tensor(float(n), dtype=torch.float64)
    ways = torch.lgamma(total + 1) - torch.lgamma(i + 1) - torch.lgamma(total - i + 1)
    return float((ways + i * math.log(p) + (n - i) * math.log1p(-p)).logsumexp(0).exp())


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise DropoutError(f"{name}: want a share between 0 and 1, got {value}; 0.05 means 5 %")
