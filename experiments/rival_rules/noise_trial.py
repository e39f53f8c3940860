r"""What the noise of each dropout would cost a network that was trained without, beside what over-fitting takes.

Dropout can give at most the gap between held-out and training loss. So at the end of some steps without it, each rate's
noise is tried alone, at one tenth:

$$ c_l = \bar\ell_{\text{train}}(\text{noise in layer } l) - \bar\ell_{\text{train}}, \qquad
   g = \max(0,\, \bar\ell_{\text{held out}} - \bar\ell_{\text{train}}) $$

A layer with $c_l > 2g$ by three standard errors is off; twice, for the gap may grow. It would have cost weights their time
under its noise, or have thrown them for good (LOG.md). All others begin at one rate, whose noise costs what over-fitting
takes, by one standard error less, and are judged by held-out data from there. The variance of $z / (1 - p)$, and with it
the cost of a little noise, is $p / (1 - p)$, so that this rate is

$$ \frac{p}{1 - p} = \frac{0.1}{0.9}\, \frac{g}{\sum_l c_l}. $$

Not every gap is over-fitting: held-out data may be harder, as texts of other topics are. In the first epoch, whose batches
have not been trained on yet, nothing can over-fit; a gap that is there at its end, by four standard errors, is taken off.
That is asked where the length of an epoch is known, from ``examples``, and in time.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.dropout import logit_of
from lbdrop.rules.evaluation import Evaluation
from lbdrop.rules.measurements import losses_at

__all__ = [
    "RATE",
    "STEPS",
    "costs",
    "start_rate",
    "sums_of",
    "too_costly",
    "turn",
    "within",
]

# The rate at which noise is tried, wherever rates begin, through how many masks in a step, and in how many steps. Masks go one
# by one: to run them together takes a small network longer.
RATE, MASKS, STEPS = 0.1, 2, 20
# So many rates at a time, more only if not all would have their turn: a model may have very many.
AT_ONCE = 4
# How many gaps the cost has to be above, and by how many standard errors. They take every draw for a new example, and are
# too small where data are few.
GAPS, SURE = 2.0, 3.0
# Where rates may begin: from the edges it is far to anywhere else.
LEAST, MOST = 0.05, 0.5


def turn(step: int, logits: Sequence[Tensor]) -> list[int]:
    """Which rates are tried in a step; those without a gradient stay as they are, and never are."""
    learned = [rate for rate, logit in enumerate(logits) if logit.requires_grad]
    count = min(len(learned), max(AT_ONCE, -(-len(learned) // STEPS)))
    return sorted(learned[(step * count + i) % len(learned)] for i in range(count))


def costs(
    evaluation: Evaluation, logits: Sequence[Tensor], which: Sequence[int], generator: torch.Generator | None
) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch which"]]:
    """Each example's loss without dropout, and what the noise of each of these rates alone adds to it."""
    with torch.no_grad():
        without = losses_at(evaluation, logits, generator)
        found = []
        for rate in which:
            logit = logits[rate]
            kept = logit.clone()
            try:
                logit.fill_(logit_of(RATE))
                others = [a for a in logits if a is not logit]
                noisy = [losses_at(evaluation, others, generator) for _ in range(MASKS)]
                found.append(torch.stack(noisy).mean(0) - without)
            finally:
                logit.copy_(kept)
    return without, torch.stack(found, 1)


def sums_of(
    costs: Float[Tensor, "batch which"],
    which: Sequence[int],
    rates: int,
    trained: Float[Tensor, "batch"],
    held_out: Float[Tensor, "other"],
) -> Float[Tensor, "9 rates"]:
    """Number, sum and sum of squares of the costs, and of losses of training and held-out examples, the same for all rates."""
    moments = [
        torch.stack([torch.ones_like(each), each, each**2]).sum(1).double()
        for each in (costs, trained[:, None], held_out[:, None])
    ]
    tried = moments[0].new_zeros(3, rates).index_copy(1, torch.tensor(which, device=costs.device), moments[0])
    return torch.cat([tried, *(each.expand(3, rates) for each in moments[1:])])


def too_costly(sums: Float[Tensor, "9 rates"]) -> list[bool]:
    """Whether each rate's noise costs too much; waits for the device."""
    (cost, cost_variance), (gap, gap_variance) = _cost_and_gap(sums)
    error = (cost_variance + GAPS**2 * gap_variance).sqrt()
    certain = cost - GAPS * gap.clamp(min=0) > SURE * error
    endless = ~cost.isfinite() & (sums[0] > 0)
    return (certain | endless).tolist()


def start_rate(sums: Float[Tensor, "9 rates"], left: Sequence[bool], shift: tuple[Tensor, Tensor]) -> float:
    """The rate at which the noise of those that are left costs as much as the gap; waits for the device.

    Args:
        sums: of the trial.
        left: which rates are not off.
        shift: by how much held-out data are harder from the beginning, and its variance.
    """
    (cost, _), (gap, gap_variance) = _cost_and_gap(sums)
    of_all = cost[torch.tensor(left, device=cost.device)].sum()
    # The part of the gap that is neither chance nor there from the beginning.
    certain_gap = (gap - shift[0] - (gap_variance + shift[1]).sqrt()).clamp(min=0)[0]
    total, gap = torch.stack([of_all, certain_gap]).tolist()
    if math.isnan(gap):  # of no example, or of one: nothing is known
        return RATE
    if total <= 0:
        return MOST if gap else LEAST
    return within(RATE / (1 - RATE) * gap / total if math.isfinite(total) else 0.0)


def within(odds: float) -> float:
    """The rate of these odds, where it is one to begin at, else the nearest."""
    return MOST if odds == math.inf else min(max(odds / (1 + odds), LEAST), MOST)


def _cost_and_gap(sums: Float[Tensor, "9 rates"]) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Each as a mean and its variance, for every rate."""
    count, total, squares = sums.view(3, 3, -1).unbind(1)
    mean = total / count
    cost, trained, held_out = zip(mean, (squares / count - mean**2).clamp(min=0) / (count - 1), strict=True)
    return cost, (held_out[0] - trained[0], held_out[1] + trained[1])
