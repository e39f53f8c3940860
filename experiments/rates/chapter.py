"""Fixed, rival and learned rates on the same networks, a task at a time: scores, differences, and rates over training.

    difference   test NLL minus that of the fixed rate which validation NLL picks from each seed's grid, paired by seed

From three seeds on a difference has its 95 % t interval.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.rates.record import DASHES, MEASURED, RULES, SCHEME_COLOURS, TASK
from experiments.report import charts
from experiments.report.compose import Grid, Part
from experiments.report.page import Chapter, Section, facts, findings, note, plus_minus, section
from experiments.report.records import Json, check, load
from experiments.report.statistics import judged, paired, stat
from experiments.report.svg import panels
from experiments.report.tables import Columns, html

__all__ = ["part", "summarise"]


def part(files: Sequence[Path], data: Path | None) -> Part:
    """The chapter of these tasks."""
    tasks = {}
    for path in files:
        task = load(path)
        check(path, task, "rates", TASK, "task of rates")
        tasks[task["task"]] = task["records"]
    found = {name: summarise(records) for name, records in tasks.items()}
    records = [record for each in tasks.values() for record in each]
    sections = [each for name in tasks for each in _sections(name, found[name])]
    sections.append(section("How it was run", *facts(records)))
    lead = f"{len(records)} runs on {', '.join(tasks)}: what a learned rate gains or loses beside the best of a grid."
    said = [sentence for name, rows in found.items() for sentence in _said(name, rows)]
    first = section("What came out", findings(said))
    return Part(
        Chapter("Learned rates beside the grid", lead, [first, *sections] if said else sections),
        [_grid(name, rows) for name, rows in found.items()],
        said,
    )


def summarise(records: Sequence[Json]) -> list[dict[str, Any]]:
    """A row for every contestant, in the order of the table: fixed rates, rivals, learned ones."""
    by: dict[str, dict[int, Json]] = {}
    for record in records:
        by.setdefault(record["contestant"], {})[record["seed"]] = record
    # What was trained on validation examples too cannot be chosen by them.
    some = {name: next(iter(runs.values())) for name, runs in by.items()}
    fixed = [name for name, one in some.items() if _fixed(one) and not one["settings"].get("retrained")]
    chosen = {
        how: {
            seed: min((by[name][seed] for name in fixed if seed in by[name]), key=lambda r: r["validation"][how]["nll"])
            for seed in {record["seed"] for record in records}
            if any(seed in by[name] for name in fixed)
        }
        for how in MEASURED
    }
    rows = [_row(name, runs, chosen) for name, runs in by.items()]
    return sorted(rows, key=lambda row: (row["order"], row["start"] if row["fixed"] else 0.0, row["label"]))


def _row(name: str, runs: Mapping[int, Json], chosen: Mapping[str, Mapping[int, Json]]) -> dict[str, Any]:
    first = next(iter(runs.values()))
    settings, fixed = first["settings"], _fixed(first)
    rivals = settings["scheme"] in SCHEME_COLOURS
    rule = RULES.get(settings["rule"])
    colour = "mc" if fixed else SCHEME_COLOURS.get(settings["scheme"]) or (rule.colour if rule else "other")
    measures = [measure for measure in first["test"]["deterministic"] if measure != "nll"]
    layers = {layer: None for run in runs.values() for layer in run["rates"]}
    return {
        "key": name, "label": first["label"], "family": colour if settings["scheme"] else "other",
        "dash": DASHES.get(settings["per"], "") if not fixed else "", "fixed": fixed,
        "order": 0 if fixed else 1 if rivals else 2, "start": (settings["start"] or 0.0) if settings["scheme"] else 0.0,
        "seeds": sorted(runs),
        "nll": {how: stat(run["test"][how]["nll"] for run in runs.values()) for how in MEASURED},
        "against": {
            how: paired((run["test"][how]["nll"], chosen[how][seed]["test"][how]["nll"])
                        for seed, run in runs.items() if seed in chosen[how])
            for how in MEASURED
        },
        "measures": {name: stat(run["test"]["deterministic"].get(name) for run in runs.values()) for name in measures},
        "rates": {layer: stat(run["rates"][layer]["mean"] for run in runs.values() if layer in run["rates"])
                  for layer in layers},
        "cpu": stat(run["seconds"]["cpu"] for run in runs.values()),
        "over_training": _over_training(list(runs.values())),
    }  # fmt: skip


def _fixed(record: Json) -> bool:
    return record["settings"]["rule"] == "plain"


def _over_training(runs: Sequence[Json]) -> dict[str, list[tuple[int, float]]]:
    """Layer by layer the rate at each noted epoch, as a mean over seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        for entry in run["history"]:
            for layer, rate in entry["rates"].items():
                found.setdefault(layer, {}).setdefault(entry["epoch"], []).append(rate)
    return {
        layer: [(epoch, sum(rates) / len(rates)) for epoch, rates in sorted(line.items())]
        for layer, line in found.items()
    }


# ------------------------------------------------------------------------------------------------------------ sections


def _said(name: str, rows: Sequence[Json]) -> Iterable[str]:
    """The best learned row of each task beside the grid."""
    learned = [row for row in rows if row["order"] == 2 and row["against"]["deterministic"]]
    if not learned:
        return
    verdicts = [judged(row["against"]["deterministic"], larger_is_better=False) for row in learned]
    counts = {word: verdicts.count(word) for word in dict.fromkeys(verdicts)}
    summary = ", ".join(f"{count} {word}" for word, count in counts.items())
    best = min(learned, key=lambda row: row["nll"]["deterministic"]["mean"])
    yield (
        f"{name}: of {len(learned)} ways to learn a rate, against the grid, {summary}; lowest test NLL “{best['label']}”"
        f" ({plus_minus(best['nll']['deterministic'], 4)})."
    )


def _sections(name: str, rows: Sequence[Json]) -> Iterable[Section]:
    best = {
        heading: min(rows, key=lambda row: row["nll"][how]["mean"])["key"]
        for how, heading in MEASURED.items()
        if len(rows) > 1
    }
    remark = note(
        "Mean ± standard error over seeds. Δ: test NLL minus that of the fixed rate which validation picks, paired by seed;"
        " better or worse where the 95 % t interval leaves out 0, level where it does not. The lowest NLL is bold, whether"
        " or not it is clearly lowest."
    )
    yield section(f"{name}: scores", html(_columns(rows), rows, best), remark)
    learned = charts.distinct([row for row in rows if not row["fixed"] and row["over_training"]])
    if learned:
        figures = charts.rates_by_layer([(row, row["over_training"]) for row in learned], "layer ")
        yield section(
            f"{name}: rates over training",
            charts.legend(learned),
            panels(*figures),
            note("Means over seeds and units."),
        )


def _columns(rows: Sequence[Json]) -> Columns:
    def nll(how: str) -> Columns:
        return {MEASURED[how]: lambda row: plus_minus(row["nll"][how], 4)}

    def against(how: str) -> Columns:
        return {f"Δ {MEASURED[how]}": lambda row: _difference(row["against"][how])}

    others = {name: None for row in rows for name in row["measures"]}

    def other(name: str) -> Columns:
        return {name: lambda row: plus_minus(row["measures"][name], 4) if row["measures"].get(name) else "–"}

    return {
        "seeds": lambda row: str(len(row["seeds"])),
        **nll("deterministic"), **against("deterministic"), **nll("masks"), **against("masks"),
        **{heading: cell for name in others for heading, cell in other(name).items()},
        "drop rates": lambda row: " ".join(f"{rate['mean']:.2f}" for rate in row["rates"].values()) or "–",
        "CPU s": lambda row: f"{row['cpu']['mean']:.1f}",
    }  # fmt: skip


def _difference(value: Json | None) -> str:
    if value is None:
        return "–"
    return f"{value['mean']:+.4f} {judged(value, larger_is_better=False)}".replace("-", "−", 1)


def _grid(name: str, rows: Sequence[Json]) -> Grid:
    lines = [
        (row["label"], str(len(row["seeds"])), plus_minus(row["nll"]["deterministic"], 4).replace(" ", ""),
         _difference(row["against"]["deterministic"]))
        for row in rows
    ]  # fmt: skip
    return Grid(f"{name}: test NLL, mean ± standard error", ("", "seeds", "NLL", "against the grid"), lines)
