"""Who competes: fixed rates, the rivals, and learned rates under every rule for learning them.

Each contestant is the same network with other dropouts, or the same dropouts under another rule. Learned rates start at .3,
balanced and self-tuned ones where their rule begins, unless their name says otherwise. What follows held-out data follows the
validation examples that the grid is chosen on; these two then train on them too, as a fixed rate that is retrained does.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

import lbdrop
from experiments.rates.tasks import Data, Pair, Task
from experiments.rival_rules.mask_prior import MaskPrior
from experiments.rival_rules.one_step import OneStep
from experiments.rival_rules.self_tuning import SelfTuning
from lbdrop import Balanced, Bound, Objective
from lbdrop.errors import DropoutError
from lbdrop.rules.balanced import CONSTANTS
from lbdrop.sites.convert import Per, Scheme

__all__ = ["CONTESTANTS", "GIVING_BACK", "GRID", "STARTS", "Batches", "Contestant", "chosen"]

GRID = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
START = 0.3
STARTS = (0.05, 0.3, 0.7)
RATE_LR = 0.01
Rules = Literal["plain", "loss", "kl", "prior", "one-step", "self-tuning", "balanced"]
GIVING_BACK: dict[str, type[SelfTuning | Balanced]] = {"self-tuning": SelfTuning, "balanced": Balanced}
"""The rules that follow held-out data and then train on them."""
LossOf = Callable[..., Tensor]


@dataclass(frozen=True)
class Contestant:
    """What one line of a task's table does differently."""

    name: str
    label: str
    scheme: Scheme | None
    """The dropouts in place of the network's; ``None`` trains it as it is, at rate 0."""
    rule: Rules = "plain"
    per: Per = "layer"
    start: float | None = START
    """The fixed rate, or the one a learned rate starts from; ``None`` where the rule finds it."""
    estimator: str = "double-cv-4"
    only_with_starts: bool = False
    """Runs on the tasks that compare starts alone."""
    retrained: bool = False
    """Trains on the validation examples too, from the beginning: the last run of a grid search that wastes no data."""

    @property
    def fixed(self) -> bool:
        return self.scheme in (None, "mc")

    @property
    def in_grid(self) -> bool:
        """Whether validation may choose it."""
        return self.fixed and not self.retrained

    @property
    def rate(self) -> float:
        """What the network is written with: the rate of a fixed contestant, of no matter where the rule finds its own."""
        return 0.0 if self.scheme is None else START if self.start is None else self.start

    @property
    def same_run(self) -> tuple[object, ...]:
        """What tells its runs from others': a rule that is made to start where it would is the rule itself."""
        begins = CONSTANTS.start if self.rule == "balanced" and self.start is None else self.start
        return self.scheme, self.rule, self.per, begins, self.estimator, self.retrained

    def model(self, task: Task, data: Data, device: torch.device | str = "cpu") -> nn.Module:
        """The task's network, converted; the same weights for every contestant of a seed."""
        network = task.network(data, self.rate).to(device)
        if self.scheme is None:
            return network
        example = data.train[0][:2] if self.per == "unit" else None
        with torch.random.fork_rng():
            return lbdrop.convert(
                network, scheme=self.scheme, rate=self.rate, per=self.per, example=example, verbose=False
            )

    def objective(self, model: nn.Module, task: Task, data: Data, steps: int, generator: torch.Generator) -> LossOf:
        """What is called as ``objective(losses, *batch)`` in each of ``steps`` steps. Made before the optimiser."""
        examples, pieces = len(data.train[0]), task.of.pieces(data.train[1])
        if self.rule == "plain":
            return lambda losses, *batch: losses(model, *batch).mean()
        held_out = Batches(data.validation, task.batch, generator)
        if self.rule == "one-step":
            return OneStep(model, held_out)
        if self.rule in GIVING_BACK:
            back = examples if task.of.gives_back else None
            return Objective(
                model, GIVING_BACK[self.rule](model, held_out, steps=steps, examples=back, start=self.start)
            )
        estimator = self.estimator if self.scheme == "learned" else None
        if self.rule == "prior":
            return Objective(model, MaskPrior(task.of.masks_that_matter(data.train[1])), estimator=estimator)
        rule = Bound(model, examples, weight=float(self.rule == "kl") / pieces)
        return Objective(model, rule, estimator=estimator)


class Batches:
    """Examples in batches, in a new order every time they are gone through; a last one that is short is left out."""

    def __init__(self, examples: Pair, size: int, generator: torch.Generator):
        self.examples, self.size, self.generator = examples, min(size, len(examples[0])), generator

    def __len__(self) -> int:
        return len(self.examples[0]) // self.size

    def __iter__(self) -> Iterator[Pair]:
        # Drawn on the CPU, so that a seed has the same batches on every device.
        order = torch.randperm(len(self.examples[0]), generator=self.generator).to(self.examples[0].device)
        for rows in order.split(self.size)[: len(self)]:
            # By index_select: indexing finds the place of every single number, and takes five times as long.
            yield self.examples[0].index_select(0, rows), self.examples[1].index_select(0, rows)


def _all() -> Iterable[Contestant]:
    yield Contestant("none", "no dropout", None)
    for rate in GRID:
        yield Contestant(f"fixed-{rate:g}", f"fixed {rate:g}", "mc", start=rate)
    yield Contestant("concrete", "Concrete, per layer", "concrete", "kl")
    yield Contestant("gaussian", "Gaussian, per layer", "gaussian", "kl")
    rules: dict[Rules, str] = {
        "loss": "training loss alone",
        "kl": "the paper's KL",
        "prior": "Bernoulli prior on masks",
        "one-step": "held-out, one step ahead",
    }
    for rule, label in rules.items():
        yield Contestant(f"{rule}-layer", f"{label}, per layer", "learned", rule)
        yield Contestant(f"{rule}-unit", f"{label}, per unit", "learned", rule, per="unit")
    yield Contestant("kl-layer-arm", "the paper's KL by ARM, per layer", "learned", "kl", estimator="arm")
    following: dict[str, tuple[Rules, str]] = {
        "tuned": ("self-tuning", "self-tuning"), "balanced": ("balanced", "balanced noise"),
    }  # fmt: skip
    for name, (rule, label) in following.items():
        together = ", which move together" if rule == "self-tuning" else ""
        yield Contestant(f"{name}-layer", f"{label}, per layer", "learned", rule, start=None)
        yield Contestant(f"{name}-unit", f"{label}, per unit{together}", "learned", rule, per="unit", start=None)
        yield Contestant(f"{name}-model", f"{label}, one rate", "learned", rule, per="model", start=None)
        for start in STARTS:
            yield Contestant(
                f"{name}-layer-{start:g}", f"{label}, per layer, from {start:g}", "learned", rule, start=start,
                only_with_starts=True,
            )  # fmt: skip
    yield Contestant("none-retrained", "no dropout, retrained", None, retrained=True)
    for rate in GRID:
        yield Contestant(f"fixed-{rate:g}-retrained", f"fixed {rate:g}, retrained", "mc", start=rate, retrained=True)


CONTESTANTS: dict[str, Contestant] = {each.name: each for each in _all()}


def chosen(name: str, task: Task) -> list[Contestant]:
    """A contestant, several with commas, ``grid`` for the fixed rates, ``rules`` for all but those that give held-out data
    back, or ``all`` of those that need no other's result, but for self-tuning's starts."""
    if name == "all":
        # Of starts the default's alone: self-tuning's, the default before, are run where they are named.
        starts = "balanced" if task.starts else None
        return [e for e in CONTESTANTS.values() if not e.retrained and (not e.only_with_starts or e.rule == starts)]
    found = []
    for each in (part.strip() for part in name.split(",")):
        if each == "grid":
            found += [one for one in CONTESTANTS.values() if one.in_grid]
        elif each == "rules":
            found += [one for one in CONTESTANTS.values() if one.scheme == "learned" and one.rule not in GIVING_BACK]
        elif each in CONTESTANTS:
            if CONTESTANTS[each].retrained and not task.of.gives_back:
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
