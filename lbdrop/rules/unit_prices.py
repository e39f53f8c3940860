r"""What the noise of each unit costs beside that of the others of its layer, and the odds that follow.

A unit's mask has mean $q$ and variance $q^2 o$, where $o$ are the odds to drop it. To second order its noise costs $k_u o_u$;
where the loss is bent as the squares of its slopes are, as that of Gauss and Newton is,

$$ k_u = \tfrac12\, \mathrm{mean}_i\, \Big(q\,\frac{\partial \ell_i}{\partial z_{iu}}\Big)^2 . $$

One backward pass has the slopes of all units, where to try each one's noise alone would take a pass for each. A layer as a
whole goes by tries (:mod:`lbdrop.rules.balanced`) and has odds $o$; its units differ as layers do, and together cost what they
would if all had its odds:

$$ o_u \propto k_u^{-1/2}, \qquad \sum_u k_u o_u = o \sum_u k_u . $$

In the first steps, where noise is the same whatever it costs, they have the layer's odds all.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

if TYPE_CHECKING:  # layers hold prices
    from lbdrop.dropout import NoiseLayer
    from lbdrop.rules.bound import Evaluation

__all__ = ["UnitPrices", "priced"]

# How much less noise a dearer unit has.
GAMMA = 0.5
# A unit is taken for no cheaper than this share of its layer's mean, or those that are nearly dead would run away.
CHEAPEST = 0.01


class UnitPrices(nn.Module):
    """Of one rate's units: sums over the latest looks, and the layer's own logit. Not moved or rounded with the model.

    Args:
        units: how many there are.
        level: the logit of the layer as a whole.
    """

    def __init__(self, units: int, level: float = 0.0):
        super().__init__()
        self.level: Float[Tensor, ""] = torch.tensor(level, dtype=torch.float64)
        self.sums: Float[Tensor, "units"] = torch.zeros(units, dtype=torch.float64)

    @classmethod
    def of(cls, logit: Tensor) -> "UnitPrices":
        """Of such units, with the mean of their odds for the layer's."""
        return cls(logit.numel(), float(-(-logit.detach().double()).exp().mean().log()))

    def add(self, prices: Float[Tensor, "units"], forget: float, finite: Tensor) -> None:
        """What one look has found."""
        self.sums = torch.where(finite, prices + forget * self.sums, self.sums)

    def on(self, device: torch.device) -> "UnitPrices":
        """The same, where the layer's logit is by now."""
        self.level, self.sums = self.level.to(device), self.sums.to(device)
        return self

    def shares(self) -> Float[Tensor, "units"]:
        """Each unit's odds in those of the layer."""
        share = torch.maximum(self.sums, CHEAPEST * self.sums.mean()) ** -GAMMA
        share = share * self.sums.sum() / (self.sums * share).sum()
        return torch.where(share.isfinite(), share, 1.0)  # where no unit has a price

    def get_extra_state(self) -> Tensor:
        return torch.cat([self.level[None], self.sums])

    def set_extra_state(self, state: Tensor) -> None:
        self.level, self.sums = state[0].clone(), state[1:].clone()


def priced(
    evaluation: "Evaluation", logits: Sequence[Tensor]
) -> tuple[Float[Tensor, "batch"], list[Float[Tensor, "units"]]]:
    """Each example's loss without dropout, as ``trial.plain``, and what a unit of each of these rates costs."""
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


class _Means:
    """As a drawer: every mask is its mean, of some rates with a gradient."""

    def __init__(self, logits: Sequence[Tensor]):
        self.logits = {id(logit) for logit in logits}
        self.generator: torch.Generator | None = None
        self.begin()

    def begin(self) -> None:
        self.drawn: list[tuple[NoiseLayer, Tensor]] = []

    def draw(self, layer: "NoiseLayer", shape: tuple[int, ...], x: Tensor) -> Tensor:
        mask = layer.spread(layer.keep.detach(), len(shape)).to(x.dtype).expand(1, *shape)
        if id(layer.logit) in self.logits:
            mask = mask.clone().requires_grad_()
            self.drawn.append((layer, mask))
        return mask

    def seen(self, use: int, x: Tensor) -> None:
        pass
