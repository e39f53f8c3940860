"""The table of rates, declared in one place: rules and contestants, what pages show of them, and what a record holds."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from experiments.report.schema import fields, listed, mapped, maybe, number, text, whole
from lbdrop.rules.balanced import CONSTANTS
from lbdrop.sites.convert import Per, Scheme

__all__ = [
    "CONTESTANTS", "DASHES", "DOCUMENTED", "FIGURE_LINES", "GRID", "MEASURED", "OURS", "RULES", "SCHEME_COLOURS", "START",
    "STARTS", "TASK", "Contestant", "Rule",
]  # fmt: skip

GRID = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
START = 0.3
STARTS = (0.05, 0.3, 0.7)
RuleName = Literal["plain", "loss", "kl", "prior", "one-step", "self-tuning", "balanced"]


@dataclass(frozen=True)
class Rule:
    """A way to learn rates."""

    label: str
    colour: str
    """A family of :data:`experiments.report.style.FAMILIES`."""
    prefix: str
    """What the names of its contestants begin with."""
    finds_start: bool = False
    """Whether it follows held-out data, finds where rates start, and trains on those data too in the end."""


RULES: dict[str, Rule] = {
    "loss": Rule("training loss alone", "loss", "loss"),
    "kl": Rule("the paper's KL", "lbd", "kl"),
    "prior": Rule("Bernoulli prior on masks", "other", "prior"),
    "one-step": Rule("held-out, one step ahead", "ahead", "one-step"),
    "self-tuning": Rule("self-tuning", "other", "tuned", finds_start=True),
    "balanced": Rule("balanced noise", "tuned", "balanced", finds_start=True),
}
"""All but the fixed rates' ``plain``, in the order of the table."""
SCHEME_COLOURS = {"concrete": "concrete", "gaussian": "gaussian"}
"""Of rivals, whatever their rule."""
DASHES = {"unit": "7 3", "model": "2 3"}
"""By how many units share a rate."""


@dataclass(frozen=True)
class Contestant:
    """What one line of a task's table does differently."""

    name: str
    label: str
    scheme: Scheme | None
    """The dropouts in place of the network's; ``None`` trains it as it is, at rate 0."""
    rule: RuleName = "plain"
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


def _all() -> Iterable[Contestant]:
    yield Contestant("none", "no dropout", None)
    for rate in GRID:
        yield Contestant(f"fixed-{rate:g}", f"fixed {rate:g}", "mc", start=rate)
    yield Contestant("concrete", "Concrete, per layer", "concrete", "kl")
    yield Contestant("gaussian", "Gaussian, per layer", "gaussian", "kl")
    for name in ("loss", "kl", "prior", "one-step"):
        rule = RULES[name]
        yield Contestant(f"{rule.prefix}-layer", f"{rule.label}, per layer", "learned", name)
        yield Contestant(f"{rule.prefix}-unit", f"{rule.label}, per unit", "learned", name, per="unit")
    yield Contestant("kl-layer-arm", "the paper's KL by ARM, per layer", "learned", "kl", estimator="arm")
    for name in ("self-tuning", "balanced"):
        rule, together = RULES[name], ", which move together" if name == "self-tuning" else ""
        prefix, label = rule.prefix, rule.label
        yield Contestant(f"{prefix}-layer", f"{label}, per layer", "learned", name, start=None)
        yield Contestant(f"{prefix}-unit", f"{label}, per unit{together}", "learned", name, per="unit", start=None)
        yield Contestant(f"{prefix}-model", f"{label}, one rate", "learned", name, per="model", start=None)
        for start in STARTS:
            yield Contestant(
                f"{prefix}-layer-{start:g}", f"{label}, per layer, from {start:g}", "learned", name, start=start,
                only_with_starts=True,
            )  # fmt: skip
    yield Contestant("none-retrained", "no dropout, retrained", None, retrained=True)
    for rate in GRID:
        yield Contestant(f"fixed-{rate:g}-retrained", f"fixed {rate:g}, retrained", "mc", start=rate, retrained=True)


CONTESTANTS: dict[str, Contestant] = {each.name: each for each in _all()}

# ---------------------------------------------------------------------------------------------------------------- pages

OURS = "balanced-layer"
DOCUMENTED = {
    OURS: "balanced noise, per layer", "balanced-unit": "per unit", "balanced-model": "one rate",
    "tuned-layer": "self-tuning, per layer", "concrete": "Concrete", "gaussian": "Gaussian",
}  # fmt: skip
"""The columns of the table in the documents."""
FIGURE_LINES = {OURS: "-", "balanced-layer-0.05": ":", "balanced-layer-0.3": "-.", "balanced-layer-0.7": "--"}
"""Whose rates the figure draws, and in what line."""
MEASURED = {"deterministic": "NLL", "masks": "NLL, 20 masks"}
"""The two ways to measure a network, with the heading of their column."""

# --------------------------------------------------------------------------------------------------------------- record


def _scores(name: str, value: Any) -> None:
    fields({"nll": number})(name, value)
    mapped(number)(name, value)


_SCORES = fields(dict.fromkeys(MEASURED, _scores))
_RECORD = fields(
    {
        "contestant": text, "label": text, "seed": whole, "provenance": fields({}), "validation": _SCORES, "test": _SCORES,
        "settings": fields({"scheme": maybe(text), "rule": text, "per": text, "start": maybe(number)}),
        "rates": mapped(fields({"mean": number})), "seconds": fields({"cpu": number}),
        "history": listed(fields({"epoch": whole, "rates": mapped(number)})),
    }
)  # fmt: skip
TASK = fields({"task": text, "records": listed(_RECORD, least=1)})
"""What the page draws of one file; whatever else it has is ignored."""
