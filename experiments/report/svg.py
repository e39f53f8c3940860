"""Drawing in inline SVG: marks, scales, ticks, and the frame of a figure.

What a mark stands for is its ``<title>``, which a page without a script shows as it is; with one, the value nearest to the
pointer is told. Marks of one series carry its name, so that a legend can hide them.
"""

from collections.abc import Callable, Sequence
from html import escape

import numpy as np

__all__ = ["circle", "figure", "frame", "line", "panels", "polyline", "rect", "scale", "text", "ticks"]

Scale = Callable[[float], float]


def panels(*figures: str, css: str = "") -> str:
    """Figures side by side, as many as fit."""
    return f'<div class="panels{" " * bool(css)}{css}">' + "".join(figures) + "</div>"


def figure(title: str, width: float, height: float, marks: Sequence[str]) -> str:
    """A drawing with its title above."""
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {width:g} {height:g}" role="img"'
        f' aria-label="{escape(title)}">' + "".join(marks) + "</svg></figure>"
    )


def text(x: float, y: float, words: str, anchor: str = "middle", css: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str, series: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"{_of(series)}/>'


def circle(x: float, y: float, r: float, css: str, title: str = "", series: str = "") -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" class="{css}"{_of(series)}>{_tip(title)}</circle>'


def rect(x: float, y: float, width: float, height: float, css: str, title: str = "", series: str = "") -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{css}"{_of(series)}>'
        f"{_tip(title)}</rect>"
    )


def polyline(
    points: Sequence[tuple[float, float]],
    css: str,
    dash: str = "",
    series: str = "",
    label: str = "",
    values: Sequence[tuple[str, str]] = (),
) -> str:
    """A line; ``values`` are what its points stand for, x and y, which the page tells after ``label``."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    data = f' data-label="{escape(label)}" data-values="{" ".join(f"{x}|{y}" for x, y in values)}"' if values else ""
    return f'<polyline points="{path}" class="{css}"{dashes}{_of(series)}{data}/>'


def scale(low: float, high: float, start: float, end: float) -> Scale:
    """Values from low to high laid out from start to end."""
    return lambda value: start + (value - low) / ((high - low) or 1.0) * (end - start)


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Round numbers between two ends, as many as ``most`` allows.

    >>> ticks(0.941, 0.957)
    [0.945, 0.95, 0.955]
    """
    power = 10.0 ** np.floor(np.log10((high - low) or 1.0))
    tried = (
        np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step
        for step in power * np.array([0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
    )
    return next([round(float(tick), 10) + 0.0 for tick in even] for even in tried if len(even) <= most)  # + 0.0: no -0


def frame(
    x: Scale, y: Scale, box: tuple[float, float, float, float], xs: Sequence[float], ys: Sequence[float], x_label: str,
    form: str = "g", zero: bool = False,
) -> list[str]:  # fmt: skip
    """Grid, ticks and the name of the axis below, for a plot in the box (left, top, right, bottom)."""
    left, _, right, bottom = box
    marks = []
    for tick in ys:
        marks += [
            line(left, y(tick), right, y(tick), "axis" if zero and tick == 0 else "grid"),
            text(left - 6, y(tick) + 4, f"{tick:{form}}", "end", "tick"),
        ]
    marks += [text(x(tick), bottom + 16, f"{tick:g}", css="tick") for tick in xs]
    return [*marks, text((left + right) / 2, bottom + 34, x_label, css="tick")]


def _of(series: str) -> str:
    return f' data-series="{escape(series)}"' if series else ""


def _tip(title: str) -> str:
    return f"<title>{escape(title)}</title>" if title else ""
