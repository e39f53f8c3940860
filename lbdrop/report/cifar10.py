"""CIFAR-10 runs as one page that needs nothing else, a markdown table, a JSON summary and a figure.

Every number and sentence comes from the summary; the paper's numbers stand beside ours as it printed them.

Boluki, Ardywibowo, Dadaneh, Zhou and Qian, Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020.
"""

import base64
import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jaxtyping import UInt8
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.records import write_json
from lbdrop.report import charts, tables
from lbdrop.report.figures import panels
from lbdrop.report.page import _list, _section, document, facts, note, plus_minus, write_files
from lbdrop.report.runs import Json
from lbdrop.report.summary import MEASURES, show, verdict
from lbdrop.report.tables import BASIC, UNCERTAIN, best_of, columns, html
from lbdrop.vision.cifar10 import CLASSES

__all__ = ["FILES", "render", "write"]

FILES = ("index.html", "table.md", "summary.json", "pavpu.png")


def write(folder: Path, summary: dict[str, Any], images: UInt8[Tensor, "n 3 32 32"] | None = None) -> list[Path]:
    """Write all four files; pictures of test images are drawn into the page where they are given."""
    rows = [summary["rows"][key] for key in summary["shown"]]
    texts = (
        render(summary, images).encode(),
        tables.markdown(summary).encode(),
        charts.pavpu_png(rows, summary["chosen"]),
    )
    write_files(folder, dict(zip((FILES[0], FILES[1], FILES[3]), texts, strict=True)))
    write_json(folder / FILES[2], summary)
    return [folder / name for name in FILES]


def render(summary: Json, images: UInt8[Tensor, "n 3 32 32"] | None = None) -> str:
    """The whole page."""
    rows, chosen = [summary["rows"][key] for key in summary["shown"]], summary["chosen"]
    parts = [
        _header(summary, rows),
        _section("What came out", _list(summary["findings"]), *map(note, summary["caveats"])),
        _section("Beside the paper", html(tables.paper_columns(summary), tables.paper_rows(summary)),
                 note(tables.NOTE_ON_PAVPU)),
        _section("On the test set", *_test_tables(summary, rows)),
        _section("The best fixed rate", *_grid(summary)),
        _section("Does uncertainty point at errors?", *_pavpu(rows, chosen)),
        _section("Are they as sure as they are right?", panels(*map(charts.reliability, rows)), note(
            "Test images of all seeds by confidence. On the diagonal the two agree; above it the network is too cautious,"
            " below it too sure. A disc's area follows the number of images; bins of fewer than ten are left unjoined.")),
        _section("The learned rates", *_rates(rows)),
        _section("Under corruption", *_corruption(rows, chosen)),
        _section("The most and the least certain test images", *_certainty(rows[0], images)),
        _section("How it was run", *facts(summary["runs"], summary["protocol"])),
    ]  # fmt: skip
    # Numbers stay whole at line ends.
    return document("lbdrop: CIFAR-10", [p.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%") for p in parts],
                    charts.CHART_STYLE)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ sections


def _header(summary: Json, rows: Sequence[Json]) -> str:
    runs, seeds = len(summary["runs"]), len(summary["seeds"])
    return (
        "<header>\n<h1>CIFAR-10: dropout rates, fixed and learned</h1>\n"
        f"<p>{runs} runs of the recipe {escape(summary['recipe'])}: {len(rows)} methods side by side, up to {seeds}"
        f" seed{'s' * (seeds > 1)} each.</p>\n</header>"
    )


def _test_tables(summary: Json, rows: Sequence[Json]) -> list[str]:
    seeds: tables.Columns = {"seeds": lambda row: str(len(row["seeds"]))}
    memory: tables.Columns = {
        "peak memory, GiB": lambda row: plus_minus(row["peak_bytes"], 2, 2**-30) if row["peak_bytes"] else "–"
    }
    strangers = next((row["ood"] for row in rows if row["ood"]), None)
    foreign = [
        "<h3>Telling foreign images apart</h3>", html(columns(tables.FOREIGN), rows, best_of(rows, tables.FOREIGN)),
        note(f"Test images against {strangers['count']:,} others: {strangers['set']}."),
    ] if strangers else [note("No run was shown foreign images.")]  # fmt: skip
    return [
        "<h3>Accuracy and calibration</h3>", html({**seeds, **columns(BASIC)}, rows, best_of(rows, BASIC)),
        "<h3>Uncertainty</h3>", html(columns(UNCERTAIN), rows, best_of(rows, UNCERTAIN)),
        note("± is the standard error over seeds. The best mean of each column is bold, whether or not it is clearly"
              " best. AURC: error rate averaged over coverage, least certain images refused first; AUROC of errors:"
              " right against wrong by entropy."),
        *foreign, "<h3>Rates and cost</h3>",
        html({**tables.rate_columns(rows), **columns(["seconds_per_epoch"]), **memory}, rows),
    ]  # fmt: skip


def _grid(summary: Json) -> list[str]:
    grid = [row for row in summary["rows"].values() if row["method"] == "mc"]
    if not grid:
        return ["<p>No run has a fixed rate with masks at prediction (method mc).</p>"]
    chosen = summary["rows"][summary["chosen"]]
    parts = [
        f"<p>Lowest mean validation NLL: {escape(chosen['label'])}, tinted. Bold: the best on the test set.</p>",
        html(tables.grid_columns(), grid, best_of(grid, (*BASIC, "pavpu_mean_entropy")), chosen["key"]),
    ]
    differences = [d for d in summary["differences"] if d["against"] == chosen["key"]]
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
        html(learned, rows),
        note("Mean ± standard error of the difference over shared seeds; from three seeds on with its 95 % t interval, not"
              " corrected for the number of comparisons. Level: the interval holds 0."),
    ]  # fmt: skip


def _pavpu(rows: Sequence[Json], chosen: str | None) -> list[str]:
    drawn = {row["key"]: [(t, 100 * p["mean"]) for t, p in _curve(row)] for row in rows}
    figures = [charts.curves("PAvPU, %", "threshold t", [(row, drawn[row["key"]]) for row in rows], chosen)]
    if chosen is not None:
        base = dict(drawn[chosen])
        gaps = [(row, [(t, p - base[t]) for t, p in drawn[row["key"]] if t in base]) for row in rows]
        title = f"PAvPU minus that of {next(row['label'] for row in rows if row['key'] == chosen)}, points"
        figures.append(charts.curves(title, "threshold t", [gap for gap in gaps if gap[1]], chosen, zero=True))
    return [
        charts.legend(rows, chosen), panels(*figures),
        note("PAvPU: the share of images that are certain and right or uncertain and wrong, where certain means an"
              " entropy of at most the validation images' least plus t times their range. Means over seeds."),
    ]  # fmt: skip


def _curve(row: Json) -> list[tuple[float, Json]]:
    return [(t, p) for t, p in zip(row["pavpu_curve"]["t"], row["pavpu_curve"]["pavpu"], strict=True) if p]


def _rates(rows: Sequence[Json]) -> list[str]:
    learned = [row for row in rows if row["method"] not in tables.FIXED and row["rates"]]
    if not learned:
        return ["<p>No run has learned rates.</p>"]
    drawn = [panels(*(charts.histogram(row, layer) for layer in row["rates"])) for row in learned]
    return [*drawn, note("All seeds together, in bins of equal width.")]


def _corruption(rows: Sequence[Json], chosen: str | None) -> list[str]:
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
            figures.append(charts.curves(f"{name}: {title}", "severity", drawn, chosen))
        parts.append(panels(*figures))
    return [charts.legend(rows, chosen), *parts, note("Severity 0: the test images as they are.")]


def _certainty(row: Json, images: UInt8[Tensor, "n 3 32 32"] | None) -> list[str]:
    found = row["certainty"]
    parts = [f"<p>By predictive entropy under {escape(row['label'])}, seed {found['seed']}.</p>"]
    for end in ("least", "most"):
        wrong = sum(image["predicted"] != image["truth"] for image in found[end])
        parts.append(f"<h3>{end.capitalize()} certain: {wrong} of {len(found[end])} wrong</h3>")
        if images is None:
            head = "<tr><th>test image</th><th>is</th><th>said to be</th><th>entropy, nats</th></tr>"
            lines = "".join(
                f"<tr><th scope=row>{image['index']}</th><td>{_class(image['truth'])}</td>"
                f"<td>{_class(image['predicted'])}</td><td>{image['entropy']:.3g}</td></tr>"
                for image in found[end]
            )
            parts.append(f'<table class="plain"><thead>{head}</thead><tbody>{lines}</tbody></table>')
        else:
            parts.append(
                f'<div class="digits pictures">{"".join(_picture(image, images) for image in found[end])}</div>'
            )
    return parts


def _picture(image: Json, images: UInt8[Tensor, "n 3 32 32"]) -> str:
    from matplotlib.image import imsave

    if not 0 <= image["index"] < len(images):
        raise DropoutError(
            f"test image {image['index']}: want one of {len(images):,}; give --data the set that was tested on"
        )
    buffer = io.BytesIO()
    imsave(buffer, images[image["index"]].permute(1, 2, 0).contiguous().numpy(), format="png")
    right, truth, said = image["predicted"] == image["truth"], _class(image["truth"]), _class(image["predicted"])
    verdict_on_it = f"✓ {truth}" if right else f"✗ says {said}, is {truth}"
    return (
        f'<figure class="{"right" if right else "wrong"}"><img src="data:image/png;base64,'
        f'{base64.b64encode(buffer.getvalue()).decode()}" width="32" height="32" alt="test image {image["index"]}">'
        f'<figcaption><b class="class">{verdict_on_it}</b><br>{image["entropy"]:.3g} nats</figcaption></figure>'
    )


def _class(number: int) -> str:
    return CLASSES[number] if 0 <= number < len(CLASSES) else str(number)
