"""What balanced noise warns of, each once: a run too short to measure, or too long, rates at the ceiling, a loss that rises."""

import math
import warnings
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.dropout import NoiseLayer, logit_of
from lbdrop.rules.constants import CONSTANTS
from lbdrop.rules.measurements import Measurements

__all__ = ["Rise", "warn_of_ceiling", "warn_of_other_steps", "warn_of_short_run", "warn_of_steps"]

LEVEL = 6
"""Of the caller of ``objective(...)``."""
Z_RISE, TIMES = 2.0, 2.0
"""By how many standard errors the held-out loss has to rise; by what factor odds are above the start where rates have risen."""


def warn_of_short_run(first_epoch: int | None, frozen_after: int) -> None:
    warnings.warn(
        f"balanced rates: want a first epoch that is over before rates are frozen, got one of {first_epoch} steps, frozen after"
        f" {frozen_after}: in so short a run nothing can be known of over-fitting, so dropout is off, or at the rate given as"
        " start=, and held-out examples join training at once; train for three epochs or more to learn rates",
        stacklevel=LEVEL,
    )


def warn_of_steps(steps: int) -> None:
    warnings.warn(
        f"balanced rates: want {steps} calls of the objective, as steps= said, got one more: rates were frozen for a shorter"
        " run; give steps=epochs * len(train_loader), which counts every call, also those that accumulate gradients",
        stacklevel=LEVEL,
    )


def warn_of_other_steps(saved: int, steps: int) -> None:
    warnings.warn(
        f"balanced rates: want steps={saved}, as the saved run had, got {steps}: rates are frozen when the new number says,"
        " and were measured for the other; give the same steps to go on as if the run had not been stopped",
        stacklevel=4,
    )


def warn_of_ceiling(layers: Mapping[str, NoiseLayer], levels: Mapping[int, Tensor]) -> None:
    """Of layers whose rate rests at the largest there is; ``levels`` by the identity of the logit."""
    highest = logit_of(CONSTANTS.max_rate) + CONSTANTS.at_ceiling
    there = {key for key, level in levels.items() if bool((level < highest).all())}
    names = [name for name, layer in layers.items() if id(layer.logit) in there]
    if not names:
        return
    shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    warnings.warn(
        f"balanced rates: {shown} frozen at {CONSTANTS.max_rate:g}, the highest rate there is: the generalisation gap asks for"
        " more noise than that; see that held-out data are like training's, or take a smaller network or fewer steps",
        stacklevel=LEVEL,
    )


class Rise:
    """The held-out loss when rates had risen first, and its standard error; infinite until then."""

    def __init__(self) -> None:
        self.before: Float[Tensor, "2"] = torch.full((2,), math.inf, dtype=torch.float64)

    def note(self, measurements: Measurements, odds: Float[Tensor, "rates"]) -> None:
        """After each measurement; makes no GPU wait."""
        here = torch.stack([*measurements.held_out])
        risen = odds.mean().log() > math.log(TIMES) - logit_of(CONSTANTS.start)
        self.before = self.before.to(here)
        self.before = torch.where(risen & measurements.enough & self.before[0].isinf(), here, self.before)

    def warn(self, measurements: Measurements) -> None:
        """Where the held-out loss has risen since; waits for the device."""
        before, error = self.before.tolist()
        now, error_now = (float(each) for each in measurements.held_out)
        if now - before > Z_RISE * math.hypot(error, error_now):
            warnings.warn(
                f"balanced rates: held-out loss has risen from {before:.3g} to {now:.3g} since rates rose: noise does not hold"
                " over-fitting; train for fewer epochs, with a lower learning rate, or compare with a fixed rate",
                stacklevel=LEVEL,
            )
