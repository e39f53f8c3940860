"""How a contestant is made: its network and its objective.

Each contestant is the same network with other dropouts, or the same dropouts under another rule. Learned rates start at .3,
balanced and self-tuned ones where their rule begins, unless their name says otherwise. What follows held-out data follows the
validation examples that the grid is chosen on; these two then train on them too, as a fixed rate that is retrained does.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import lbdrop
from experiments.rates.batches import Batches
from experiments.rates.record import CONTESTANTS, Contestant
from experiments.rates.tasks import Data, Task
from experiments.rival_rules.mask_prior import MaskPrior
from experiments.rival_rules.one_step import OneStep
from experiments.rival_rules.self_tuning import SelfTuning
from lbdrop import Balanced, Bound, Objective
from lbdrop.errors import DropoutError

__all__ = ["RATE_LR", "RELEASING", "build_network", "build_objective", "chosen"]

RATE_LR = 0.01
RELEASING: dict[str, type[SelfTuning | Balanced]] = {"self-tuning": SelfTuning, "balanced": Balanced}
"""The rules that follow held-out data and then train on them."""
LossOf = Callable[..., Tensor]


def build_network(contestant: Contestant, task: Task, data: Data, device: torch.device | str = "cpu") -> nn.Module:
    """The task's network, converted; the same weights for every contestant of a seed."""
    network = task.network(data, contestant.rate).to(device)
    if contestant.scheme is None:
        return network
    example = data.train[0][:2] if contestant.per == "unit" else None
    with torch.random.fork_rng():
        return lbdrop.convert(
            network, scheme=contestant.scheme, rate=contestant.rate, per=contestant.per, example=example, verbose=False
        )


def build_objective(
    contestant: Contestant, network: nn.Module, task: Task, data: Data, steps: int, generator: torch.Generator
) -> LossOf:
    """What is called as ``objective(losses, *batch)`` in each of ``steps`` steps. Made before the optimiser."""
    examples, pieces = len(data.train[0]), task.of.pieces(data.train[1])
    if contestant.rule == "plain":
        return lambda losses, *batch: losses(network, *batch).mean()
    held_out = Batches(data.validation, task.batch, generator)
    if contestant.rule == "one-step":
        return OneStep(network, held_out)
    if contestant.rule in RELEASING:
        released = examples if task.of.releases else None
        return Objective(
            network,
            RELEASING[contestant.rule](network, held_out, steps=steps, examples=released, start=contestant.start),
        )
    estimator = contestant.estimator if contestant.scheme == "learned" else None
    if contestant.rule == "prior":
        return Objective(network, MaskPrior(task.of.masks_that_matter(data.train[1])), estimator=estimator)
    rule = Bound(network, examples, weight=float(contestant.rule == "kl") / pieces)
    return Objective(network, rule, estimator=estimator)


def chosen(name: str, task: Task) -> list[Contestant]:
    """A contestant, several with commas, ``grid`` for the fixed rates, ``rules`` for all but those that release held-out
    data, or ``all`` of those that need no other's result, but for self-tuning's starts."""
    if name == "all":
        # Of starts the default's alone: self-tuning's, the default before, are run where they are named.
        starts = "balanced" if task.starts else None
        return [e for e in CONTESTANTS.values() if not e.retrained and (not e.only_with_starts or e.rule == starts)]
    found = []
    for each in (part.strip() for part in name.split(",")):
        if each == "grid":
            found += [one for one in CONTESTANTS.values() if one.in_grid]
        elif each == "rules":
            found += [one for one in CONTESTANTS.values() if one.scheme == "learned" and one.rule not in RELEASING]
        elif each in CONTESTANTS:
            if CONTESTANTS[each].retrained and not task.of.releases:
                raise DropoutError(
                    f"contestant: {task.name} has held-out data of another form than training's, so that none is trained on"
                    f" them, got {each!r}; leave it out"
                )
            found.append(CONTESTANTS[each])
        else:
            raise DropoutError(
                f"contestant: want all, grid, rules, retrained or among {', '.join(CONTESTANTS)}, got {each!r}"
            )
    return found
