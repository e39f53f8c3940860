r"""What the noise of each unit costs beside that of the others of its layer, and the odds that follow.

A unit's mask has mean $q$ and variance $q^2 o$, where $o$ are the odds to drop it. To second order its noise costs $k_u o_u$;
where the loss has the curvature of Gauss and Newton, the squares of its slopes,

$$ k_u = \tfrac12\, \mathrm{mean}_i\, \Big(q\,\frac{\partial \ell_i}{\partial z_{iu}}\Big)^2 . $$

One backward pass has the slopes of all units; to measure each unit's noise alone would take a pass for each. A layer as a
whole is measured (:mod:`lbdrop.rules.balanced`) and has odds $o$. Its units differ as layers do, and together cost what they
would if all had its odds:

$$ o_u \propto k_u^{-1/2}, \qquad \sum_u k_u o_u = o \sum_u k_u . $$
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.dropout import NoiseLayer
from lbdrop.passes.drawer import Drawer
from lbdrop.rules.evaluation import Evaluation

__all__ = ["UnitCosts", "unit_costs"]

# The power of a unit's cost by which it has less noise.
COST_POWER = 0.5
# A unit counts as no cheaper than this share of its layer's mean, or those that are nearly dead would run away.
MIN_SHARE = 0.01


class UnitCosts:
    """Of one rate's units: sums over the latest measurements, and the logit of the layer as a whole."""

    def __init__(self, logit: Tensor):
        # The layer's odds are the mean of its units'.
        self.level: Float[Tensor, ""] = -(-logit.detach().double()).exp().mean().log()
        self.sums: Float[Tensor, "units"] = torch.zeros_like(logit, dtype=torch.float64, requires_grad=False)

    def on(self, device: torch.device) -> "UnitCosts":
        """The same, moved to where the layer's logit is by now."""
        self.level, self.sums = self.level.to(device), self.sums.to(device)
        return self

    def add(self, costs: Float[Tensor, "units"], keep: float) -> None:
        """Take in one measurement; ``keep`` is what earlier ones count by."""
        self.sums = torch.where(costs.isfinite().all(), costs + keep * self.sums, self.sums)

    def shares(self) -> Float[Tensor, "units"]:
        """Each unit's odds in those of the layer."""
        share = torch.maximum(self.sums, MIN_SHARE * self.sums.mean()) ** -COST_POWER
        share = share * self.sums.sum() / (self.sums * share).sum()
        return torch.where(share.isfinite(), share, 1.0)  # where no unit costs anything

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level, "sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.level, self.sums = state["level"].clone(), state["sums"].clone()


def unit_costs(
    evaluation: Evaluation, logits: Sequence[Tensor]
) -> tuple[Float[Tensor, "batch"], list[Float[Tensor, "units"]]]:
    """Each example's loss without noise, and what a unit of each of these rates costs."""
    means = _Means(logits)
    with torch.enable_grad():
        losses = evaluation.sampled(means, 1)[0].float()
        masks = [mask for _, mask in means.drawn]
        # None, where this batch goes around all of them.
        slopes = torch.autograd.grad(losses.sum(), masks, allow_unused=True) if masks and losses.requires_grad else ()
    found = {id(logit): torch.zeros(logit.numel(), dtype=torch.float64, device=logit.device) for logit in logits}
    for (layer, mask), slope in zip(means.drawn, slopes, strict=bool(slopes)):
        if slope is not None:
            each = (slope.double() * mask.detach().double())[0].square() / (2 * len(losses))
            found[id(layer.logit)] += each.movedim(layer.unit_dim, -1).flatten(0, -2).sum(0)
    return losses.detach(), [found[id(logit)] for logit in logits]


class _Means(Drawer):
    """As a drawer: every mask is its mean; those of some rates have a gradient."""

    def __init__(self, logits: Sequence[Tensor]):
        self.logits = {id(logit) for logit in logits}
        self.begin()

    def begin(self) -> None:
        self.drawn: list[tuple[NoiseLayer, Tensor]] = []

    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        mask = layer.spread(layer.keep.detach(), len(shape)).to(x.dtype).expand(1, *shape)
        if id(layer.logit) in self.logits:
            mask = mask.clone().requires_grad_()
            self.drawn.append((layer, mask))
        return mask
