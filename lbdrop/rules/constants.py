"""What balanced noise fixes for everybody."""

import math
from dataclasses import dataclass

__all__ = ["CONSTANTS", "Constants"]


@dataclass(frozen=True)
class Constants:
    """What the rule fixes for everybody."""

    cost_share: float = 0.5
    """The share of the generalisation gap that noise costs."""
    cost_power: float = 0.5
    """The power of a layer's unit cost by which it has less noise; 1 would make all layers cost the same."""
    start: float = 0.05
    """Where rates start, and stay at least during warm-up."""
    prior_rate: float = 0.1
    """Where rates belong as far as nothing is measured: the rate that most people take."""
    prior_width: float = 2.0
    """By how much log odds are taken to differ from that before anything is measured, as a standard deviation."""
    warm_up: float = 0.2
    """How long warm-up is, as a share of the steps until rates are frozen."""
    min_rate: float = 0.001
    max_rate: float = 0.7
    at_ceiling: float = 0.1
    """How far log odds may be below those of the largest rate, and still count as resting there."""
    off_below_rate: float = 0.02
    """Smaller rates are off when rates are frozen."""
    z_too_costly: float = 2.0
    """How many standard errors the cost has to be above the gap, at the end of warm-up, for dropout to be switched off."""
    z_gap: float = 2.0
    """How many standard errors the gap has to be above zero for noise to begin."""
    every: int = 8
    every_in_warm_up: int = 4
    """How many training steps to one measurement, at most."""
    measurements_per_run: int = 40
    """How many measurements there are at least until rates are frozen, if there are as many steps."""
    windows: int = 10
    """Earlier measurements are forgotten over this fraction of them."""
    layers_per_measurement: int = 2
    """How many layers' noise is measured alone each time: all have their turn."""
    min_cost_share: float = 0.01
    """A layer counts as no cheaper than this share of the costliest, or chance would decide."""
    max_step: float = math.log(2)
    """By what factor the odds may change at one measurement, as a logarithm."""
    shift_steps: int = 20
    """How many steps at the end of the first epoch measure how much harder held-out data are."""


CONSTANTS = Constants()
