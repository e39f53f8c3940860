"""The demo's own figures: every measure seed by seed, and where the rates of each layer ended."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.demo.record import COLOURS, CONTESTANTS, LAYERS
from experiments.report import charts
from experiments.report.records import Json
from experiments.report.svg import circle, figure, frame, line, rect, scale, text, ticks

__all__ = ["METRICS", "dots", "rates", "styled"]

METRICS = {"nll": "NLL", "ece": "ECE", "accuracy": "accuracy"}


def styled(entry: Json) -> dict[str, Any]:
    """The entry with what charts and tables ask for: key, label, colour and dash."""
    name = entry["name"]
    dash = CONTESTANTS[name].dash if name in CONTESTANTS else ""
    style = {"key": name, "label": name, "family": COLOURS[entry["kind"]], "dash": dash}
    return {**entry, **style, "measures": entry["test"]}


def dots(entries: Sequence[Json], metric: str) -> str:
    """One measure: a line for each contestant, a ring for each seed, the mean with its standard error."""
    width, row, top = 300, 28, 6
    bottom = top + row * len(entries)
    values = [part["test"][metric] for entry in entries for part in entry["per_seed"]]
    ends = [e["test"][metric]["mean"] + sign * (e["test"][metric]["se"] or 0) for e in entries for sign in (-1, 1)]
    low, high = min(values + ends), max(values + ends)
    margin = 0.06 * ((high - low) or 0.01)
    low, high = low - margin, high + margin
    x = scale(low, high, 124, width - 10)
    marks = []
    for tick in ticks(low, high):
        marks += [line(x(tick), top, x(tick), bottom, "grid"), text(x(tick), bottom + 16, f"{tick:g}", css="tick")]
    for number, entry in enumerate(entries):
        y, css, test = top + row * (number + 0.5), f"m-{charts.family(entry)}", entry["test"][metric]
        marks.append(text(114, y + 4, entry["name"], "end"))
        marks += [
            circle(
                x(part["test"][metric]), y, 4, f"ring {css}",
                f"{entry['name']}, seed {part['seed']}: {part['test'][metric]:.4f}",
            )
            for part in entry["per_seed"]
        ]  # fmt: skip
        if test["se"] is not None:
            marks.append(line(x(test["mean"] - test["se"]), y, x(test["mean"] + test["se"]), y, f"error {css}"))
        marks.append(circle(x(test["mean"]), y, 4.5, f"disc {css}", f"{entry['name']}, mean: {test['mean']:.4f}"))
    return figure(f"Test {METRICS[metric]}", width, bottom + 22, marks)


def rates(result: Json, layer: str) -> str:
    """Where the learned rates of one layer ended."""
    width, height, left, top, bottom = 380, 210, 38, 12, 166
    found: dict[str, list[float]] = {"per unit": [], "per layer": []}
    for entry in result["contestants"]:
        for part in entry["per_seed"] if entry["kind"] in found else ():
            found[entry["kind"]] += part["rates"][layer]
    units = found["per unit"]
    counts, edges = np.histogram(units, bins=25, range=(0, 1))
    shares = counts / max(len(units), 1)
    tallest = max(float(shares.max()), 1e-9) * 1.08
    x, y = scale(0, 1, left, width - 10), scale(0, tallest, bottom, top)
    box = (left, top, width - 10, bottom)
    marks = frame(x, y, box, (0, 0.25, 0.5, 0.75, 1), ticks(0, tallest, 3), "drop rate", ".0%")
    marks.append(line(left, bottom, width - 10, bottom, "axis"))
    marks += [
        rect(
            x(a) + 0.5, y(share), x(b) - x(a) - 1, bottom - y(share), "bar m-lbd",
            f"{share:.1%} of units in {a:.2f}–{b:.2f}",
        )
        for a, b, share in zip(edges[:-1], edges[1:], shares, strict=True)
        if share
    ]  # fmt: skip
    start = result["settings"]["start_rate"]
    marks.append(line(x(start), top, x(start), bottom, "start"))
    marks += [line(x(rate), top, x(rate), bottom, "layer") for rate in found["per layer"]]
    return figure(f"Behind the {LAYERS[layer]}", width, height, marks)
