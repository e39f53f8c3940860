"""CIFAR-10 runs as a chapter of a page, a markdown table, a JSON summary and a figure.

Every number and sentence comes from the summary; the paper's numbers stand beside ours as it printed them.

Boluki, Ardywibowo, Dadaneh, Zhou and Qian, Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020.
"""

import base64
import io
import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jaxtyping import UInt8
from torch import Tensor

from experiments.cifar10 import record, tables
from experiments.cifar10.record import FIXED_RATE, MEASURES
from experiments.cifar10.summary import show, summarise, verdict
from experiments.cifar10.tables import BASIC, UNCERTAIN, best_of, columns
from experiments.report import charts
from experiments.report.compose import Grid, Part
from experiments.report.page import Chapter, Section, facts, findings, note, plus_minus, section
from experiments.report.pictures import picture
from experiments.report.records import Json
from experiments.report.svg import panels
from experiments.report.tables import Columns, html
from experiments.vision.cifar10 import CLASSES, load
from lbdrop.errors import DropoutError

__all__ = ["chapter", "part"]


def part(files: Sequence[Path], data: Path | None) -> Part:
    """The chapter of these records, the same as a table and a summary, and PAvPU as a figure."""
    summary = summarise(record.read(files))
    images = load(data, download=False, progress=False).test if data is not None else None
    rows = _drawn(summary, summary["leading"])
    return Part(
        chapter(summary, images),
        [_grid_of(summary)],
        [*summary["findings"], *summary["caveats"]],
        {
            "table.md": tables.markdown(summary).encode(),
            "summary.json": (json.dumps(summary, indent=1, ensure_ascii=False) + "\n").encode(),
            "pavpu.png": charts.pavpu_png(rows),
        },
    )


def _styled(row: Json) -> dict[str, Any]:
    """The row in its method's colour and dash."""
    method = record.method_of(row)
    return {**row, "family": method.colour, "dash": method.dash}


def _drawn(summary: Json, keys: Sequence[str]) -> list[dict[str, Any]]:
    """These rows, as charts draw them side by side."""
    return charts.distinct([_styled(summary["rows"][key]) for key in keys])


def _grid_of(summary: Json) -> Grid:
    lines = []
    for key in summary["leading"]:
        row = summary["rows"][key]
        # Without spaces around ± the table fits 80 columns.
        cells = (show(row["measures"][name], name).replace(" ", "") for name in ("accuracy", "nll", "ece"))
        lines.append((row["label"], str(len(row["seeds"])), *cells))
    return Grid("Test set, mean ± standard error", ("", "seeds", "acc. %", "NLL", "ECE"), lines)


def chapter(summary: Json, images: UInt8[Tensor, "n 3 32 32"] | None = None) -> Chapter:
    """All that the page says; pictures of test images are drawn into it where they are given."""
    rows, chosen = _drawn(summary, summary["leading"]), summary["chosen"]
    count, seeds = len(summary["runs"]), len(summary["seeds"])
    lead = (
        f"{count} runs of the recipe {summary['recipe']}: {len(rows)} methods side by side, up to {seeds}"
        f" seed{'s' * (seeds > 1)} each."
    )
    sections = [
        section("What came out", findings(summary["findings"]), *map(note, summary["caveats"])),
        section("Beside the paper", html(tables.paper_columns(summary), list(map(_styled, tables.paper_rows(summary)))),
                 note(tables.NOTE_ON_PAVPU)),
        section("On the test set", *_test_tables(summary, rows)),
        section("The best fixed rate", *_grid(summary)),
        section("Does uncertainty point at errors?", *_pavpu(rows, chosen)),
        section("Are they as sure as they are right?", panels(*map(charts.reliability, rows)), note(
            "Test images of all seeds by confidence. On the diagonal the two agree; above it the network is too cautious,"
            " below it too sure. A disc's area follows the number of images; bins of fewer than ten are left unjoined.")),
        *_over_training(rows),
        section("Where the learned rates ended", *_rates(rows)),
        section("Under corruption", *_corruption(rows)),
        section("The most and the least certain test images", *_certainty(rows[0], images)),
        section("How it was run", *facts(summary["runs"], summary["protocol"]),
                note("Settings that differ between methods are in summary.json.")),
    ]  # fmt: skip
    return Chapter("CIFAR-10: dropout rates, fixed and learned", lead, sections)


# ------------------------------------------------------------------------------------------------------------ sections


def _test_tables(summary: Json, rows: Sequence[Json]) -> list[str]:
    seeds: Columns = {"seeds": lambda row: str(len(row["seeds"]))}
    memory: Columns = {
        "peak memory, GiB": lambda row: plus_minus(row["peak_bytes"], 2, 2**-30) if row["peak_bytes"] else "–"
    }
    strangers = next((row["ood"] for row in rows if row["ood"]), None)
    foreign = [
        "<h3>Telling foreign images apart</h3>", html(columns(tables.FOREIGN), rows, best_of(rows, tables.FOREIGN)),
        note(f"Test images against {strangers['count']:,} others: {strangers['set']}."),
    ] if strangers else [note("No run was shown foreign images.")]  # fmt: skip
    every = [_styled(summary["rows"][key]) for key in summary["shown"]]
    chosen, all_rows = "", ""
    if len(every) > len(rows):
        chosen = note(
            "Of a method's starts and speeds of its rates, the one with the lowest mean validation NLL stands for it."
        )
        table = html({**seeds, **columns(MEASURES)}, every)
        all_rows = f"<details><summary>All {len(every)} rows: every start and speed</summary>{table}</details>"
    return [
        chosen, "<h3>Accuracy and calibration</h3>", html({**seeds, **columns(BASIC)}, rows, best_of(rows, BASIC)),
        "<h3>Uncertainty</h3>", html(columns(UNCERTAIN), rows, best_of(rows, UNCERTAIN)),
        note("± is the standard error over seeds. The best mean of each column is bold, whether or not it is clearly"
              " best. AURC: error rate averaged over coverage, least certain images refused first; AUROC of errors:"
              " right against wrong by entropy."),
        *foreign, "<h3>Rates and cost</h3>",
        html({**tables.rate_columns(rows), **columns(["seconds_per_epoch"]), **memory}, rows), all_rows,
    ]  # fmt: skip


def _grid(summary: Json) -> list[str]:
    grid = [_styled(row) for row in summary["rows"].values() if row["method"] == "mc"]
    if not grid:
        return ["<p>No run has a fixed rate with masks at prediction (method mc).</p>"]
    chosen = summary["rows"][summary["chosen"]]
    parts = [
        f"<p>Lowest mean validation NLL: {escape(chosen['label'])}, tinted. Bold: the best on the test set.</p>",
        html(tables.grid_columns(), grid, best_of(grid, (*BASIC, "pavpu_mean_entropy")), chosen["key"]),
    ]
    differences = [
        d for d in summary["differences"] if d["against"] == chosen["key"] and d["method"] in summary["leading"]
    ]
    if not differences:
        return [*parts, "<p>No seed is shared with a learned rate: there is no paired difference to show.</p>"]

    def cell(d: Json) -> Callable[[Json], str]:
        def shown(row: Json) -> str:
            name, value = row["key"], d["measures"].get(row["key"])
            if value is None:
                return "–"
            scale, digits = MEASURES[name].scale, MEASURES[name].digits
            ends = value["interval"]
            between = f"\n[{ends[0] * scale:.{digits}f}, {ends[1] * scale:.{digits}f}]" if ends else ""
            return f"{'+' * (value['mean'] > 0)}{show(value, name)}{between} {verdict(value, name)}"

        return shown

    learned = {
        f"{summary['rows'][d['method']]['label']} ({len(d['seeds'])} seed{'s' * (len(d['seeds']) > 1)})": cell(d)
        for d in differences
    }
    rows = [{"key": name, "label": measure.label} for name, measure in MEASURES.items()]
    return [
        *parts,
        f"<h3>Learned minus {escape(chosen['label'])}, paired by seed</h3>",
        html(learned, rows, first="measure"),
        note("Mean ± standard error of the difference over shared seeds; from three seeds on with its 95 % t interval, not"
              " corrected for the number of comparisons. Level: the interval holds 0."),
    ]  # fmt: skip


def _pavpu(rows: Sequence[Json], chosen: str | None) -> list[str]:
    drawn = {row["key"]: [(t, 100 * p["mean"]) for t, p in _curve(row)] for row in rows}
    figures = [charts.curves("PAvPU, %", "threshold t", [(row, drawn[row["key"]]) for row in rows])]
    if chosen is not None:
        base = dict(drawn[chosen])
        gaps = [(row, [(t, p - base[t]) for t, p in drawn[row["key"]] if t in base]) for row in rows]
        title = f"PAvPU minus that of {next(row['label'] for row in rows if row['key'] == chosen)}, points"
        figures.append(charts.curves(title, "threshold t", [gap for gap in gaps if gap[1]], zero=True))
    return [
        charts.legend(rows), panels(*figures),
        note("PAvPU: the share of images that are certain and right or uncertain and wrong, where certain means an"
              " entropy of at most the validation images' least plus t times their range. Means over seeds."),
    ]  # fmt: skip


def _curve(row: Json) -> list[tuple[float, Json]]:
    return [(t, p) for t, p in zip(row["pavpu_curve"]["t"], row["pavpu_curve"]["pavpu"], strict=True) if p]


def _over_training(rows: Sequence[Json]) -> list[Section]:
    learned = [row for row in rows if row["rates_over_training"]]
    if not learned:
        return []
    figures = charts.rates_by_layer([(row, row["rates_over_training"]) for row in learned])
    return [
        section(
            "Rates over training", charts.legend(learned), panels(*figures), note("Means over units and over seeds.")
        )
    ]


def _rates(rows: Sequence[Json]) -> list[str]:
    learned = [row for row in rows if row["method"] not in FIXED_RATE and row["rates"]]
    if not learned:
        return ["<p>No run has learned rates.</p>"]
    # One rate a layer and seed makes no histogram: its mean stands in the table above.
    many = [row for row in learned if all(sum(r["counts"]) > len(row["seeds"]) for r in row["rates"].values())]
    if not many:
        return ["<p>No run has learned a rate for every unit; the mean rates of layers stand in the table above.</p>"]
    drawn = [
        panels(
            *(
                charts.histogram(
                    f"{row['label']}: {layer}", f"m-{charts.family(row)}", rates["counts"],
                    f"drop rate; mean {rates['mean']['mean']:.3f}",
                )
                for layer, rates in row["rates"].items()
            )
        )
        for row in many
    ]  # fmt: skip
    return [*drawn, note("Rates per unit, all seeds together, in bins of equal width.")]


def _corruption(rows: Sequence[Json]) -> list[str]:
    names = {name: None for row in rows for name in row["corruptions"]}
    if not names:
        return ["<p>No run was tested on corrupted images.</p>"]
    parts = []
    for name in names:
        figures = []
        for measure, title, scale in (("accuracy", "accuracy, %", 100), ("ece", "ECE", 1)):
            drawn = []
            for row in rows:
                points = [{"severity": 0, measure: row["measures"][measure]}, *row["corruptions"].get(name, [])]
                line = [(float(p["severity"]), scale * p[measure]["mean"]) for p in points if p[measure]]
                drawn += [(row, line)] if len(line) > 1 else []
            figures.append(charts.curves(f"{name}: {title}", "severity", drawn))
        parts.append(panels(*figures))
    return [charts.legend(rows), *parts, note("Severity 0: the test images as they are.")]


def _certainty(row: Json, images: UInt8[Tensor, "n 3 32 32"] | None) -> list[str]:
    found = row["certainty"]
    parts = [f"<p>By predictive entropy under {escape(row['label'])}, seed {found['seed']}.</p>"]
    for end in ("least", "most"):
        wrong = sum(image["predicted"] != image["truth"] for image in found[end])
        parts.append(f"<h3>{end.capitalize()} certain: {wrong} of {len(found[end])} wrong</h3>")
        if images is None:
            shown: Columns = {
                "is": lambda image: _class(image["truth"]),
                "said to be": lambda image: _class(image["predicted"]),
                "entropy, nats": lambda image: f"{image['entropy']:.3g}",
            }
            named = [
                image | {"key": str(image["index"]), "label": f"test image {image['index']}"} for image in found[end]
            ]
            parts.append(html(shown, named, first="image"))
        else:
            parts.append(f'<div class="pictures">{"".join(_picture(image, images) for image in found[end])}</div>')
    return parts if images is not None else [*parts, note("lbdrop report --data CIFAR-10 draws the images.")]


def _picture(image: Json, images: UInt8[Tensor, "n 3 32 32"]) -> str:
    from matplotlib.image import imsave

    if not 0 <= image["index"] < len(images):
        raise DropoutError(
            f"test image {image['index']}: want one of {len(images):,}; give --data the set that was tested on"
        )
    buffer = io.BytesIO()
    imsave(buffer, images[image["index"]].permute(1, 2, 0).contiguous().numpy(), format="png")
    right, truth, said = image["predicted"] == image["truth"], _class(image["truth"]), _class(image["predicted"])
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return picture(
        source, f"test image {image['index']}", right, f"✓ {truth}" if right else f"✗ says {said}, is {truth}",
        image["entropy"], len(CLASSES),
    )  # fmt: skip


def _class(number: int) -> str:
    return CLASSES[number] if 0 <= number < len(CLASSES) else str(number)
