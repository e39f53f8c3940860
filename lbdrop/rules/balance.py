r"""How much noise there is in all: what it costs the training loss, beside what over-fitting takes.

Rates that follow the held-out loss of the present are right at every moment and may be wrong in the end: weights that have
memorised are not taught to forget by a rate that rises late. So every look at held-out data also compares three losses, of
training examples without noise and with it, and of held-out examples:

$$ c = \bar\ell_{\text{noisy}} - \bar\ell_{\text{plain}}, \qquad
   g = \bar\ell_{\text{held out}} - \bar\ell_{\text{plain}} - s, $$

where $s$ is what held-out examples lose from the beginning (:mod:`lbdrop.rules.trial`). Where self-tuned rates do well, noise
costs about half of what over-fitting takes (LOG.md), and more than all of it cannot pay. So if $c$ is below $g/2$, or above
$g$, by more than the standard errors of both, the odds $p_l / (1 - p_l)$ of all rates are multiplied by one factor; a little
noise costs in proportion to them. Which layer has more of it is for their slopes to say.
:mod:`lbdrop.rules.balanced` has the same costs and gaps, and no slopes.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["AT_LEAST", "AT_MOST", "FEW", "STRIDE", "beyond", "correction", "cost_and_taken", "sums_of"]

# Of what over-fitting takes, the share that noise costs at least, and at most: more than all of it cannot pay.
AT_LEAST, AT_MOST = 1 / 2, 1.0
# By what factor the odds may change in one look, as a logarithm: what is far away is not known well.
STRIDE = math.log(2)
# Of so many looks, where the oldest count a little less, the spread is not known well enough to begin by it.
FEW = 4.0
Sums = Float[Tensor, "6"]


def sums_of(
    plain: Float[Tensor, "batch"],
    noisy: Float[Tensor, "batch"],
    held_out: Float[Tensor, "other"],
    odds: Float[Tensor, ""],
) -> Sums:
    """What one look adds: a one, the cost, the gap, their squares, and the odds. Sums of several processes add up."""
    trained = plain.double().mean()
    cost, gap = noisy.double().mean() - trained, held_out.double().mean() - trained
    return torch.stack([torch.ones_like(cost), cost, gap, cost**2, gap**2, odds.to(cost)])


def correction(
    sums: Sums, odds: Float[Tensor, ""], shift: tuple[Tensor, Tensor], distinct: float = math.inf
) -> Float[Tensor, ""]:
    """The logarithm of the factor for all odds, ``odds`` in all by now; 0 where noise costs about what it should.

    Args:
        sums: of the latest looks.
        odds: the sum of the odds to drop.
        shift: by how much held-out examples are harder from the beginning, and the variance of that.
        distinct: how many held-out batches differ: to see them again tells nothing new.
    """
    (cost, cost_error), (taken, error) = cost_and_taken(sums, odds, shift, distinct)
    least, most = AT_LEAST * (taken - error), AT_MOST * (taken.clamp(min=0) + error)
    up, down = (least / (cost + cost_error)).log(), (most / (cost - cost_error)).log()
    # Comparisons with what is not a number, as after no look, are false.
    too_little, too_much = (up > 0) & (cost + cost_error > 0), (down < 0) & (cost > cost_error)
    return torch.where(too_little, up, torch.where(too_much, down, 0.0)).clamp(-STRIDE, STRIDE)


def beyond(
    sums: Sums, odds: Float[Tensor, ""], shift: tuple[Tensor, Tensor], distinct: float = math.inf
) -> tuple[Tensor, Tensor]:
    """Whether noise of these odds surely costs less than half of what over-fitting takes; how many times as much that is."""
    (cost, cost_error), (taken, error) = cost_and_taken(sums, odds, shift, distinct)
    sure = (sums[0] > FEW) & (AT_LEAST * (taken - 2 * error) > cost + cost_error)
    return sure, (taken - error) / (cost + cost_error).clamp(min=torch.finfo(cost.dtype).tiny)


def cost_and_taken(
    sums: Sums, odds: Float[Tensor, ""], shift: tuple[Tensor, Tensor], distinct: float = math.inf
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Each with its standard error."""
    count, (cost, gap, cost_2, gap_2, then) = sums[0], sums[1:] / sums[0]
    cost_error = ((cost_2 - cost**2).clamp(min=0) / count).sqrt()
    variance = (gap_2 - gap**2).clamp(min=0) / count.clamp(max=distinct)
    by = odds.to(cost) / then  # the noise has become more, or less, since these looks
    return (cost * by, cost_error * by), (gap - shift[0], (variance + shift[1]).sqrt())
