"""Gradients of two keep rates against exact ones: bias, spread and error of each estimator, and a descent along them.

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020, figure 1.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.report import charts
from experiments.report.compose import Grid, Part
from experiments.report.page import Chapter, Section, facts, note, section
from experiments.report.records import Json
from experiments.report.svg import panels
from experiments.report.tables import Columns, html
from experiments.toy.record import ERRORS, ESTIMATORS, PARAMETERS, read

__all__ = ["part"]


def part(files: Sequence[Path], data: Path | None) -> Part:
    """The chapter of one run; of several, one after the other."""
    runs = read(files)
    leads = [f"{path.stem}: " * (len(files) > 1) for path in files]
    sections = [each for lead, run in zip(leads, runs, strict=True) for each in _sections(lead, run)]
    sections.append(section("How it was run", *facts(runs)))
    lead = "Gradients of two keep rates, estimated and exact: which estimators are biased, and how noisy are they?"
    return Part(Chapter("Can the gradient be trusted?", lead, sections), list(map(_grid, runs)))


def _sections(lead: str, run: Json) -> list[Section]:
    parts = []
    for parameter, symbol in PARAMETERS.items():
        rows = [_styled(name) | found[parameter] for name, found in run["summary"].items()]
        best = {"mean squared error": min(rows, key=lambda row: row["mean_mse"])["key"]} if rows else {}
        parts += [f"<h3>Gradient of {symbol}</h3>", html(_columns(), rows, best)]
    remark = note(
        "Means over all pairs of keep rates. z: the bias in standard errors; beyond 4 chance does not explain it. What an"
        " unbiased estimator shows as bias is the noise of the draws."
    )
    found = [section(f"{lead}Bias, spread and error", *parts, remark)]
    trace = run["trace"]
    if not trace["estimates"]:
        return found
    rows = [_styled(name) for name in trace["estimates"]]
    figures = []
    for parameter, symbol in PARAMETERS.items():
        exact = trace["exact"][parameter]
        gaps = {
            name: [mean - true for mean, true in zip(estimates[parameter], exact, strict=False)]
            for name, estimates in trace["estimates"].items()
        }
        drawn = [(_styled(name), [(float(step), gap) for step, gap in enumerate(line)]) for name, line in gaps.items()]
        figures.append(charts.curves(f"estimate − exact, {symbol}", "step", drawn, zero=True))
    words = note(
        "Along a descent by exact gradients: the mean of many estimates at each step, minus the exact gradient."
    )
    return [*found, section(f"{lead}Along a descent", charts.legend(rows), panels(*figures), words)]


def _styled(name: str) -> dict[str, Any]:
    declared = ESTIMATORS.get(name)
    return {"key": name, "label": _label(name), "family": declared.colour if declared else "other"}


def _label(name: str) -> str:
    return ESTIMATORS[name].label if name in ESTIMATORS else name


def _columns() -> Columns:
    def cell(name: str) -> Any:
        return lambda row: f"{row[name]:.0%}" if name.startswith("share") else f"{row[name]:.3g}"

    return {"verdict": lambda row: row["verdict"], **{heading: cell(name) for heading, name in ERRORS.items()}}


def _grid(run: Json) -> Grid:
    shown = _columns()
    lines = [
        (f"{_label(name)}, {PARAMETERS[parameter]}", *(cell(found[parameter]) for cell in shown.values()))
        for name, found in run["summary"].items()
        for parameter in PARAMETERS
    ]
    return Grid("Gradients against exact ones", ("", *shown), lines)
