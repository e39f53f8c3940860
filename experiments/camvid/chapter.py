"""CamVid runs as a chapter: tables beside the paper's, IoU by class, PAvPU over thresholds, and scenes with their uncertainty.

Every number comes from the records; maps of a few test images lie beside each of them, as an .npz of the same name.

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020, table 1 and figure 2.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from experiments.camvid.record import MEASURES, ROWS, read
from experiments.camvid.scenes import Maps, images, palette, read_maps, strips_png
from experiments.report import charts
from experiments.report.compose import Grid, Part
from experiments.report.page import Chapter, facts, findings, note, plus_minus, section
from experiments.report.records import Json
from experiments.report.statistics import Measure, judged, paired, stat
from experiments.report.svg import panels
from experiments.report.tables import Columns, html, pipes
from experiments.vision.camvid import CLASSES, load
from lbdrop.errors import DropoutError

__all__ = ["chapter", "part", "summarise"]


def part(files: Sequence[Path], data: Path | None) -> Part:
    """The chapter of these records, the same as a table and a summary, and two figures; ``data`` is a folder of CamVid."""
    runs = read(files)
    summary = summarise(runs)
    rows = list(summary["rows"].values())
    shown = _scenes(runs, data)
    return Part(
        chapter(summary, shown),
        [Grid("Test set, mean ± standard error", ("", "seeds", "acc. %", "IoU %", "PAvPU %"), [
            (row["label"], str(len(row["seeds"])),
             *(_show(row, name).replace(" ", "") for name in ("accuracy", "mean_iou", "pavpu_mean_entropy")))
            for row in rows])],
        [*summary["findings"], *summary["caveats"]],
        {
            "table.md": markdown(summary).encode(),
            "summary.json": (json.dumps(summary, indent=1, ensure_ascii=False) + "\n").encode(),
            "pavpu.png": charts.pavpu_png(_drawn(summary)),
            **({"scenes.png": strips_png(shown)} if shown else {}),
        },
    )  # fmt: skip


def summarise(runs: Sequence[Json]) -> dict[str, Any]:
    """Means and standard errors over the seeds of each method, differences paired by seed, and what they say."""
    recipes = sorted({run["recipe"] for run in runs})
    if len(recipes) > 1:
        raise DropoutError(f"recipes {', '.join(recipes)} are mixed; report on the runs of one at a time")
    place = {name: i for i, name in enumerate(ROWS)}
    groups: dict[str, list[Json]] = {}
    for run in sorted(runs, key=lambda run: (place.get(run["method"], len(ROWS)), run["seed"])):
        groups.setdefault(run["method"], []).append(run)
    rows = {name: _row(name, group) for name, group in groups.items()}
    differences = [
        {"against": name, "measures": _difference(groups["lbd"], group)}
        for name, group in groups.items()
        if "lbd" in groups and name != "lbd"
    ]
    protocols = sorted({run["protocol"] for run in runs})
    caveats = [f"Runs follow {len(protocols)} protocols: their numbers are not of one experiment."] * (
        len(protocols) > 1
    )
    fewest = min(len(group) for group in groups.values())
    caveats += [f"A method has {fewest} seed{'s' * (fewest > 1)}: too few for an interval."] * (fewest < 3)
    summary = {
        "experiment": "camvid", "kind": "summary", "recipe": recipes[0], "protocol": protocols,
        "seeds": sorted({run["seed"] for run in runs}), "rows": rows, "differences": differences,
        "paper": {name: row.paper for name, row in ROWS.items() if row.paper},
        "caveats": caveats,
        "runs": [{n: run[n] for n in ("file", "method", "seed", "settings", "provenance")} for run in runs],
    }  # fmt: skip
    return summary | {"findings": _findings(summary)}


def _row(key: str, runs: Sequence[Json]) -> dict[str, Any]:
    bins = range(len(runs[0]["reliability"]["count"]))

    def pooled(name: str, b: int) -> float | None:
        there = [
            (r["reliability"][name][b], r["reliability"]["count"][b]) for r in runs if r["reliability"]["count"][b]
        ]
        total = sum(count for _, count in there)
        return sum(value * count for value, count in there) / total if total else None

    return {
        "key": key, "method": key, "label": runs[0]["label"], "seeds": [run["seed"] for run in runs],
        "measures": {name: stat(run["test"][name] for run in runs) for name in MEASURES},
        "validation": {name: stat(run["validation"][name] for run in runs) for name in MEASURES},
        "class_iou": {name: stat(run["class_iou"].get(name) for run in runs) for name in CLASSES},
        "pavpu_curve": {"t": runs[0]["pavpu_curve"]["t"],
                        "pavpu": [stat(column) for column in zip(*(run["pavpu_curve"]["pavpu"] for run in runs), strict=True)]},
        "reliability": {**{name: [pooled(name, b) for b in bins] for name in ("confidence", "accuracy")},
                        "count": [sum(run["reliability"]["count"][b] for run in runs) for b in bins]},
        "rates": {name: stat(run["rates"][name]["mean"] for run in runs if name in run["rates"]) for name in runs[0]["rates"]},
        "seconds": stat(run["seconds"]["train"] for run in runs),
        "peak_bytes": stat(run.get("peak_bytes") for run in runs),
    }  # fmt: skip


def _difference(ours: Sequence[Json], theirs: Sequence[Json]) -> dict[str, Any]:
    other = {run["seed"]: run["test"] for run in theirs}
    pairs_of = {
        name: [(run["test"][name], other[run["seed"]][name]) for run in ours if run["seed"] in other]
        for name in MEASURES
    }
    return {name: d for name, each in pairs_of.items() if (d := paired(each)) is not None}


def _findings(summary: Json) -> list[str]:
    rows, said = summary["rows"], []
    for name in ("mean_iou", "accuracy", "pavpu_mean_entropy", "pavpu_sweep", "ece"):
        ranked = sorted(
            rows.values(), key=lambda row: row["measures"][name]["mean"], reverse=MEASURES[name].larger_is_better
        )
        order = ", ".join(f"{row['label']} {_show(row, name)}" for row in ranked)
        label = MEASURES[name].label
        said.append(f"{label[0].upper()}{label[1:]}, best first: {order}.")
    for d in summary["differences"]:
        value = d["measures"].get("mean_iou")
        if value is not None:
            said.append(
                f"Mean IoU of LBD minus that of {rows[d['against']]['label']}, paired by seed: {'+' * (value['mean'] > 0)}"
                f"{plus_minus(value, 2, 100)} points ({judged(value)})."
            )
    return said


# ------------------------------------------------------------------------------------------------------------ sections


def chapter(summary: Json, shown: Maps | None) -> Chapter:
    """All that the page says."""
    rows = _drawn(summary)
    curves = [(row, [(t, 100 * p["mean"]) for t, p in zip(*row["pavpu_curve"].values(), strict=True)]) for row in rows]
    lead = f"{len(summary['runs'])} rows of the recipe {summary['recipe']}, {len(summary['seeds'])} seeds."
    sections = [
        section("What came out", findings(summary["findings"]), *map(note, summary["caveats"])),
        section("On the test set, beside the paper", html({**_columns(MEASURES), **_paper()}, rows, _best(rows)), note(
            "± is the standard error over seeds; the best mean is bold, whether or not it is clearly best. IoU: intersection"
            " and union summed over the data set, averaged over the 11 classes, without void. PAvPU is of windows of 2 × 2"
            " pixels; the paper does not say at which threshold its mean is taken, so both readings are given.")),
        section("IoU of each class", html(_by_class(), rows)),
        section("Does uncertainty point at errors?", charts.legend(rows),
                panels(charts.curves("PAvPU of 2 × 2 pixels, %", "threshold t", curves)), note(
            "The share of windows that are certain and right or uncertain and wrong, where certain means a mean entropy of at"
            " most the validation images' least plus t times their range. Means over seeds.")),
        section("Are they as sure as they are right?", panels(*map(charts.reliability, rows))),
        section("Rates and cost", html(_cost(rows), rows)),
        section("Scenes", *(_pictures(shown) if shown else [
            note("No maps lie beside the records: lbdrop reproduce camvid writes them as .npz of the same name.")])),
        section("How it was run", *facts(summary["runs"], summary["protocol"])),
    ]  # fmt: skip
    return Chapter("CamVid: dropout in the middle of FC-DenseNet103", lead, sections)


def markdown(summary: Json) -> str:
    """The tables of the page."""
    rows = list(summary["rows"].values())
    names: Columns = {"method": lambda row: row["label"], "seeds": lambda row: str(len(row["seeds"]))}
    parts = [
        f"CamVid, recipe {summary['recipe']}: test set, mean ± standard error over seeds.",
        pipes({**names, **_columns(MEASURES), **_paper()}, rows),
        "IoU of each class, %.", pipes({"method": names["method"], **_by_class()}, rows),
        "Rates and cost.", pipes({"method": names["method"], **_cost(rows)}, rows),
    ]  # fmt: skip
    return "\n\n".join([*parts, *(f"- {each}" for each in (*summary["findings"], *summary["caveats"]))]) + "\n"


def _drawn(summary: Json) -> list[dict[str, Any]]:
    """The rows in their colours and dashes."""
    styled = []
    for row in summary["rows"].values():
        declared = ROWS.get(row["method"])
        colour, dash = (declared.colour, declared.dash) if declared else ("other", "")
        styled.append({**row, "family": colour, "dash": dash})
    return charts.distinct(styled)


def _show(row: Json, name: str) -> str:
    return plus_minus(row["measures"][name], MEASURES[name].digits, MEASURES[name].scale)


def _columns(names: Mapping[str, Measure]) -> Columns:
    def cell(name: str) -> Callable[[Json], str]:
        return lambda row: _show(row, name)

    return {names[name].label: cell(name) for name in names}


def _paper() -> Columns:
    def cell(i: int) -> Callable[[Json], str]:
        def shown(row: Json) -> str:
            declared = ROWS.get(row["method"])
            return f"{declared.paper[i]:.2f}" if declared and declared.paper else "–"

        return shown

    return {f"paper: {name}, %": cell(i) for i, name in enumerate(("accuracy", "mean IoU", "mean PAvPU"))}


def _by_class() -> Columns:
    def cell(name: str) -> Callable[[Json], str]:
        return lambda row: plus_minus(row["class_iou"][name], 1, 100) if row["class_iou"][name] else "–"

    return {name: cell(name) for name in CLASSES}


def _cost(rows: Sequence[Json]) -> Columns:
    def spread(row: Json) -> str:
        means = [rate["mean"] for rate in row["rates"].values()]
        return f"{min(means):.3f} to {max(means):.3f}"

    return {
        "rates, layer by layer": spread,
        "training on whole images, s": lambda row: plus_minus(row["seconds"], 0),
        "peak memory, GiB": lambda row: plus_minus(row["peak_bytes"], 1, 2**-30) if row["peak_bytes"] else "–",
    }


def _best(rows: Sequence[Json]) -> dict[str, str]:
    return {
        measure.label: (max if measure.larger_is_better else min)(rows, key=lambda row: row["measures"][name]["mean"])[
            "key"
        ]
        for name, measure in MEASURES.items()
    }


# ------------------------------------------------------------------------------------------------------------ pictures


def _scenes(runs: Sequence[Json], data: Path | None) -> Maps | None:
    """The maps of the first method's first seed, with images and truth if the data set is at hand."""
    place = {name: i for i, name in enumerate(ROWS)}
    first = min(runs, key=lambda run: (place.get(run["method"], len(ROWS)), run["seed"]))
    file = Path(first["file"]).with_suffix(".npz")
    if not file.exists():
        return None
    return read_maps(file, first["label"], None if data is None else load(data).test)


def _pictures(shown: Maps) -> list[str]:
    key = "".join(
        f'<li><i class="swatch" style="background:rgb{colour}"></i>{escape(name)}</li>' for name, colour in palette()
    )
    figures = [f'<figure><img src="{source}" alt="{escape(name)}"><figcaption>{escape(name)}</figcaption></figure>'
               for name, source in images(shown)]  # fmt: skip
    return [
        f"<p>{escape(shown.label)}: test images evenly spread over the split.</p>", f'<ul class="legend">{key}</ul>',
        panels(*figures, css="wide"),
        note(f"From left to right: {', '.join(shown.columns)}. Entropy from 0 (dark) to log 11, mutual information from 0 to"
             f" {shown.largest:.2f} nats."),
    ]  # fmt: skip
