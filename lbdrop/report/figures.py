"""The figures of a page: inline SVG from the numbers of a run, inline PNG from its digits."""

import base64
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

__all__ = [
    "DOTS_CAPTION", "FAMILY", "LAYERS", "METRICS", "RATES_CAPTION", "RELIABILITY_CAPTION", "Json", "digits", "dots",
    "panels", "png", "rates", "reliability", "ticks",
]  # fmt: skip

Json = Mapping[str, Any]

METRICS = {"nll": "NLL", "ece": "ECE", "accuracy": "accuracy"}
FAMILY = {"none": "none", "fixed": "fixed", "per layer": "learned", "per unit": "learned"}
LAYERS = {"drop1": "first hidden layer", "drop2": "second hidden layer"}


def panels(*figures: str) -> str:
    """Figures side by side, as many as fit."""
    return '<div class="panels">' + "".join(figures) + "</div>"


def _svg(title: str, width: int, height: int, marks: Sequence[str]) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(title)}">' + "".join(marks) + "</svg></figure>"
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", css: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def _circle(x: float, y: float, r: float, css: str, title: str = "") -> str:
    tip = f"<title>{escape(title)}</title>" if title else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" class="{css}">{tip}</circle>'


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
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
    return next([round(float(tick), 10) for tick in even] for even in tried if len(even) <= most)


DOTS_CAPTION = (
    '<p class="note">Rings: one trained network each. Discs: their mean, with one standard error to either side.'
    " NLL and ECE: further left is better; accuracy: further right.</p>"
)


def dots(entries: Sequence[Json], metric: str) -> str:
    """One measure: a line for each contestant, a ring for each seed, the mean with its standard error."""
    width, row, top = 300, 28, 6
    bottom = top + row * len(entries)
    values = [part["test"][metric] for entry in entries for part in entry["per_seed"]]
    ends = [e["test"][metric]["mean"] + sign * (e["test"][metric]["se"] or 0) for e in entries for sign in (-1, 1)]
    low, high = min(values + ends), max(values + ends)
    margin = 0.06 * ((high - low) or 0.01)
    low, high = low - margin, high + margin
    x = _scale(low, high, 124, width - 10)
    marks = []
    for tick in ticks(low, high):
        marks += [_line(x(tick), top, x(tick), bottom, "grid"), _text(x(tick), bottom + 16, f"{tick:g}", css="tick")]
    for number, entry in enumerate(entries):
        y, family, test = top + row * (number + 0.5), FAMILY[entry["kind"]], entry["test"][metric]
        marks.append(_text(114, y + 4, entry["name"], "end"))
        marks += [
            _circle(x(part["test"][metric]), y, 4, f"ring {family}", f"seed {part['seed']}: {part['test'][metric]:.4f}")
            for part in entry["per_seed"]
        ]
        if test["se"] is not None:
            marks.append(_line(x(test["mean"] - test["se"]), y, x(test["mean"] + test["se"]), y, f"error {family}"))
        marks.append(_circle(x(test["mean"]), y, 4.5, f"disc {family}", f"{entry['name']}, mean: {test['mean']:.4f}"))
    return _svg(f"Test {METRICS[metric]}", width, bottom + 22, marks)


RATES_CAPTION = (
    '<p class="note">Bars: learned rates per unit, all seeds together. Solid lines: the learned rate per layer, one'
    " line a seed. Dashed: where every learned rate started.</p>"
)


def rates(result: Json, layer: str) -> str:
    """Where the learned rates of one layer ended."""
    width, height, left, top, bottom = 380, 210, 38, 12, 176
    found = {
        entry["kind"]: [part["rates"][layer] for part in entry["per_seed"]]
        for entry in result["contestants"]
        if FAMILY[entry["kind"]] == "learned"
    }
    units = np.concatenate(found["per unit"])
    counts, edges = np.histogram(units, bins=25, range=(0, 1))
    shares = counts / len(units)
    tallest = max(float(shares.max()), 1e-9) * 1.08
    x, y = _scale(0, 1, left, width - 10), _scale(0, tallest, bottom, top)
    marks = [_line(left, bottom, width - 10, bottom, "axis")]
    for tick in ticks(0, tallest, 3):
        marks += [
            _line(left, y(tick), width - 10, y(tick), "grid"),
            _text(left - 6, y(tick) + 4, f"{tick:.0%}", "end", "tick"),
        ]
    marks += [
        f'<rect x="{x(a) + 0.5:.1f}" y="{y(share):.1f}" width="{x(b) - x(a) - 1:.1f}" height="{bottom - y(share):.1f}"'
        f' class="bar learned"><title>{share:.1%} of units in {a:.2f}–{b:.2f}</title></rect>'
        for a, b, share in zip(edges[:-1], edges[1:], shares, strict=True)
        if share
    ]
    start = result["settings"]["start_rate"]
    marks.append(_line(x(start), top, x(start), bottom, "start"))
    marks += [_line(x(rate), top, x(rate), bottom, "layer") for (rate,) in found["per layer"]]
    marks += [_text(x(tick), bottom + 15, f"{tick:g}", css="tick") for tick in (0, 0.25, 0.5, 0.75, 1)]
    marks.append(_text(x(0.5), height - 3, "drop rate", css="tick"))
    return _svg(f"Behind the {LAYERS[layer]}", width, height, marks)


RELIABILITY_CAPTION = (
    '<p class="note">Test digits of all seeds by confidence, in 15 bins: how sure the network was, against how often it'
    " was right. A disc's area follows the number of digits. On the diagonal the two agree; above it the network is too"
    " cautious, below it too sure. Bins of fewer than ten digits are left unjoined.</p>"
)


def reliability(entry: Json) -> str:
    """Confidence against accuracy for one contestant."""
    size, left, top, bottom = 270, 38, 12, 232
    x, y = _scale(0, 1, left, size - 12), _scale(0, 1, bottom, top)
    curve = entry["reliability"]
    total = sum(curve["count"])
    points = [
        (confidence, right, count)
        for confidence, right, count in zip(curve["confidence"], curve["accuracy"], curve["count"], strict=True)
        if count
    ]
    marks = []
    for tick in (0, 0.5, 1):
        marks += [
            _line(left, y(tick), size - 12, y(tick), "grid"),
            _line(x(tick), top, x(tick), bottom, "grid"),
            _text(left - 5, y(tick) + 4, f"{tick:g}", "end", "tick"),
            _text(x(tick), bottom + 14, f"{tick:g}", css="tick"),
        ]
    marks.append(_line(x(0), y(0), x(1), y(1), "diagonal"))
    family = FAMILY[entry["kind"]]
    path = " ".join(f"{x(confidence):.1f},{y(right):.1f}" for confidence, right, count in points if count >= 10)
    marks.append(f'<polyline points="{path}" class="curve {family}"/>')
    marks += [
        _circle(
            x(c),
            y(right),
            2 + 9 * (count / total) ** 0.5,
            f"bubble {family}",
            f"{count} digits: {c:.2f} sure, {right:.2f} right",
        )
        for c, right, count in points
    ]
    marks += [
        _text(x(0.5), bottom + 30, "confidence", css="tick"),
        f'<text transform="translate(11 {y(0.5):.1f}) rotate(-90)" text-anchor="middle" class="tick">accuracy</text>',
        _text(x(0.97), y(0.05), f"ECE {entry['test']['ece']['mean']:.3f}", "end"),
    ]
    return _svg(entry["name"], size, bottom + 36, marks)


# ------------------------------------------------------------------------------------------------------------ pictures


def png(pixels: Sequence[int], width: int, largest: int = 16) -> bytes:
    """A greyscale PNG, dark on light, of values from 0 to ``largest`` given row by row."""
    grey = [255 - round(255 * min(max(value, 0), largest) / largest) for value in pixels]
    rows = b"".join(b"\0" + bytes(grey[start : start + width]) for start in range(0, len(grey), width))
    header = struct.pack(">IIBBBBB", width, len(grey) // width, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def digits(uncertain: Json) -> str:
    """The least certain digits with what was said of them."""
    shown = uncertain["digits"]
    wrong = sum(digit["predicted"] != digit["truth"] for digit in shown)
    lead = (
        f"<p>Largest predictive entropy under {escape(uncertain['contestant'])} (seed {uncertain['seed']});"
        f" {wrong} of these {len(shown)} are wrong. Ten equally likely classes would have {np.log(10):.2f} nats.</p>"
    )
    return lead + '<div class="digits">' + "".join(map(_digit, shown)) + "</div>"


def _digit(digit: Json) -> str:
    right = digit["predicted"] == digit["truth"]
    source = f"data:image/png;base64,{base64.b64encode(png(digit['pixels'], 8)).decode()}"
    alt = f"test digit {digit['index']}, a {digit['truth']}"
    verdict = f"{'✓' if right else '✗'} says {digit['predicted']}, is {digit['truth']}"
    return (
        f'<figure class="{"right" if right else "wrong"}"><img src="{source}" width="8" height="8" alt="{alt}">'
        f"<figcaption><b>{verdict}</b><br>{digit['entropy']:.2f} nats<br>{digit['probability']:.0%} sure</figcaption>"
        "</figure>"
    )
