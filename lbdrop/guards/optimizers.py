"""Rates in an optimiser: their groups, and whether it holds them, seen at its steps and said once where it does not."""

import warnings
import weakref
from collections.abc import Mapping
from functools import cache
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from lbdrop.dropout import noise_layers

__all__ = ["OptimizerWatch", "parameter_groups"]

LOOKS, STEPS = 20, 3
"""How many steps of whatever optimisers are looked at; after how many of those that hold weights rates count as left out."""


def parameter_groups(model: nn.Module, rate_lr: float | None = None, **options: Any) -> list[dict[str, Any]]:
    """Parameter groups, weights and rates: rates are not weights, so they get no weight decay.

    Rates that follow held-out data are moved by their rule, and have no gradient.

    Args:
        model: a model with learned dropouts.
        rate_lr: learning rate of the logits; by default the optimiser's.
        options: settings of the weights' group, such as ``lr`` or ``weight_decay``.
    """
    logits = {id(layer.logit): layer.logit for layer in noise_layers(model).values() if layer.learns}
    rates: dict[str, Any] = {"params": list(logits.values()), "weight_decay": 0.0}
    if rate_lr is not None:
        rates["lr"] = rate_lr
    return [{"params": [p for p in model.parameters() if id(p) not in logits], **options}, rates]


class OptimizerWatch:
    """Looks at the optimisers of the first few steps, also of those that hold other models' parameters, and then no more.

    Args:
        model: the model.
        logits: those that an optimiser has to step, by the names of their layers.
    """

    def __init__(self, model: nn.Module, logits: Mapping[str, nn.Parameter]):
        self.logits, rates = dict(logits), {id(logit) for logit in logits.values()}
        self.weights = {id(p) for p in model.parameters() if id(p) not in rates}
        self.held: set[int] = set()
        self.looks = self.steps = 0
        if not logits:
            return
        _watching.add(self)
        _install()

    def look(self, optimizer: Optimizer) -> bool:
        """Whether all is seen; warns of rates that have weight decay, or no optimiser."""
        self.looks += 1
        groups = [({id(p) for p in group["params"]}, group) for group in optimizer.param_groups]
        decayed = {id(logit) for logit in self.logits.values() for held, group in groups
                   if id(logit) in held - self.held and group.get("weight_decay")}  # fmt: skip
        held = set().union(*(held for held, _ in groups))
        self.held |= held
        if decayed:
            warnings.warn(
                f"optimizer: want rates without weight decay, which draws them to .5, got {self._names(decayed)} in a group"
                " that has some; make groups with lbdrop.parameter_groups(model, weight_decay=...)",
                stacklevel=4,
            )
        self.steps += bool(held & self.weights)
        missing = {id(logit) for logit in self.logits.values() if logit.requires_grad} - self.held
        if missing and self.steps >= STEPS:
            warnings.warn(
                f"optimizer: want one that holds the rates, which learn by gradients, got none with {self._names(missing)}:"
                " these stay what they are; make it after lbdrop.convert, with lbdrop.parameter_groups(model, lr=...)",
                stacklevel=4,
            )
        return not missing or self.steps >= STEPS or self.looks >= LOOKS

    def _names(self, ids: set[int]) -> str:
        names = [repr(name) for name, logit in self.logits.items() if id(logit) in ids]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


_watching: "weakref.WeakSet[OptimizerWatch]" = weakref.WeakSet()


@cache
def _install() -> None:
    """Once, and for good: torch's hooks cannot be taken away while they are called."""
    register_optimizer_step_pre_hook(lambda optimizer, *_: _look(optimizer))


def _look(optimizer: Optimizer) -> None:
    for watch in list(_watching):
        if watch.look(optimizer):
            _watching.discard(watch)
