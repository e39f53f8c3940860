"""CIFAR-10, declared in one place: the methods of its table with the paper's numbers, its measures, and what a record holds.

Boluki, Ardywibowo, Dadaneh, Zhou and Qian, Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020, table 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from experiments.report.records import Json, check, distinct
from experiments.report.schema import fields, listed, mapped, maybe, number, pairs, text, whole
from experiments.report.statistics import Measure
from lbdrop import ConcreteDropout, FixedDropout, GaussianDropout, LearnableDropout, RegularDropout
from lbdrop.dropout import NoiseLayer
from lbdrop.errors import DropoutError

__all__ = [
    "FIXED_RATE",
    "MEASURES",
    "METHODS",
    "METRICS",
    "Method",
    "Printed",
    "key",
    "method_of",
    "read",
    "starting_rate",
]


@dataclass(frozen=True)
class Printed:
    """What the paper prints, in per cent; it gives no PAvPU for one shared rate."""

    label: str
    accuracy: float
    pavpu: float | None


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    name: str
    label: str
    layer: type[NoiseLayer]
    per: Literal["unit", "layer", "model"]
    colour: str
    """A family of :data:`experiments.report.style.FAMILIES`."""
    rule: Literal["bound", "self-tuning", "masks"] = "bound"
    starts: tuple[float, ...] = (0.1,)
    """Where its rates start, and where fixed ones stay; the default comes first."""
    rate_speed: float = 1.0
    """How much faster than the recipe's its rates learn."""
    dash: str = ""
    paper: Printed | None = None

    @property
    def learns(self) -> bool:
        return self.layer.learns


_TABLE = (
    Method("lbd-unit", "LBD, a rate per unit", LearnableDropout, "unit", "lbd", paper=Printed("LBD", 93.47, 64.52)),
    Method("lbd-layer", "LBD, a rate per layer", LearnableDropout, "layer", "lbd", dash="7 3"),
    Method(
        "lbd-model", "LBD, one rate", LearnableDropout, "model", "lbd", dash="2 3",
        paper=Printed("one shared rate", 92.11, None),
    ),
    Method(
        "lbd-tuned-layer", "LBD, self-tuned, a rate per layer", LearnableDropout, "layer", "tuned", "self-tuning", dash="7 3"
    ),
    Method("lbd-tuned-model", "LBD, self-tuned, one rate", LearnableDropout, "model", "tuned", "self-tuning", dash="2 3"),
    Method(
        "concrete", "Concrete, a rate per unit", ConcreteDropout, "unit", "concrete", paper=Printed("Concrete", 92.72, 59.97)
    ),
    Method(
        "gaussian", "Gaussian, a variance per unit", GaussianDropout, "unit", "gaussian",
        paper=Printed("Gaussian", 91.16, 52.71),
    ),
    Method(
        "mc", "MC dropout", FixedDropout, "layer", "mc", starts=(0.5, 0.0, 0.1, 0.3, 0.7, 0.9),
        paper=Printed("MC", 91.57, 52.08),
    ),
    Method("mc-masks", "MC dropout, rate 0.3, 8 masks a step", FixedDropout, "layer", "mc", "masks", (0.3,), dash="2 3"),
    Method(
        "regular", "regular dropout", RegularDropout, "layer", "other", starts=(0.5,), paper=Printed("regular", 91.61, 56.81)
    ),
)  # fmt: skip


def _quick(method: Method) -> Method:
    """The same with rates that learn ten times as fast; one of them also starts elsewhere, to see whether it ends alike."""
    starts = (0.1, 0.5) if method.name == "lbd-layer" else method.starts
    name, label = f"{method.name}-quick", f"{method.label}, quick rates"
    return replace(method, name=name, label=label, rate_speed=10.0, starts=starts, dash="", paper=None)


# Rates have 880 steps to arrive in: every method that learns them under the bound is run at two speeds, and validation
# chooses.
METHODS = {
    each.name: each
    for each in (*_TABLE, *(_quick(method) for method in _TABLE if method.learns and method.rule == "bound"))
}
"""All methods by name, in the order in which they run."""

FIXED_RATE = tuple(name for name, method in METHODS.items() if not method.learns)
"""Methods whose rate stays."""


def method_of(run: Json) -> Method:
    """The declaration of a run's method; of a name that is not in the table, a learned rate without a colour."""
    return METHODS.get(run["method"]) or Method(run["method"], run["method"], LearnableDropout, "unit", "other")


def starting_rate(run: Json) -> float | None:
    """The rate that learning begins at; self-tuned rates find theirs."""
    method = method_of(run)
    return run["settings"].get("rate") if method.learns and method.rule != "self-tuning" else None


def key(run: Json) -> str:
    """A row of the table: the method, and the rate that it is fixed at, or that it starts from if not from one half."""
    rate, method = run["settings"].get("rate"), run["method"]
    starts = method not in ("mc-masks", "regular") and rate not in (None, 0.5)
    return f"{method}@{rate:g}" if method == "mc" or starts else method


# ------------------------------------------------------------------------------------------------------------- measures

MEASURES = {
    "accuracy": Measure("accuracy, %", True, 100, 2),
    "nll": Measure("NLL", False),
    "brier": Measure("Brier", False),
    "ece": Measure("ECE", False),
    "aurc": Measure("AURC", False),
    "auroc_misclassification": Measure("AUROC of errors", True),
    "pavpu_mean_entropy": Measure("PAvPU at mean entropy, %", True, 100, 2),
    "pavpu_sweep": Measure("PAvPU over thresholds, %", True, 100, 2),
    "ood_entropy": Measure("OOD AUROC by entropy", True),
    "ood_mutual_information": Measure("OOD AUROC by mutual information", True),
    "seconds_per_epoch": Measure("s per epoch", False, 1, 2),
}
METRICS = tuple(list(MEASURES)[:8])
"""Those of a set of labelled images, as a record holds them under ``validation`` and ``test``."""

# --------------------------------------------------------------------------------------------------------------- record

_SCORES = {name: number if name in ("accuracy", "nll") else maybe(number) for name in METRICS}
_UNDEFINED_WITHOUT_ERRORS = {"auroc_misclassification": _SCORES.pop("auroc_misclassification")}
_MEASURED = fields(_SCORES, _UNDEFINED_WITHOUT_ERRORS)
_IMAGES = listed(fields({"index": whole, "entropy": number, "predicted": whole, "truth": whole}))
_POINTS = listed(fields({"severity": number, "accuracy": number, "ece": number}), least=1)
_CURVE = fields({"t": listed(number, least=1), "pavpu": listed(number, least=1)})
_BINS = fields({name: listed(maybe(number)) for name in ("confidence", "accuracy")} | {"count": listed(whole)})
_LAYER = fields({"mean": number, "min": number, "max": number, "counts": listed(whole, least=1)})
_RUN = fields(
    {
        "method": text, "label": text, "seed": whole, "recipe": text, "protocol": text,
        "settings": fields({}, {"rate": maybe(number)}), "provenance": fields({}), "validation": _MEASURED, "test": _MEASURED,
        "pavpu_curve": pairs(_CURVE, "t", "pavpu"), "reliability": pairs(_BINS, "confidence", "accuracy", "count"),
        "rates": mapped(_LAYER), "certainty": fields({"least": _IMAGES, "most": _IMAGES}),
        "seconds": fields({"per_epoch": listed(number)}),
    },
    {
        "ood": maybe(fields({"set": text, "count": whole}, dict.fromkeys(("entropy", "mutual_information"), maybe(number)))),
        "corruptions": maybe(mapped(_POINTS)), "peak_bytes": maybe(number),
        "history": maybe(listed(fields({"epoch": whole}, {"rates": mapped(number)}))),
    },
)  # fmt: skip
"""What the page draws; whatever else a record has is ignored."""


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """All runs of these files and folders, each with the ``file`` it came from; what is no such run raises."""
    runs = distinct(paths, _check, lambda run: (key(run), run["seed"]), "method, rate and seed")
    _check_alike(runs)
    recipes = sorted({str(run["recipe"]) for run in runs})
    if len(recipes) > 1:
        raise DropoutError(f"recipes {', '.join(recipes)} are mixed; report on the runs of one at a time")
    return runs


def _check(path: Path, run: Json) -> None:
    check(path, run, "cifar10", _RUN, "CIFAR-10 run")
    if run["method"] == "mc" and run["settings"].get("rate") is None:
        raise DropoutError(f"{path}: want the record of a CIFAR-10 run with settings.rate, as method mc has, got none")


def _check_alike(runs: Sequence[Json]) -> None:
    """What is pooled over the seeds of a method has the same bins."""
    first: dict[tuple[str, str], tuple[int, str]] = {}
    for run in runs:
        bins = {"reliability": len(run["reliability"]["count"])}
        bins |= {f"rates.{layer}": len(found["counts"]) for layer, found in run["rates"].items()}
        for name, count in bins.items():
            other, file = first.setdefault((key(run), name), (count, run["file"]))
            if other != count:
                raise DropoutError(
                    f"{run['file']}: want {other} bins of {name}, as in {file}, got {count}; leave one out"
                )
