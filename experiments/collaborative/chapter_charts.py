"""The figures of a recommender comparison: NDCG against the drop rate, curves over epochs, keep rates by popularity.

A colour is a kind of dropout (learned, Concrete, Gaussian, fixed, none), a dash one of its members.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.collaborative.record import FIGURES, GRIDS, MEASURE, ROWS
from experiments.report import charts
from experiments.report.charts import Points, family
from experiments.report.records import Json
from experiments.report.style import FAMILIES
from experiments.report.svg import circle, figure, frame, line, panels, polyline, scale, text, ticks

__all__ = ["grid", "grid_png", "learned_points", "popularity", "styled", "training"]

MOST_POINTS = 30

_LEARNED = [name for grid in GRIDS.values() for name in grid.learned]

Scale = Callable[[float], float]


def styled(row: Json) -> dict[str, Any]:
    """The row with what the charts ask for: its colour's family and its dash."""
    declared = ROWS.get(row["method"])
    colour, dash = (declared.colour, declared.dash) if declared else ("other", "")
    return {**row, "family": colour, "dash": dash}


def training(rows: Sequence[Json]) -> list[str]:
    """For every group of methods a legend, validation NDCG@100 over epochs and, beside it, the mean of learned rates."""
    found = []
    for name, methods in FIGURES.items():
        group = charts.distinct(
            [styled(row) for method in methods for row in rows if row["method"] == method and len(row["curve"]) > 1]
        )
        learned = [row for row in group if row["keep_curve"]]
        if not group:
            continue
        figures = [_over_epochs("validation NDCG@100, %", group, "curve", 100)]
        figures += [_over_epochs("mean keep rate", learned, "keep_curve", 1)] if learned else []
        found.append(f"<h3>{name}</h3>{charts.legend(group)}{panels(*figures)}")
    return found


def _over_epochs(title: str, rows: Sequence[Json], part: str, scale: float) -> str:
    drawn = [(row, _thinned([(x, scale * y) for x, y in row[part]])) for row in rows]
    return charts.curves(title, "epoch", drawn)


def popularity(rows: Sequence[Json]) -> str:
    """Mean keep rate of items from the least to the most popular, of the first seed; empty without a rate per item."""
    drawn = []
    for row in map(styled, rows):
        rates = next((each for each in row["rates"] if each and each.get("by_popularity")), None)
        if rates is None or row["method"] not in _LEARNED:
            continue
        bins = rates["by_popularity"]
        total, below, line = sum(part["items"] for part in bins), 0, []
        for part in bins:
            line.append((100 * (below + part["items"] / 2) / total, part["keep"]))
            below += part["items"]
        drawn.append((row, line))
    if not drawn:
        return ""
    label = "items, from the least to the most popular, %"
    return charts.legend([row for row, _ in drawn]) + panels(charts.curves("mean keep rate", label, drawn))


def learned_points(encoder: str, rows: Mapping[str, Json]) -> list[dict[str, Any]]:
    """The rows that learn their rates on this encoder, each at the mean drop rate it ended with."""
    return [
        {"x": 1 - rows[key]["keep"]["mean"], **_measure(styled(rows[key]))}
        for key in GRIDS[encoder].learned
        if key in rows and rows[key]["keep"]
    ]


def grid(title: str, encoder: str, found: Json, rows: Mapping[str, Json]) -> str:
    """Test NDCG@100 against the drop rate: fixed rates joined by a line, learned ones where they ended."""
    width, height, left, right, top, bottom = 380, 270, 48, 12, 10, 226
    named = 150  # to the right, for names
    fixed = [{"x": point["rate"], **_measure(styled(rows[point["key"]]))} for point in found["points"]]
    learned = learned_points(encoder, rows)
    ends = [value for p in (*fixed, *learned) for value in (p["y"] - (p["se"] or 0), p["y"] + (p["se"] or 0))]
    margin = 0.05 * ((max(ends) - min(ends)) or 0.01)
    low, high = min(ends) - margin, max(ends) + margin
    x, y = scale(0, 1, left, width - right), scale(low, high, bottom, top)
    box = (left, top, width - right, bottom)
    marks = frame(x, y, box, (0, 0.2, 0.4, 0.6, 0.8, 1), ticks(low, high, 5), "drop rate")
    marks.append(polyline([(x(p["x"]), y(p["y"])) for p in fixed], "drawn m-mc"))
    for point in (*fixed, *learned):
        kind = "mc" if point in fixed else family(point["row"])
        ring = point["row"]["key"] == found["chosen"]
        error = point["se"] or 0
        marks.append(line(x(point["x"]), y(point["y"] - error), x(point["x"]), y(point["y"] + error), f"bars m-{kind}"))
        tip = f"{point['row']['label']}: {point['y']:.2f} at drop rate {point['x']:.2f}"
        size = 4.5 if point not in fixed else 3.5
        marks.append(circle(x(point["x"]), y(point["y"]), size, f"{'here' if ring else 'disc'} m-{kind}", tip))
    return figure(title, width + named, height, [*marks, *_labels(learned, x, y, width - right, bottom)])


def _labels(points: Sequence[Json], x: Scale, y: Scale, edge: float, bottom: float) -> list[str]:
    """Names to the right of the plot, one below the other in the order of their points, with a line to each."""
    gap, marks, above = 15.0, [], 0.0
    ordered = sorted(points, key=lambda point: y(point["y"]))
    for index, point in enumerate(ordered):
        place = min(max(y(point["y"]), above), bottom - gap * (len(ordered) - index - 1))
        above = place + gap
        css = f"lead m-{family(point['row'])}"
        marks.append(line(x(point["x"]) + 6, y(point["y"]), edge + 4, place, css))
        marks.append(text(edge + 8, place + 4, point["row"]["label"].removeprefix("SIVAE+"), "start", "tick"))
    return marks


def grid_png(summary: Json) -> bytes | None:
    """The same for every data set and encoder, for where a page does not fit; None where no grid was run."""
    from matplotlib.figure import Figure  # an extra: the page alone does without

    sets = summary["datasets"].items()
    shown = [(name, encoder, grid, data["rows"]) for name, data in sets for encoder, grid in data["grids"].items()]
    if not shown:
        return None
    lines, columns = (list(dict.fromkeys(each[axis] for each in shown)) for axis in (0, 1))
    drawing = Figure(figsize=(5.2 * len(columns), 4.2 * len(lines)), layout="constrained")
    panels = drawing.subplots(len(lines), len(columns), squeeze=False)
    for panel in panels.flat:
        panel.set_axis_off()

    def points(panel: Any, found: Sequence[Json], **style: Any) -> None:
        xs, ys, errors = ([p[part] or 0 for p in found] for part in ("x", "y", "se"))
        panel.errorbar(xs, ys, errors, linewidth=1.4, **style)

    for name, encoder, found, rows in shown:  # data sets below each other, encoders beside
        panel = panels[lines.index(name), columns.index(encoder)]
        panel.set_axis_on()
        fixed = [{"x": point["rate"], **_measure(rows[point["key"]])} for point in found["points"]]
        points(panel, fixed, color=FAMILIES["mc"][0], marker="o", markersize=4, label="fixed rates")
        for point, mark in zip(learned_points(encoder, rows), "Ds^vP", strict=False):
            colour = FAMILIES[family(point["row"])][0]
            points(panel, [point], color=colour, marker=mark, markersize=6, linestyle="", label=point["row"]["label"])
        panel.set_xlabel("drop rate")
        panel.set_ylabel("test NDCG@100, %")
        panel.set_title(f"{name}, {found['label']}", fontsize=10)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=7, frameon=False)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


def _measure(row: Json) -> dict[str, Any]:
    value = row["test"][MEASURE]
    return {"row": row, "y": 100 * value["mean"], "se": None if value["se"] is None else 100 * value["se"]}


def _thinned(line: Points) -> Points:
    """At most so many points that discs do not run into each other, the last among them."""
    step = -(-len(line) // MOST_POINTS)
    return [point for index, point in enumerate(line) if index % step == 0 or index == len(line) - 1]
