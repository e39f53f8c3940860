"""CamVid, declared in one place: the rows of its table with the paper's numbers, its measures, and what a record holds.

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020, table 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from experiments.report.records import Json, check, distinct
from experiments.report.schema import fields, listed, mapped, maybe, number, pairs, text, whole
from experiments.report.statistics import Measure
from lbdrop import ConcreteDropout, FixedDropout, GaussianDropout, LearnableDropout
from lbdrop.dropout import NoiseLayer

__all__ = ["MEASURES", "METHODS", "ROWS", "TABLE", "Method", "Printed", "Row", "read"]


class Printed(NamedTuple):
    """What the paper prints of the test images, in per cent."""

    accuracy: float
    mean_iou: float
    mean_pavpu: float


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    name: str
    label: str
    layer: type[NoiseLayer]
    colour: str
    """A family of :data:`experiments.report.style.FAMILIES`."""
    training: str
    """The training whose network it predicts with; two rows may share one."""
    sampled: bool = True
    """Whether it predicts with masks."""
    masks: int = 1
    """Through how many masks weights are trained in a step; an estimator has its own number."""
    in_table: bool = True
    dash: str = ""
    paper: Printed | None = None


ROWS = {
    row.name: row
    for row in (
        Row("lbd", "LBD, a rate per layer", LearnableDropout, "lbd", "lbd", paper=Printed(89.18, 60.42, 85.16)),
        Row(
            "concrete", "Concrete, a rate per layer", ConcreteDropout, "concrete", "concrete",
            paper=Printed(88.64, 55.95, 83.81),
        ),
        Row(
            "gaussian", "Gaussian, a variance per layer", GaussianDropout, "gaussian", "gaussian",
            paper=Printed(88.04, 54.85, 85.02),
        ),
        Row("mc", "MC dropout", FixedDropout, "mc", "mc", paper=Printed(87.80, 54.40, 84.39)),
        Row(
            "mc-masks", "MC dropout, 2 masks a step", FixedDropout, "mc", "mc-masks", masks=2, in_table=False, dash="2 3"
        ),
        Row(
            "regular", "regular dropout", FixedDropout, "other", "mc", sampled=False, paper=Printed(86.65, 53.62, 81.17)
        ),
    )
}  # fmt: skip
"""All rows by name, in the order of the table."""


class Method(NamedTuple):
    """One training, and the rows that its network gives."""

    layer: type[NoiseLayer]
    masks: int
    rows: tuple[Row, ...]


def _method(training: str) -> Method:
    rows = tuple(row for row in ROWS.values() if row.training == training)
    return Method(rows[0].layer, rows[0].masks, rows)


METHODS = {name: _method(name) for name in dict.fromkeys(row.training for row in ROWS.values())}
"""The trainings by name."""
TABLE = tuple(name for name, method in METHODS.items() if all(row.in_table for row in method.rows))
"""Those of the paper's table."""

MEASURES = {
    "accuracy": Measure("accuracy, %", True, 100, 2),
    "mean_iou": Measure("mean IoU, %", True, 100, 2),
    "pavpu_mean_entropy": Measure("PAvPU at mean entropy, %", True, 100, 2),
    "pavpu_sweep": Measure("PAvPU over thresholds, %", True, 100, 2),
    "ece": Measure("ECE", False),
    "nll": Measure("NLL", False),
    "brier": Measure("Brier", False),
}

_SCORES = fields(dict.fromkeys(MEASURES, number))
_RUN = fields(
    {
        "method": text, "label": text, "seed": whole, "recipe": text, "protocol": text, "settings": fields({}),
        "provenance": fields({}), "validation": _SCORES, "test": _SCORES, "class_iou": mapped(maybe(number)),
        "pavpu_curve": pairs(fields({"t": listed(number, least=1), "pavpu": listed(number, least=1)}), "t", "pavpu"),
        "reliability": fields({name: listed(maybe(number)) for name in ("confidence", "accuracy")} | {"count": listed(whole)}),
        "rates": mapped(fields({"mean": number})), "seconds": fields({"train": number, "per_epoch": listed(number)}),
    },
    {"peak_bytes": maybe(number)},
)  # fmt: skip
"""What the page draws; whatever else a record has is ignored."""


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """All runs of these files and folders, each with the ``file`` it came from; what is no such run raises."""

    def identity(run: Json) -> tuple[Any, ...]:
        return run["recipe"], run["method"], run["seed"]

    return distinct(
        paths, lambda path, run: check(path, run, "camvid", _RUN, "CamVid run"), identity, "recipe, method and seed"
    )
