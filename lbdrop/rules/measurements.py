r"""What balanced noise measures: how much dropout raises the training loss, and how large the generalisation gap is.

$$ c = \bar\ell_{\text{noisy}} - \bar\ell_{\text{plain}}, \qquad
   c_l = \bar\ell_{\text{noise in } l} - \bar\ell_{\text{plain}}, \qquad
   g = \bar\ell_{\text{held out}} - \bar\ell_{\text{plain}} - s, $$

where $s$ is how much harder held-out examples are before anything can have been over-fitted. Sums run over the latest
measurements, older ones count less and less. They stay on the device of the losses: no step waits for them.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.dropout import NoiseLayer
from lbdrop.passes.drawer import Drawer
from lbdrop.rules.evaluation import Evaluation

__all__ = ["MasksAt", "Mean", "Measurements", "losses_at", "means", "shift_sums", "sums_of"]

# After fewer measurements the spread is not known well enough to act on it.
MIN_MEASUREMENTS = 4.0
# By how many standard errors, of how many measurements at least, held-out data have to be harder for a shift to count.
Z_SHIFT, MIN_SHIFT_MEASUREMENTS = 4.0, 5

TENSORS = "sums", "shift_sums", "alone"
Sums = Float[Tensor, "9"]


class Mean(NamedTuple):
    """A mean and its standard error."""

    value: Tensor
    error: Tensor


class MasksAt(Drawer):
    """Draws masks at the present rates; no mask where a rate is silent.

    Args:
        silent: rates without noise: their layers run the deterministic pass.
        masks: masks to draw for each example.
        generator: draws them.
    """

    def __init__(self, silent: Sequence[Tensor] = (), masks: int = 1, generator: torch.Generator | None = None):
        self.silent, self.masks, self.generator = {id(rate) for rate in silent}, masks, generator

    @property
    def as_layers_do(self) -> bool:
        return self.generator is None and self.masks == 1

    def draws(self, layer: NoiseLayer) -> bool:
        return id(layer.logit) not in self.silent

    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        return layer.draw(self.masks, shape, x, self.generator)


def losses_at(
    evaluation: Evaluation, silent: Sequence[Tensor], generator: torch.Generator | None
) -> Float[Tensor, "batch"]:
    """Each example's loss under one mask at the present rates, without noise where a rate is silent."""
    return evaluation.sampled(MasksAt(silent, generator=generator), 1)[0].float()


def means(evaluation: Evaluation, losses: Sequence[Float[Tensor, "_"]]) -> list[Float[Tensor, ""]]:
    """The mean of each, over the examples of all processes: what one process would find."""
    sums = torch.stack([torch.stack([each.double().sum(), torch.ones_like(each).double().sum()]) for each in losses])
    total, count = evaluation.all_reduce(sums).unbind(1)
    return list(total / count)


def sums_of(trained: Tensor, noisy: Tensor, held_out: Tensor, odds: Float[Tensor, ""]) -> Sums:
    """What one measurement adds, by mean losses: a one, cost, gap, their squares, odds, plain loss, cost × odds and odds²."""
    cost, gap, odds = noisy - trained, held_out - trained, odds.to(trained)
    return torch.stack([torch.ones_like(cost), cost, gap, cost**2, gap**2, odds, trained, cost * odds, odds**2])


def shift_sums(fresh: Float[Tensor, ""], held_out: Float[Tensor, ""]) -> Float[Tensor, "3"]:
    """A one, and by how much held-out examples are harder than some that have not been trained on yet; its square."""
    harder = held_out - fresh
    return torch.stack([torch.ones_like(harder), harder, harder**2])


class Measurements:
    """Sums over the latest measurements, for a number of rates."""

    def __init__(self, rates: int):
        self.count = 0
        """How many measurements there were."""
        self.sums: Sums = torch.zeros(9, dtype=torch.float64)
        self.shift_sums: Float[Tensor, "3"] = torch.zeros(3, dtype=torch.float64)
        self.alone: Float[Tensor, "2 rates"] = torch.zeros(2, rates, dtype=torch.float64)
        """Of the noise of each rate alone: its cost, and the odds at which it was measured."""

    def add(
        self, sums: Sums, rates: list[int], alone: Float[Tensor, "2 measured"], keep: float, keep_alone: float
    ) -> None:
        """Take in one measurement and what the noise of some rates alone costs; ``keep`` is what earlier ones count by."""
        self.count += 1
        self.sums, self.shift_sums, self.alone = (t.to(sums) for t in (self.sums, self.shift_sums, self.alone))
        finite = sums.isfinite().all() & alone.isfinite().all()
        updated = self.alone.clone()
        updated[:, rates] = alone + keep_alone * updated[:, rates]
        # A measurement that is not finite would stay in the sums for ever.
        self.sums = torch.where(finite, sums + keep * self.sums, self.sums)
        self.alone = torch.where(finite, updated, self.alone)

    @property
    def plain(self) -> Float[Tensor, ""]:
        """The loss of training examples without noise."""
        return self.sums[6] / self.sums[0]

    @property
    def held_out(self) -> Mean:
        """The loss of held-out examples."""
        return Mean(self.plain + self.sums[2] / self.sums[0], self.gap().error)

    @property
    def enough(self) -> Tensor:
        return (self.sums[0] > MIN_MEASUREMENTS) & (self.count > MIN_MEASUREMENTS)

    def unit_cost(self) -> Mean:
        """What noise costs for its odds; its error is what is left where costs are in proportion to odds, which change."""
        _, cost, _, cost2, _, odds, _, product, odds2 = self.sums
        value = cost / odds
        left = (cost2 - 2 * value * product + value**2 * odds2).clamp(min=0)
        return Mean(value, left.sqrt() / odds)

    def gap(self, distinct: float = math.inf) -> Mean:
        """The generalisation gap; ``distinct`` is how many held-out batches differ: to see one again tells nothing new."""
        count, mean, square = self.sums[0], self.sums[2] / self.sums[0], self.sums[4] / self.sums[0]
        variance = (square - mean**2).clamp(min=0) / count.clamp(max=distinct)
        shift, shift_variance = self.shift()
        return Mean(mean - shift, (variance + shift_variance).sqrt())

    def shift(self) -> tuple[Tensor, Tensor]:
        """By how much held-out data are harder from the beginning, and its variance; 0 where that may be chance."""
        count, total, squares = self.shift_sums
        mean = total / count
        variance = (squares / count - mean**2).clamp(min=0) / (count - 1)
        certain = (mean > Z_SHIFT * variance.sqrt()) & (count >= MIN_SHIFT_MEASUREMENTS)
        return torch.where(certain, mean, 0.0), torch.where(certain, variance, 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count} | {name: getattr(self, name) for name in TENSORS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        for name in TENSORS:
            setattr(self, name, state[name].clone())
