"""Which rule an objective has, from its arguments; each that is wrong, or would change nothing, is a line of one error."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from lbdrop._torch import is_sharded
from lbdrop.dropout import learned_layers, noise_layers
from lbdrop.errors import DropoutError, refuse
from lbdrop.estimators import get
from lbdrop.guards import modes, processes
from lbdrop.guards.optimizers import OptimizerWatch
from lbdrop.rules.balanced import Balanced
from lbdrop.rules.bound import Bound
from lbdrop.rules.rule import HeldOutRule, Rule

__all__ = ["check_arguments", "default_rule", "look_around"]

COUNTS = {
    "examples": "the size of the training set",
    "steps": "how many training steps the run has",
    "masks": "a number of masks",
}
"""The arguments that are whole numbers, and what they are."""


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
        assert steps is not None
        count = None if examples is None else int(examples)  # numpy's numbers are as good
        return Balanced(model, held_out, steps=int(steps), examples=count, masks=masks, generator=generator)
    assert examples is not None
    return Bound(model, int(examples))


def check_arguments(model: nn.Module, rule: Rule | None, **arguments: Any) -> None:
    """One error with a line for each argument that is wrong, missing or would change nothing; ``None`` is one not given."""
    given = {name: value for name, value in arguments.items() if value is not None}
    refuse((*_wrong_values(given), *_missing(rule, given), *_unused(model, rule, set(given))))


def _wrong_values(given: Mapping[str, Any]) -> Iterator[str]:
    for name, want in COUNTS.items():
        value = given.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:  # pyright: ignore[reportOperatorIssue]
            yield f"{name}: want {want}, at least 1, got {value if isinstance(value, float | int) else type(value).__name__}"
    budget = given.get("budget", 2.0)
    if not isinstance(budget, float | int) or not 1 < budget < math.inf:
        want = "what a step may cost in plain steps, above 1, as 1.25 by default or 4 for little noise"
        yield f"budget: want {want}, got {budget}"
    if "estimator" in given:
        try:
            get(given["estimator"])
        except DropoutError as error:
            yield str(error)
    if given.get("unreached", "warn") not in ("error", "warn"):
        yield f"unreached: want 'error' or 'warn', got {given['unreached']!r}"
    held_out, got = given.get("held_out"), None
    if isinstance(held_out, Dataset) and not isinstance(held_out, IterableDataset):
        got = f"the examples of a {type(held_out).__name__}; wrap it: DataLoader(held_out, batch_size=64, shuffle=True)"
    elif isinstance(held_out, tuple) and all(isinstance(each, Tensor) for each in held_out):
        got = "a tuple of tensors; put a single batch in a list: [(x, y)]"
    if got:
        yield f"held_out: want batches, as a DataLoader gives them, got {got}"


def _missing(rule: Rule | None, given: Mapping[str, Any]) -> Iterator[str]:
    if rule is not None:
        return
    if "held_out" in given and "steps" not in given:
        yield (
            "steps: want how many training steps the run has, as in Objective(model, held_out=loader,"
            " steps=epochs * len(train_loader)); rates are frozen after a share of them"
        )
    if not {"held_out", "examples"} & set(given):
        yield (
            "examples: want the size of the training set, as in Objective(model, examples=50_000), or data for the"
            " rates to follow, as in Objective(model, held_out=loader, steps=10_000)"
        )


def _unused(model: nn.Module, rule: Rule | None, given: Set[str]) -> Iterator[str]:
    if rule is not None:
        for name in sorted(given & {"held_out", "steps", "examples"}):
            why = "a rule of its own has its own held-out data" if name == "held_out" else f"give {name} to the rule"
            yield f"rule and {name}: want one of them, got both; {why}"
    elif "steps" in given and "held_out" not in given:
        yield "steps: want them with held_out alone, got no held_out; the bound needs no number of steps"
    if {"budget", "estimator"} <= given:
        yield "budget and estimator: want one of them, got both; an estimator by name draws its masks in every step"
    if isinstance(rule, HeldOutRule):
        for name in sorted(given & {"masks", "generator"}):
            yield f"{name}: want it given to the rule, got it beside one; leave it out here"
    follows, learned = "held_out" in given or isinstance(rule, HeldOutRule), bool(learned_layers(model))
    for name in sorted(given & {"budget", "estimator", "coupled"}):
        if follows:
            yield (
                f"{name}: want it where rates learn by an estimator, got a rule that moves rates by held-out data;"
                " leave it out"
            )
        elif not learned:
            yield f"{name}: want it with learned Bernoulli dropouts, got a model without; leave it out"
    if "masks" in given and learned and not follows:
        yield "masks: want it where no rate learns by an estimator, got learned dropouts; say estimator='rloo-8'"


def look_around(model: nn.Module, rule: Rule, shared: bool) -> OptimizerWatch:
    """Before the first step: warnings about processes and modes; the optimisers are watched, as they make their steps."""
    if not shared:
        processes.warn_if_alone()
    if is_sharded(model) and not isinstance(rule, HeldOutRule):
        raise DropoutError(
            "fully_shard: want rates that follow held-out data, whose model may be divided, got a rule whose rates have"
            " gradients, which nothing would average; give held_out and steps, or wrap the model by DistributedDataParallel"
        )
    modes.warn_of_eval_mode(model)
    learns = {} if isinstance(rule, HeldOutRule) else noise_layers(model)
    logits = {name: each.logit for name, each in learns.items() if isinstance(each.logit, nn.Parameter)}
    learning = {name: logit for name, logit in logits.items() if logit.requires_grad}
    if logits and not learning:
        warnings.warn(
            "objective: want rates that learn, got logits that all require no gradient, as after a run with held-out data,"
            " or under adapters of peft that came later: rates stay as they are; call requires_grad_(True) on them first to"
            " learn them anew",
            stacklevel=4,
        )
    return OptimizerWatch(model, learning)
