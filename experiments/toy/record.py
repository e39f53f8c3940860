"""The toy example, declared in one place: its estimators, its two parameters, and what a record holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import experiments.estimators  # noqa: F401 — they register themselves
from experiments.report.records import Json, check, load
from experiments.report.schema import fields, listed, mapped, number, text
from lbdrop.estimators import REGISTERED

__all__ = ["ERRORS", "ESTIMATORS", "PARAMETERS", "Estimator", "names", "read", "styled"]


@dataclass(frozen=True)
class Estimator:
    """A line of the table."""

    name: str
    label: str
    short: str
    """In the terminal."""
    masks: int
    """How many masks an estimate draws for every example."""
    colour: str
    """On the page, a family of :data:`experiments.report.style.FAMILIES`."""
    figure_colour: str
    figure_label: str


ESTIMATORS = {
    each.name: each
    for each in (
        Estimator("arm", "ARM", "ARM", 2, "mc", "#0072b2", "ARM (the paper's LBD)"),
        Estimator("disarm", "DisARM", "DisARM", 2, "gaussian", "#009e73", "DisARM"),
        Estimator("double-cv", "double control variate", "double CV", 2, "lbd", "#cc79a7", "double control variate"),
        Estimator("concrete", "Concrete", "Concrete", 1, "concrete", "#d55e00", "Concrete"),
    )
}
PARAMETERS = {"alpha_1": "α₁", "alpha_2": "α₂"}
"""The symbols of the two logits by their names."""
ERRORS = {
    "max |z|": "max_abs_z", "|z| > 4": "share_abs_z_above_4", "mean |bias|": "mean_abs_bias", "mean std": "mean_std",
    "mean squared error": "mean_mse",
}  # fmt: skip
"""What a record has of each estimator, by the heading of its column."""

_PAIR = fields(dict.fromkeys(PARAMETERS, listed(number, least=2)))
_FOUND = fields({"verdict": text} | dict.fromkeys(ERRORS.values(), number))
_RUN = fields(
    {
        "settings": fields({}), "provenance": fields({}),
        "summary": mapped(fields(dict.fromkeys(PARAMETERS, _FOUND))),
        "trace": fields({"exact": _PAIR, "estimates": mapped(_PAIR)}),
    }
)  # fmt: skip


def names() -> list[str]:
    """The estimators of the table, and those of one's own."""
    return [*ESTIMATORS, *REGISTERED]


def styled(name: str) -> Estimator:
    """A line of the table, also for an estimator that is none of ours."""
    masks = REGISTERED[name].masks if name in REGISTERED else 1
    return ESTIMATORS.get(name, Estimator(name, name, name, masks, "other", "#555555", name))


def read(files: Sequence[Path]) -> list[Json]:
    """The records of these files."""
    runs = []
    for path in files:
        run = load(path)
        check(path, run, "toy", _RUN, "toy run")
        runs.append(run)
    return runs
