"""Many CIFAR-10 runs in one summary: means and standard errors over seeds, paired differences, and what they say.

Fixed rates (method ``mc``) form a grid: the rate is chosen on mean validation NLL, never on the test set. So is, of a method
that was run from several starts or at several speeds of its rates, the one that stands for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from experiments.cifar10.record import FIXED_RATE, MEASURES, METHODS, METRICS, starting_rate
from experiments.cifar10.record import key as key_of
from experiments.report.page import plus_minus
from experiments.report.records import Json
from experiments.report.statistics import judged, paired, stat
from lbdrop.errors import DropoutError

__all__ = ["difference", "show", "summarise", "verdict"]

# ------------------------------------------------------------------------------------------------------------- summary


def summarise(runs: Sequence[Json]) -> dict[str, Any]:
    """Everything the page shows, in one mapping."""
    groups: dict[str, list[Json]] = {}
    order = {method: number for number, method in enumerate(METHODS)}
    ranked = sorted(
        runs,
        key=lambda r: (
            order.get(r["method"].removesuffix("-quick"), 99),
            r["method"],
            r["settings"].get("rate") or 0,
            r["seed"],
        ),
    )
    for run in ranked:
        groups.setdefault(key_of(run), []).append(run)
    rows = {key: _row(key, group) for key, group in groups.items()}
    fixed = [row for row in rows.values() if row["method"] == "mc"]
    chosen = min(fixed, key=lambda row: row["validation"]["nll"]["mean"])["key"] if fixed else None
    # The grid has a table of its own; beside the other methods stand the chosen rate and the usual one.
    beside = [key for key in rows if not key.startswith("mc@") or key in (chosen, "mc@0.5")]
    differences = _differences(groups, chosen)
    summary = {
        "experiment": "cifar10", "kind": "summary", "recipe": runs[0]["recipe"],
        "protocol": sorted({run["protocol"] for run in runs}), "seeds": sorted({run["seed"] for run in runs}),
        "chosen": chosen, "shown": beside, "leading": _leading([rows[key] for key in beside]), "rows": rows,
        "differences": differences,
        "paper": {name: asdict(method.paper) for name, method in METHODS.items() if method.paper},
        "caveats": _caveats(groups),
        "runs": [{n: run[n] for n in ("file", "method", "seed", "settings", "provenance")} for run in ranked],
    }  # fmt: skip
    return summary | {"findings": _findings(summary)}


def _base(row: Json) -> str:
    """What a row is a variant of: a method from any start and at any speed, but each fixed rate for itself."""
    return row["key"] if row["method"] == "mc" else row["method"].removesuffix("-quick")


def _leading(rows: Sequence[Json]) -> list[str]:
    """Of each method's variants the one with the lowest mean validation NLL."""
    best: dict[str, Json] = {}
    for row in rows:
        other = best.setdefault(_base(row), row)
        if row["validation"]["nll"]["mean"] < other["validation"]["nll"]["mean"]:
            best[_base(row)] = row
    return [row["key"] for row in best.values()]


def _row(key: str, runs: Sequence[Json]) -> dict[str, Any]:
    first = runs[0]
    rate, measures = first["settings"].get("rate"), [_measures(run) for run in runs]
    label = first["label"]
    if rate is not None and first["method"] == "mc":
        label = f"{label}, rate {rate:g}"
    elif (start := starting_rate(first)) is not None:
        label = f"{label}, from {start:g}"
    layers = {name: None for run in runs for name in run["rates"]}
    return {
        "key": key, "method": first["method"], "label": label, "rate": rate, "seeds": [run["seed"] for run in runs],
        "measures": {name: stat(m[name] for m in measures) for name in MEASURES},
        "validation": {name: stat(run["validation"].get(name) for run in runs) for name in METRICS},
        "rates": {layer: _rates([run["rates"][layer] for run in runs if layer in run["rates"]]) for layer in layers},
        "peak_bytes": stat(run.get("peak_bytes") for run in runs),
        "pavpu_curve": _curve(runs), "reliability": _reliability([run["reliability"] for run in runs]),
        "corruptions": _corruptions([run["corruptions"] for run in runs if run.get("corruptions")]),
        "ood": first.get("ood") and {name: first["ood"].get(name) for name in ("set", "count")},
        "certainty": {"seed": first["seed"], **first["certainty"]},
        "rates_over_training": _over_training(runs) if first["method"] not in FIXED_RATE else {},
    }  # fmt: skip


def _over_training(runs: Sequence[Json]) -> dict[str, list[list[float]]]:
    """Layer by layer the mean rate after each epoch, from the one it started with; means over seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        start = starting_rate(run)
        for entry in run.get("history") or []:
            for layer, rate in entry.get("rates", {}).items():
                line = found.setdefault(layer, {} if start is None else {0: [start]})
                line.setdefault(entry["epoch"] + 1, []).append(rate)
    return {
        layer: [[epoch, sum(rates) / len(rates)] for epoch, rates in sorted(line.items())]
        for layer, line in found.items()
    }


def _rates(layers: Sequence[Json]) -> dict[str, Any]:
    counts = np.sum([layer["counts"] for layer in layers], axis=0).tolist()
    ends = {"min": min(layer["min"] for layer in layers), "max": max(layer["max"] for layer in layers)}
    return {"mean": stat(layer["mean"] for layer in layers), **ends, "counts": counts}


def _curve(runs: Sequence[Json]) -> dict[str, Any]:
    for run in runs:
        if run["pavpu_curve"]["t"] != runs[0]["pavpu_curve"]["t"]:
            raise DropoutError(f"{run['file']}: other thresholds pavpu_curve.t than {runs[0]['file']}; leave one out")
    columns = zip(*(run["pavpu_curve"]["pavpu"] for run in runs), strict=True)
    return {"t": runs[0]["pavpu_curve"]["t"], "pavpu": [stat(column) for column in columns]}


def _reliability(curves: Sequence[Json]) -> dict[str, Any]:
    """All seeds in one diagram: bins are means over examples."""
    count = np.sum([curve["count"] for curve in curves], axis=0)
    total = {
        name: np.sum([[(v or 0) * n for v, n in zip(c[name], c["count"], strict=True)] for c in curves], axis=0)
        for name in ("confidence", "accuracy")
    }
    means = {
        name: [float(s / n) if n else None for s, n in zip(sums, count, strict=True)] for name, sums in total.items()
    }
    return means | {"count": count.tolist()}


def _corruptions(found: Sequence[Json]) -> dict[str, list[dict[str, Any]]]:
    result = {}
    for name in {name: None for each in found for name in each}:
        points = [point for each in found for point in each.get(name, [])]
        result[name] = [
            {"severity": severity} | {m: stat(p[m] for p in points if p["severity"] == severity) for m in ("accuracy", "ece")}
            for severity in sorted({point["severity"] for point in points})
        ]  # fmt: skip
    return result


def _differences(groups: Mapping[str, Sequence[Json]], chosen: str | None) -> list[dict[str, Any]]:
    learned = [key for key in groups if key.startswith("lbd-")]
    pairs = [(key, chosen) for key in learned if chosen is not None]
    pairs += [("lbd-unit", key) for key in groups if "lbd-unit" in groups and key not in ("lbd-unit", chosen)]
    found = [(a, b, difference(groups[a], groups[b])) for a, b in pairs]
    return [{"method": a, "against": b, **d} for a, b, d in found if d is not None]


# --------------------------------------------------------------------------------------------------------------- words

RANKED = {
    "accuracy": "test accuracy", "nll": "test NLL", "ece": "test ECE", "pavpu_mean_entropy": "PAvPU at mean entropy",
    "ood_entropy": "OOD AUROC by entropy",
}  # fmt: skip


def verdict(value: Json, name: str) -> str:
    """Better, worse or level, by the 95 % interval of a difference; without one the seeds are too few to say."""
    return judged(value, MEASURES[name].larger_is_better)


def _findings(summary: Json) -> list[str]:
    rows = [summary["rows"][key] for key in summary["leading"]]
    places = [sentence for name in RANKED if (sentence := _place(rows, name))]
    labels = {key: row["label"] for key, row in summary["rows"].items()}
    chosen = [
        d for d in summary["differences"] if d["against"] == summary["chosen"] and d["method"] in summary["leading"]
    ]
    rivals = [sentence for d in summary["differences"] if (sentence := _beside_paper(d, labels))]
    return [*places, *(_against_chosen(d, labels) for d in chosen), *rivals]


def _place(rows: Sequence[Json], name: str) -> str:
    measure = MEASURES[name]
    known = [row for row in rows if row["measures"][name]]
    if len(known) < 2:
        return ""
    ranked = sorted(known, key=lambda row: row["measures"][name]["mean"], reverse=measure.larger_is_better)
    said = [
        f"“{row['label']}” ({show(row['measures'][name], name)}{' %' * measure.label.endswith('%')})" for row in ranked
    ]
    superlative = "Highest" if measure.larger_is_better else "Lowest"
    sentence = f"{superlative} {RANKED[name]}: {said[0]}, then {said[1]}"
    place = next((i for i, row in enumerate(ranked) if _base(row) == "lbd-unit"), 0)
    return sentence + (f"; {said[place]} is number {place + 1} of {len(ranked)}." if place > 1 else ".")


def _against_chosen(d: Json, labels: Mapping[str, str]) -> str:
    sides: dict[str, list[str]] = {}
    for name, value in d["measures"].items():
        if name != "seconds_per_epoch":
            sides.setdefault(verdict(value, name), []).append(MEASURES[name].label.removesuffix(", %"))
    lead = f"“{labels[d['method']]}” against “{labels[d['against']]}”, the fixed rate chosen on validation: "
    count = len(d["seeds"])
    if count < 3:
        return f"{lead}{count} shared seed{'s' * (count > 1)}, too few for an interval."
    words = [f"{'not told apart' if side == 'level' else side} in {', '.join(sides[side])}"
             for side in ("better", "worse", "level", "too few seeds") if side in sides]  # fmt: skip
    return f"{lead}{'; '.join(words)} (95 % t intervals, {count} shared seeds)."


def _beside_paper(d: Json, labels: Mapping[str, str]) -> str:
    rival = "mc" if d["against"] == "mc@0.5" else d["against"]
    ours, theirs = (METHODS[name].paper if name in METHODS else None for name in ("lbd-unit", rival))
    if d["method"] != "lbd-unit" or ours is None or theirs is None:
        return ""
    printed, value = ours.accuracy - theirs.accuracy, d["measures"]["accuracy"]
    said = verdict(value, "accuracy").replace("level", "not told apart")
    return (
        f"Accuracy of “{labels['lbd-unit']}” minus that of “{labels[d['against']]}”: {printed:+.2f} points in the paper,"
        f" {'+' * (value['mean'] >= 0)}{show(value, 'accuracy')} here ({said})."
    )


def _caveats(groups: Mapping[str, Sequence[Json]]) -> list[str]:
    """What a reader should know before comparing."""
    found = []
    for key, runs in groups.items():
        names = {name: None for run in runs for name in run["settings"] if name != "seed"}
        values = {name: sorted({str(run["settings"].get(name)) for run in runs}) for name in names}
        found += [f"Settings differ within {key}: {name} {', '.join(v)}." for name, v in values.items() if len(v) > 1]
    seeds = {key: len(runs) for key, runs in groups.items()}
    if len(set(seeds.values())) > 1:
        found.append(f"Seeds per method differ: {', '.join(f'{key} {count}' for key, count in seeds.items())}.")
    if min(seeds.values()) == 1:
        found.append("A method with one seed has no standard error.")
    protocols = {run["protocol"] for runs in groups.values() for run in runs}
    if len(protocols) > 1:
        found.append(f"Runs follow {len(protocols)} protocols, listed below: their numbers are not of one experiment.")
    commits = sorted({str(run["provenance"].get("commit", "unknown")) for runs in groups.values() for run in runs})
    return found + ([f"Runs come from {len(commits)} commits: {', '.join(commits)}."] if len(commits) > 1 else [])


# ------------------------------------------------------------------------------------------------------------- numbers


def difference(ours: Sequence[Json], theirs: Sequence[Json]) -> dict[str, Any] | None:
    """Every measure of ``ours`` minus that of ``theirs``, paired by seed; ``None`` where no seed is shared."""
    a, b = ({run["seed"]: _measures(run) for run in runs} for runs in (ours, theirs))
    seeds = sorted(a.keys() & b.keys())
    found = {}
    for name in MEASURES:
        if (d := paired((a[seed][name], b[seed][name]) for seed in seeds)) is not None:
            found[name] = d
    return {"seeds": seeds, "measures": found} if seeds else None


def _measures(run: Json) -> dict[str, float | None]:
    ood, epochs = run.get("ood") or {}, run["seconds"]["per_epoch"]
    return {name: run["test"].get(name) for name in METRICS} | {
        "ood_entropy": ood.get("entropy"),
        "ood_mutual_information": ood.get("mutual_information"),
        "seconds_per_epoch": sum(epochs) / len(epochs) if epochs else None,
    }


def show(value: Json | None, name: str, runs: int | None = None) -> str:
    """One measure as it is printed; where some runs lack it, of how many it is the mean."""
    if value is None:
        return "–"
    short = "" if runs in (None, value["n"]) else f" ({value['n']} of {runs})"
    return plus_minus(value, MEASURES[name].digits, MEASURES[name].scale) + short
