"""What a budget buys: from how many masks rates learn, and in what share of the steps.

One forward pass is counted, operation by operation, and with it how much of it lies behind the first dropout. Where that is
little, all masks of an estimator fit into the budget in every step. Elsewhere most steps are plain: weights train through one
mask. In a share of them, chosen by chance, rates learn as well, through three. Such a step stands for 1 / share steps, so that
the gradient of the rates is unbiased, whatever the order of the data.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from lbdrop._torch import OperationMode, tree_flatten
from lbdrop.dropout import NoiseLayer
from lbdrop.estimators import Estimator, get
from lbdrop.guards.compiled import as_written
from lbdrop.passes.drawer import PlainMasks
from lbdrop.sources import use_in

__all__ = ["DEFAULT_BUDGET", "Pass", "Plan", "count_pass", "plan_for"]

DEFAULT_BUDGET = 1.25
"""In plain steps. A quarter for the rates is hardly felt; the paper's estimator takes a whole further step."""
# In floating point operations of a matrix product, which is what takes the time of large models.
ELEMENT = 24.0
"""What it costs to write one element of any other operation."""
CALLS = {"cpu": 1e5}
"""What it costs to call an operation, on a kind of device."""
CALLS_ELSEWHERE = 1e8
# An estimator's own work at each dropout, for each of its masks: so many elements, and, for all of them, so many calls.
ESTIMATOR_ELEMENTS, ESTIMATOR_CALLS = 24, 100
ANYWAY = 0.05
"""What a step takes whether rates learn in it or not, in plain steps: the KL, and the checks."""
FURTHER_MASK = 1.25
"""What a further mask takes, in units of what lies behind the first dropout: all activations are larger, or kept longer."""
MIN_SHARE = 1 / 16
"""Rates learn in this share of the steps at least, also of models so small that calls take all of their time."""
MASKS, THINNED_MASKS = (8, 4, 2), 3


class Plan(NamedTuple):
    """How a step is run: the estimator, and in what share of the steps rates learn."""

    estimator: Estimator
    share: float


@dataclass
class Pass:
    """What one forward pass costs, in all and behind the first dropout, and how many uses and elements of masks it has."""

    total: float = 0.0
    behind: float = 0.0
    calls_behind: float = 0.0
    """Of what lies behind, the part that calls take: masks that run together share it."""
    uses: int = 0
    elements: int = 0


def plan_for(found: Pass, budget: float, calls: float) -> Plan:
    """The most masks for a budget, in units of a plain step, whose backward pass costs twice its forward pass."""
    left = max(0.0, budget - 1 - ANYWAY) * 3 * found.total

    def price(masks: int) -> float:
        own = masks * found.elements * ESTIMATOR_ELEMENTS * ELEMENT + found.uses * ESTIMATOR_CALLS * calls
        return FURTHER_MASK * 3 * (masks - 1) * found.behind + own

    for masks in MASKS:
        if price(masks) <= left:
            return Plan(get(f"double-cv-{masks}"), 1.0)
    return Plan(get(f"double-cv-{THINNED_MASKS}"), max(MIN_SHARE, left / price(THINNED_MASKS)))


def count_pass(function: Callable[[], object], layers: Collection[NoiseLayer]) -> Pass:
    """Count one forward pass under masks."""
    found = Pass()
    counter = _Counter(found, calls_on(next(iter(layers)).logit.device))
    with torch.no_grad(), use_in(layers, _Counted(counter)), as_written(), counter:
        function()
    return found


def calls_on(device: torch.device) -> float:
    return CALLS.get(device.type, CALLS_ELSEWHERE)


class _Counted:
    """Gives layers masks and notes where the first is."""

    def __init__(self, counter: "_Counter"):
        self.counter = counter

    def mask(self, layer: NoiseLayer, x: Tensor) -> Tensor:
        own = PlainMasks(torch.Generator(x.device))  # other threads may draw from the global state meanwhile
        mask = own.draw(layer, layer.mask_shape(x), x)[0]
        self.counter.found.uses += 1
        self.counter.found.elements += mask.numel()
        return mask


class _Counter(OperationMode):
    """Adds up what every operation costs."""

    def __init__(self, found: Pass, call: float):
        super().__init__()
        self.found, self.call = found, call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        cost = self.call + self._cost(func, args, kwargs or {}, output)
        self.found.total += cost
        if self.found.uses:
            self.found.behind += cost
            self.found.calls_behind += self.call
        return output

    @staticmethod
    def _cost(func: Any, args: Any, kwargs: Any, output: Any) -> float:
        if func.is_view:
            return 0.0
        if formula := flop_registry.get(func._overloadpacket):
            return float(formula(*args, **kwargs, out_val=output))
        written = sum(t.numel() for t in tree_flatten(output)[0] if isinstance(t, Tensor))
        if any(kind in func.__name__ for kind in ("rnn", "lstm", "gru")):
            # A recurrent kernel multiplies every step of its first argument by all of its weights.
            tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
            steps = prod(tensors[0].shape[:-1])
            return 2.0 * steps * sum(t.numel() for t in tensors[1:] if t.dim() <= 2)
        return ELEMENT * written
