"""The figures of a comparison: curves, reliability diagrams and histograms as inline SVG, PAvPU once more as a PNG.

A colour is a family of methods, a dash one of its members; both follow the reader's light or dark setting.
"""

import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from lbdrop.report.figures import _circle, _line, _scale, _svg, _text, ticks

__all__ = ["CHART_STYLE", "curves", "family", "histogram", "legend", "pavpu_png", "reliability"]

Row = Mapping[str, Any]
Points = Sequence[tuple[float, float]]

FAMILIES = {"lbd": "#c4561a", "concrete": "#2d7a46", "gaussian": "#8a4fb0", "mc": "#3569b0", "other": "#777b84"}
DARK = {"lbd": "#f0914f", "concrete": "#6cc48a", "gaussian": "#c79be6", "mc": "#7fabea", "other": "#a3a7b0"}
DASHES = {
    "lbd-layer": "7 3",
    "lbd-model": "2 3",
    "lbd-tuned-layer": "9 2 2 2",
    "lbd-tuned-model": "1 5",
    "mc-masks": "2 3",
}

CHART_STYLE = (
    ":root {" + "".join(f" --m-{name}: {colour};" for name, colour in FAMILIES.items()) + " }\n"
    "@media (prefers-color-scheme: dark) { :root {"
    + "".join(f" --m-{name}: {colour};" for name, colour in DARK.items())
    + " } .pictures img { filter: none; } }\n"
    + "".join(f".m-{name} {{ color: var(--m-{name}); }} " for name in FAMILIES)
    + """
.drawn { fill: none; stroke: currentColor; stroke-width: 1.8; }
.swatch[class*="m-"] { background: currentColor; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 0 0 14px; padding: 0; list-style: none;
  font-size: 0.875rem; }
.legend li { display: flex; align-items: center; gap: 7px; }
.legend svg { width: 30px; height: 10px; margin: 0; flex: none; }
h3 { font-size: 1rem; margin: 26px 0 8px; }
.digits b.class { white-space: normal; }
.chosen th, .chosen td { background: color-mix(in srgb, var(--m-mc) 12%, transparent); }
.scroll { overflow-x: auto; }
.panels + .panels { margin-top: 14px; }
.tight td, .tight th { padding-right: 10px; font-size: 0.875rem; }
.tight thead th { white-space: normal; vertical-align: bottom; }
@media (max-width: 700px) {
  .tight td { gap: 12px; padding-right: 0; white-space: normal; }
  .tight td::before { text-align: left; }
  .tight td span { flex: none; white-space: nowrap; text-align: right; }
}
"""
)


def family(row: Row) -> str:
    """The family of a method: what gives it its colour."""
    name = row.get("family") or row["method"].partition("-")[0]
    return name if name in FAMILIES else "other"


def _dash(row: Row, chosen: str | None) -> str:
    if "dash" in row:
        return row["dash"]
    return "7 3" if row["method"] == "mc" and row["key"] != chosen else DASHES.get(row["method"], "")


def legend(rows: Sequence[Row], chosen: str | None) -> str:
    """A stroke and a name for each method."""
    items = "".join(
        f'<li><svg viewBox="0 0 30 10" aria-hidden="true" class="m-{family(row)}"><line x1="0" y1="5" x2="30" y2="5"'
        f' class="drawn" stroke-dasharray="{_dash(row, chosen)}"/></svg>{escape(row["label"])}</li>'
        for row in rows
    )
    return f'<ul class="legend">{items}</ul>'


def curves(
    title: str, x_label: str, drawn: Sequence[tuple[Row, Points]], chosen: str | None, zero: bool = False
) -> str:
    """One line for each method over a common axis."""
    width, height, left, right, top, bottom = 380, 250, 44, 10, 10, 210
    points = [point for _, line in drawn for point in line]
    xs, ys = [x for x, _ in points], [y for _, y in points] + ([0.0] if zero else [])
    margin = 0.05 * ((max(ys) - min(ys)) or 0.01)
    low, high = min(ys) - margin, max(ys) + margin
    x, y = _scale(min(xs), max(xs), left, width - right), _scale(low, high, bottom, top)
    marks = []
    for tick in (round(tick, 10) + 0.0 for tick in ticks(low, high, 5)):  # + 0.0: no -0
        grid = "axis" if zero and tick == 0 else "grid"
        marks += [
            _line(left, y(tick), width - right, y(tick), grid),
            _text(left - 6, y(tick) + 4, f"{tick:g}", "end", "tick"),
        ]
    marks += [_text(x(tick), bottom + 16, f"{tick:g}", css="tick") for tick in ticks(min(xs), max(xs), 6)]
    marks.append(_text((left + width - right) / 2, height - 6, x_label, css="tick"))
    for row, line in reversed(drawn):  # the first method lies on top
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        dash = f' stroke-dasharray="{_dash(row, chosen)}"' if _dash(row, chosen) else ""
        marks.append(f'<polyline points="{path}" class="drawn m-{family(row)}"{dash}/>')
        marks += [
            _circle(x(a), y(b), 2.2, f"disc m-{family(row)}", f"{row['label']}: {b:.2f} at {a:g}") for a, b in line
        ]
    return _svg(title, width, height, marks)


def reliability(row: Row) -> str:
    """Confidence against accuracy; a disc's area follows the number of images in its bin."""
    size, left, top, bottom = 270, 38, 12, 232
    x, y = _scale(0, 1, left, size - 12), _scale(0, 1, bottom, top)
    curve, ece = row["reliability"], row["measures"]["ece"]
    total = sum(curve["count"])
    points = [p for p in zip(curve["confidence"], curve["accuracy"], curve["count"], strict=True) if p[2]]
    marks = []
    for tick in (0, 0.5, 1):
        marks += [_line(left, y(tick), size - 12, y(tick), "grid"), _line(x(tick), top, x(tick), bottom, "grid")]
        marks += [
            _text(left - 5, y(tick) + 4, f"{tick:g}", "end", "tick"),
            _text(x(tick), bottom + 14, f"{tick:g}", css="tick"),
        ]
    marks.append(_line(x(0), y(0), x(1), y(1), "diagonal"))
    path = " ".join(f"{x(sure):.1f},{y(right):.1f}" for sure, right, count in points if count >= 10)
    marks.append(f'<polyline points="{path}" class="curve m-{family(row)}"/>')
    for sure, right, count in points:
        tip = f"{count} images: {sure:.2f} sure, {right:.2f} right"
        marks.append(_circle(x(sure), y(right), 2 + 9 * (count / total) ** 0.5, f"bubble m-{family(row)}", tip))
    marks += [
        _text(x(0.5), bottom + 30, "confidence", css="tick"),
        f'<text transform="translate(11 {y(0.5):.1f}) rotate(-90)" text-anchor="middle" class="tick">accuracy</text>',
    ]
    if ece is not None:
        marks.append(_text(x(0.97), y(0.05), f"ECE {ece['mean']:.4f}", "end"))
    return _svg(row["label"], size, bottom + 36, marks)


def histogram(row: Row, layer: str) -> str:
    """Where the drop rates of one layer ended, all seeds together."""
    width, height, left, top, bottom = 300, 180, 42, 10, 142
    rates = row["rates"][layer]
    shares = np.array(rates["counts"]) / max(sum(rates["counts"]), 1)
    edges = np.linspace(0, 1, len(shares) + 1)
    tallest = max(float(shares.max()), 1e-9) * 1.08
    x, y = _scale(0, 1, left, width - 10), _scale(0, tallest, bottom, top)
    marks = []
    for tick in ticks(0, tallest, 3):
        marks += [
            _line(left, y(tick), width - 10, y(tick), "grid"),
            _text(left - 6, y(tick) + 4, f"{tick:.0%}", "end", "tick"),
        ]
    marks.append(_line(left, bottom, width - 10, bottom, "axis"))
    marks += [
        f'<rect x="{x(a) + 0.5:.1f}" y="{y(share):.1f}" width="{x(b) - x(a) - 1:.1f}" height="{bottom - y(share):.1f}"'
        f' class="bar m-{family(row)}"><title>{share:.1%} in {a:.2f}–{b:.2f}</title></rect>'
        for a, b, share in zip(edges[:-1], edges[1:], shares, strict=True)
        if share
    ]
    marks += [_text(x(tick), bottom + 15, f"{tick:g}", css="tick") for tick in (0, 0.25, 0.5, 0.75, 1)]
    marks.append(_text(x(0.5), height - 4, f"drop rate; mean {rates['mean']['mean']:.3f}", css="tick"))
    return _svg(f"{row['label']}: {layer}", width, height, marks)


def pavpu_png(rows: Sequence[Row], chosen: str | None) -> bytes:
    """PAvPU over thresholds with one standard error to either side, for where a page does not fit."""
    from matplotlib.figure import Figure  # an extra: the page alone does without

    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    panel = figure.subplots()
    for row in rows:
        curve, colour = row["pavpu_curve"], FAMILIES[family(row)]
        mean, error = (np.array([100 * (point[part] or 0) for point in curve["pavpu"]]) for part in ("mean", "se"))
        dash = tuple(map(float, _dash(row, chosen).split()))
        style: Any = (0, dash) if dash else "-"
        panel.plot(curve["t"], mean, color=colour, linestyle=style, linewidth=1.6, label=row["label"])
        panel.fill_between(curve["t"], mean - error, mean + error, color=colour, alpha=0.12, linewidth=0)
    panel.set_xlabel("threshold t")
    panel.set_ylabel("PAvPU, %")
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()
