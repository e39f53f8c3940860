"""Which rule an objective has, from its arguments; an argument that would change nothing is an error."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from lbdrop.dropout import learned_layers, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.guards import modes, processes
from lbdrop.guards.optimizers import OptimizerWatch
from lbdrop.rules.balanced import Balanced
from lbdrop.rules.bound import Bound
from lbdrop.rules.rule import HeldOutRule, Rule

__all__ = ["default_rule", "look_around", "refuse_unused_arguments"]


def default_rule(
    model: nn.Module,
    held_out: Iterable[Any] | None,
    steps: int | None,
    examples: int | None,
    masks: int,
    generator: torch.Generator | None,
) -> Rule:
    """Balanced noise where there is held-out data, the paper's bound where there is none."""
    if held_out is not None:
        if steps is None:
            raise DropoutError(
                "steps: want how many training steps the run has, as in Objective(model, held_out=loader,"
                " steps=epochs * len(train_loader)); rates are frozen after a share of them"
            )
        return Balanced(model, held_out, steps=steps, examples=examples, masks=masks, generator=generator)
    if examples is None:
        raise DropoutError(
            "examples: want the size of the training set, as in Objective(model, examples=50_000), or data for the"
            " rates to follow, as in Objective(model, held_out=loader, steps=10_000)"
        )
    return Bound(model, examples)


def refuse_unused_arguments(model: nn.Module, rule: Rule | None, **arguments: Any) -> None:
    """An error about an argument that would change nothing; ``None`` stands for one that was not given."""
    given = {name for name, value in arguments.items() if value is not None}
    if (masks := arguments.get("masks")) is not None and masks < 1:
        raise DropoutError(f"masks: want at least 1, got {masks}")
    if rule is not None and (unused := given & {"held_out", "steps", "examples"}):
        name = sorted(unused)[0]
        why = "a rule of its own has its own held-out data" if name == "held_out" else f"give {name} to the rule"
        raise DropoutError(f"rule and {name}: want one of them, got both; {why}")
    if "steps" in given and "held_out" not in given:
        raise DropoutError("steps: want them with held_out alone, got no held_out; the bound needs no number of steps")
    if (budget := arguments.get("budget")) is not None and not 1 < budget < math.inf:
        raise DropoutError(
            f"budget: want what a step may cost in plain steps, above 1, as 1.25 by default or 4 for little noise, got {budget}"
        )
    if {"budget", "estimator"} <= given:
        raise DropoutError(
            "budget and estimator: want one of them, got both; an estimator by name draws its masks in every step"
        )
    follows = "held_out" in given or isinstance(rule, HeldOutRule)
    if follows and (unused := given & {"budget", "estimator", "coupled"}):
        raise DropoutError(
            f"{sorted(unused)[0]}: want it where rates learn by an estimator, got a rule that moves rates by held-out data;"
            " leave it out"
        )
    if isinstance(rule, HeldOutRule) and (unused := given & {"masks", "generator"}):
        raise DropoutError(f"{sorted(unused)[0]}: want it given to the rule, got it beside one; leave it out here")
    learned = bool(learned_layers(model))
    if "masks" in given and learned and not follows:
        raise DropoutError(
            "masks: want it where no rate learns by an estimator, got learned dropouts; say estimator='rloo-8'"
        )
    if "coupled" in given and not learned:
        raise DropoutError("coupled: want it with learned Bernoulli dropouts, got a model without; leave it out")
    if not learned and (unused := given & {"budget", "estimator"}):
        raise DropoutError(
            f"{sorted(unused)[0]}: want it with learned Bernoulli dropouts, got a model without; leave it out"
        )


def look_around(model: nn.Module, rule: Rule, shared: bool) -> OptimizerWatch:
    """Before the first step: warnings about processes and modes; the optimisers are watched, as they make their steps."""
    if not shared:
        processes.warn_if_alone()
    modes.warn_of_eval_mode(model)
    learns = {} if isinstance(rule, HeldOutRule) else noise_layers(model)
    logits = {name: each.logit for name, each in learns.items() if isinstance(each.logit, nn.Parameter)}
    return OptimizerWatch(model, {name: logit for name, logit in logits.items() if logit.requires_grad})
