"""The figures that pages share: curves, reliability diagrams, histograms and bars, with legends that hide what they name.

A colour is a family of methods, a dash one of its members; both follow the reader's light or dark setting.
"""

import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from experiments.report.style import FAMILIES
from experiments.report.svg import circle, figure, frame, line, polyline, rect, scale, text, ticks

__all__ = [
    "Points",
    "Row",
    "bars",
    "curves",
    "distinct",
    "family",
    "histogram",
    "legend",
    "pavpu_png",
    "rates_by_layer",
    "reliability",
]

Row = Mapping[str, Any]
"""What is drawn: ``key`` and ``label``, ``family`` for its colour, and perhaps ``dash``."""
Points = Sequence[tuple[float, float]]

DASHES = ("", "7 3", "2 3", "9 2 2 2", "14 3", "4 2", "1 5", "14 3 2 3", "9 2 2 2 2 2")
MAX_DISCS = 12
"""Lines of at most so many points show each of them."""


def family(row: Row) -> str:
    """The family of a row: what gives it its colour."""
    name = row.get("family", "other")
    return name if name in FAMILIES else "other"


def distinct(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows with a dash that no other of their colour has: their own, or the next that is free."""
    taken: dict[str, set[str]] = {}
    found = []
    for row in rows:
        used, own = taken.setdefault(family(row), set()), row.get("dash", "")
        dash = own if own not in used else next((each for each in DASHES if each not in used), own)
        used.add(dash)
        found.append({**row, "dash": dash})
    return found


def legend(rows: Sequence[Row]) -> str:
    """A stroke and a name for each method."""
    items = "".join(
        f'<li data-series="{escape(row["key"])}"><svg viewBox="0 0 30 10" aria-hidden="true" class="m-{family(row)}">'
        f'<line x1="0" y1="5" x2="30" y2="5" class="drawn" stroke-dasharray="{row.get("dash", "")}"/></svg>'
        f"<span>{escape(row['label'])}</span></li>"
        for row in rows
    )
    return f'<ul class="legend">{items}</ul>'


def curves(title: str, x_label: str, drawn: Sequence[tuple[Row, Points]], zero: bool = False) -> str:
    """One line for each method over a common axis."""
    width, height, left, right, top, bottom = 380, 250, 48, 370, 10, 210
    points = [point for _, curve in drawn for point in curve]
    xs, ys = [x for x, _ in points], [y for _, y in points] + ([0.0] if zero else [])
    margin = 0.05 * ((max(ys) - min(ys)) or 0.01)
    low, high = min(ys) - margin, max(ys) + margin
    x, y = scale(min(xs), max(xs), left, right), scale(low, high, bottom, top)
    marks = frame(x, y, (left, top, right, bottom), ticks(min(xs), max(xs), 6), ticks(low, high, 5), x_label, zero=zero)
    for row, curve in reversed(drawn):  # the first method lies on top
        css, places = f"m-{family(row)}", [(x(a), y(b)) for a, b in curve]
        values = [(f"{a:g}", f"{b:.4g}") for a, b in curve]
        marks.append(polyline(places, f"drawn {css}", row.get("dash", ""), row["key"], row["label"], values))
        if len(curve) <= MAX_DISCS:
            marks += [circle(a, b, 2.2, f"disc {css}", series=row["key"]) for a, b in places]
    return figure(title, width, height, marks)


def rates_by_layer(drawn: Sequence[tuple[Row, Mapping[str, Points]]], layer_is: str = "") -> list[str]:
    """A figure for each layer that anybody has rates of over training."""
    layers = {layer: None for _, rates in drawn for layer in rates}
    return [
        curves(
            f"mean drop rate, {layer_is}{layer}",
            "epoch",
            [(row, rates[layer]) for row, rates in drawn if layer in rates],
        )
        for layer in layers
    ]


def reliability(row: Row) -> str:
    """Confidence against accuracy; a disc's area follows the number of examples in its bin."""
    size, left, top, bottom = 270, 46, 12, 232
    x, y = scale(0, 1, left, size - 12), scale(0, 1, bottom, top)
    curve, ece = row["reliability"], row["measures"]["ece"]
    total = sum(curve["count"])
    bins = zip(curve["confidence"], curve["accuracy"], curve["count"], strict=True)
    points = [p for p in bins if p[2] and p[0] is not None and p[1] is not None]
    marks = frame(x, y, (left, top, size - 12, bottom), (0, 0.5, 1), (0, 0.5, 1), "confidence")
    marks += [line(x(tick), top, x(tick), bottom, "grid") for tick in (0, 0.5, 1)]
    marks.append(line(x(0), y(0), x(1), y(1), "diagonal"))
    css = f"m-{family(row)}"
    marks.append(polyline([(x(sure), y(right)) for sure, right, count in points if count >= 10], f"curve {css}"))
    marks += [
        circle(
            x(sure), y(right), 2 + 9 * (count / total) ** 0.5, f"bubble {css}",
            f"{count:,} examples: {sure:.2f} sure, {right:.2f} right",
        )
        for sure, right, count in points
    ]  # fmt: skip
    marks.append(
        f'<text transform="translate(11 {y(0.5):.1f}) rotate(-90)" text-anchor="middle" class="tick">accuracy</text>'
    )
    if ece is not None:
        marks.append(text(x(0.97), y(0.05), f"ECE {ece['mean']:.3g}", "end"))
    return figure(row["label"], size, bottom + 40, marks)


def histogram(title: str, css: str, counts: Sequence[float], x_label: str = "drop rate") -> str:
    """Shares of values between 0 and 1, in bins of equal width."""
    width, height, left, top, bottom = 380, 210, 44, 12, 166
    shares = np.array(counts) / max(sum(counts), 1)
    edges = np.linspace(0, 1, len(shares) + 1)
    tallest = max(float(shares.max()), 1e-9) * 1.08
    x, y = scale(0, 1, left, width - 10), scale(0, tallest, bottom, top)
    marks = frame(x, y, (left, top, width - 10, bottom), (0, 0.25, 0.5, 0.75, 1), ticks(0, tallest, 3), x_label, ".0%")
    marks.append(line(left, bottom, width - 10, bottom, "axis"))
    marks += [
        rect(x(a) + 0.5, y(share), x(b) - x(a) - 1, bottom - y(share), f"bar {css}", f"{share:.1%} in {a:.2f}–{b:.2f}")
        for a, b, share in zip(edges[:-1], edges[1:], shares, strict=True)
        if share
    ]
    return figure(title, width, height, marks)


def bars(title: str, values: Mapping[str, float], css: str = "m-mc") -> str:
    """A bar from 0 for each name, one below the other."""
    width, row, left, top = 420, 24, 180, 6
    x = scale(0, max(*values.values(), 1e-12) * 1.12, left, width - 44)
    bottom = top + row * len(values)
    marks = [line(left, top, left, bottom, "axis")]
    for number, (name, value) in enumerate(values.items()):
        y = top + row * number
        short = name if len(name) < 26 else name[:23] + "…"
        marks += [
            text(left - 8, y + 16, short, "end"),
            rect(left, y + 4, x(value) - left, row - 8, f"bar flat {css}", f"{name}: {value:.4g}"),
            text(x(value) + 5, y + 16, f"{value:.3g}", "start", "tick"),
        ]
    return figure(title, width, bottom + 6, marks)


def pavpu_png(rows: Sequence[Row]) -> bytes:
    """PAvPU over thresholds with one standard error to either side, for where a page does not fit."""
    from matplotlib.figure import Figure  # an extra: the page alone does without

    drawing = Figure(figsize=(7.5, 4.6), layout="constrained")
    panel = drawing.subplots()
    for row in rows:
        curve, (colour, _) = row["pavpu_curve"], FAMILIES[family(row)]
        mean, error = (np.array([100 * (point[part] or 0) for point in curve["pavpu"]]) for part in ("mean", "se"))
        dash = tuple(map(float, row.get("dash", "").split()))
        style: Any = (0, dash) if dash else "-"
        panel.plot(curve["t"], mean, color=colour, linestyle=style, linewidth=1.6, label=row["label"])
        panel.fill_between(curve["t"], mean - error, mean + error, color=colour, alpha=0.12, linewidth=0)
    panel.set_xlabel("threshold t")
    panel.set_ylabel("PAvPU, %")
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    drawing.legend(loc="outside right upper", fontsize=8, frameon=False)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()
