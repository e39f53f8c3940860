"""The result of a demo as one page that needs nothing else: figures are inline SVG, pictures inline PNG.

Every number and every sentence on the page comes from the JSON; colours follow the reader's light or dark setting.
"""

import base64
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["percent", "plus_minus", "png", "rates_in_words", "render", "write_page"]

Json = Mapping[str, Any]

METRICS = {"nll": "NLL", "ece": "ECE", "accuracy": "accuracy"}
FAMILY = {"none": "none", "fixed": "fixed", "per layer": "learned", "per unit": "learned"}
LAYERS = {"drop1": "first hidden layer", "drop2": "second hidden layer"}


def write_page(path: Path, result: Json) -> Path:
    """Render beside the target, then rename: whoever looks finds the old page or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.part")
    try:
        beside.write_text(render(result), encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def render(result: Json) -> str:
    """The whole page."""
    entries = result["contestants"]
    parts = [
        _header(result),
        _section("What came out", _list(result["findings"]), _table(entries), _note_on_errors(result)),
        _section("Seed by seed", _panels(*(_dots(entries, metric) for metric in METRICS)), _DOTS_CAPTION),
        _section("The rates", _panels(*(_rates(result, layer) for layer in LAYERS)), _RATES_CAPTION),
        _section("Are they as sure as they are right?", _panels(*map(_reliability, entries)), _RELIABILITY_CAPTION),
        _section("The least certain test digits", _digits(result["uncertain"])),
        _section("How it was run", _search(entries), _selection(result), _settings(result)),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';"
        ' img-src data:">\n'
        f"<title>lbdrop demo</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


# ---------------------------------------------------------------------------------------------------- numbers in words


def plus_minus(value: Json, digits: int = 3, scale: float = 1.0) -> str:
    """A mean with its standard error, where there is one.

    >>> plus_minus({"mean": 0.1234, "se": 0.002}), plus_minus({"mean": 0.5, "se": None})
    ('0.123 ± 0.002', '0.500')
    """
    error = "" if value["se"] is None else f" ± {value['se'] * scale:.{digits}f}"
    return f"{value['mean'] * scale:.{digits}f}{error}"


def percent(value: Json) -> str:
    """The same in per cent, to one digit."""
    return plus_minus(value, 1, 100)


def rates_in_words(entry: Json) -> str:
    """Layer by layer: the mean rate, or of rates per unit the range of nine in ten.

    >>> rates_in_words({"kind": "per unit", "rates": {"a": {"mean": 0.4, "low": 0.1, "high": 0.6}}})
    '0.10–0.60'
    """
    layers = entry["rates"].values()
    if entry["kind"] == "per unit":
        return ", ".join(f"{layer['low']:.2f}–{layer['high']:.2f}" for layer in layers)
    return ", ".join(f"{layer['mean']:.2f}" for layer in layers) or "–"


# ------------------------------------------------------------------------------------------------------------ sections


def _section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def _header(result: Json) -> str:
    data, settings, seeds = result["data"], result["settings"], len(result["seeds"])
    hidden = settings["hidden"]
    return (
        "<header>\n<h1>Dropout rates, fixed and learned</h1>\n"
        f"<p>A 64–{hidden}–{hidden}–10 network on {escape(data['name'])}: {data['train']:,} to train on,"
        f" {data['validation']:,} to choose settings by, {data['test']:,} to test on. {_count(seeds, 'seed')},"
        f" {_count(settings['epochs'], 'epoch')}, {_count(settings['masks'], 'mask')} per prediction.</p>\n</header>"
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _list(sentences: Sequence[str]) -> str:
    return '<ul class="findings">' + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _table(entries: Sequence[Json]) -> str:
    columns: dict[str, Callable[[Json], str]] = {
        "accuracy, %": lambda entry: percent(entry["test"]["accuracy"]),
        "NLL": lambda entry: plus_minus(entry["test"]["nll"]),
        "ECE": lambda entry: plus_minus(entry["test"]["ece"]),
        "Brier": lambda entry: plus_minus(entry["test"]["brier"]),
        "drop rates": lambda entry: rates_in_words(entry),
    }
    best = {
        heading: pick(entries, key=lambda entry: entry["test"][metric]["mean"])["name"]
        for heading, metric, pick in (
            ("accuracy, %", "accuracy", max),
            ("NLL", "nll", min),
            ("ECE", "ece", min),
            ("Brier", "brier", min),
        )
    }
    rows = []
    for entry in entries:
        cells = [
            f'<td data-label="{heading}"{" class=best" if best.get(heading) == entry["name"] else ""}>'
            f"<span>{escape(show(entry))}</span></td>"
            for heading, show in columns.items()
        ]
        rows.append(f"<tr><th scope=row>{_swatch(entry)}{escape(entry['name'])}</th>{''.join(cells)}</tr>")
    head = "<tr><th></th>" + "".join(f"<th scope=col>{heading}</th>" for heading in columns) + "</tr>"
    return f'<table class="cards"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'


def _swatch(entry: Json) -> str:
    return f'<i class="swatch {FAMILY[entry["kind"]]}"></i>'


def _note_on_errors(result: Json) -> str:
    errors = (
        "± is the standard error over seeds: initial weights, order of examples and masks, on the same test digits."
        if len(result["seeds"]) > 1
        else "One seed: there is no standard error to show."
    )
    return (
        f'<p class="note">{errors} The best mean of each column is bold, whether or not it is clearly best. NLL in nats'
        " per digit; ECE over 15 bins of equal width. Drop rates: behind the first and the second hidden layer, mean"
        " over seeds; of rates per unit, the range that nine in ten fall into.</p>"
    )


def _search(entries: Sequence[Json]) -> str:
    strengths = [trial["strength"] for trial in entries[0]["search"]]
    rows = "".join(
        f"<tr><th scope=row>{_swatch(entry)}{escape(entry['name'])}</th>"
        + "".join(
            f"<td{' class=best' if trial['strength'] == entry['strength'] else ''}>{trial['validation_nll']:.3f}</td>"
            for trial in entry["search"]
        )
        + "</tr>"
        for entry in entries
    )
    head = "<tr><th>λ</th>" + "".join(f"<th scope=col>{strength:g}</th>" for strength in strengths) + "</tr>"
    return (
        "<p>All contestants minimise the cross-entropy plus λ/N times the KL to a Gaussian prior on the weights that"
        " each hidden unit feeds; with fixed rates that is a weight decay. Validation NLL of seed 0 by λ, the chosen"
        " one bold:</p>"
        f'<table class="plain"><thead>{head}</thead><tbody>{rows}</tbody></table>'
    )


def _selection(result: Json) -> str:
    chosen = "; ".join(f"{what}: {how}" for what, how in result["selection"].items())
    return f"<p>How settings were chosen. {escape(chosen[:1].upper() + chosen[1:])}.</p>"


def _settings(result: Json) -> str:
    made = result["provenance"]
    facts = {
        "commit": made["commit"],
        "date": made["date"],
        "hardware": made["hardware"],
        "versions": ", ".join(f"{name} {version}" for name, version in made["versions"].items()),
        "time": f"{result['seconds']:.0f} s",
    } | {name.replace("_", " "): _plain(value) for name, value in result["settings"].items()}
    return '<dl class="facts">' + "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts.items()
    ) + "</dl>"  # fmt: skip


def _plain(value: Any) -> str:
    return ", ".join(map(_plain, value)) if isinstance(value, list | tuple) else str(value)


# ------------------------------------------------------------------------------------------------------------- figures


def _panels(*figures: str) -> str:
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


def _ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Round numbers between two ends, as many as ``most`` allows.

    >>> _ticks(0.941, 0.957)
    [0.945, 0.95, 0.955]
    """
    power = 10.0 ** np.floor(np.log10((high - low) or 1.0))
    tried = (
        np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step
        for step in power * np.array([0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
    )
    return next([round(float(tick), 10) for tick in ticks] for ticks in tried if len(ticks) <= most)


_DOTS_CAPTION = (
    '<p class="note">Rings: one trained network each. Discs: their mean, with one standard error to either side.'
    " NLL and ECE: further left is better; accuracy: further right.</p>"
)


def _dots(entries: Sequence[Json], metric: str) -> str:
    width, row, top = 300, 28, 6
    bottom = top + row * len(entries)
    values = [part["test"][metric] for entry in entries for part in entry["per_seed"]]
    ends = [e["test"][metric]["mean"] + sign * (e["test"][metric]["se"] or 0) for e in entries for sign in (-1, 1)]
    low, high = min(values + ends), max(values + ends)
    margin = 0.06 * ((high - low) or 0.01)
    low, high = low - margin, high + margin
    x = _scale(low, high, 124, width - 10)
    marks = []
    for tick in _ticks(low, high):
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
        marks.append(_circle(x(test["mean"]), y, 4.5, f"disc {family}", f"{entry['name']}: {plus_minus(test, 4)}"))
    return _svg(f"Test {METRICS[metric]}", width, bottom + 22, marks)


_RATES_CAPTION = (
    '<p class="note">Bars: learned rates per unit, all seeds together. Solid lines: the learned rate per layer, one'
    " line a seed. Dashed: where every learned rate started.</p>"
)


def _rates(result: Json, layer: str) -> str:
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
    for tick in _ticks(0, tallest, 3):
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


_RELIABILITY_CAPTION = (
    '<p class="note">Test digits of all seeds by confidence, in 15 bins: how sure the network was, against how often it'
    " was right. A disc's area follows the number of digits. On the diagonal the two agree; above it the network is too"
    " cautious, below it too sure. Bins of fewer than ten digits are left unjoined.</p>"
)


def _reliability(entry: Json) -> str:
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


def _digits(uncertain: Json) -> str:
    digits = uncertain["digits"]
    wrong = sum(digit["predicted"] != digit["truth"] for digit in digits)
    lead = (
        f"<p>Largest predictive entropy under {escape(uncertain['contestant'])} (seed {uncertain['seed']});"
        f" {wrong} of these {len(digits)} are wrong. Ten equally likely classes would have {np.log(10):.2f} nats.</p>"
    )
    return lead + '<div class="digits">' + "".join(map(_digit, digits)) + "</div>"


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


STYLE = """
:root { --paper: #fcfbf9; --card: #fff; --ink: #1f2127; --soft: #636873; --rule: #e3dfd7;
  --none: #878b94; --fixed: #3569b0; --learned: #c4561a; --good: #2d7a46; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14161a; --card: #1b1e23; --ink: #e9e6e0; --soft: #a0a4ad; --rule: #32363d;
    --none: #989ca5; --fixed: #7fabea; --learned: #f0914f; --good: #6cc48a; --bad: #f2857c; }
  .digits img { filter: invert(0.92); }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 2rem; line-height: 1.15; letter-spacing: -0.02em; margin: 0 0 12px; }
h2 { font-size: 1.2rem; letter-spacing: -0.01em; margin: 0 0 14px; }
header p { max-width: 68ch; margin: 0; color: var(--soft); }
section { margin-top: 40px; padding-top: 22px; border-top: 1px solid var(--rule); }
section > p { max-width: 72ch; margin: 0 0 14px; }
.note { color: var(--soft); font-size: 0.875rem; margin: 12px 0 0; }
.findings { max-width: 76ch; margin: 0 0 22px; padding-left: 1.15em; }
.findings li { margin: 3px 0; }
.findings li:first-child { font-weight: 600; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.cards { width: 100%; }
th, td { padding: 7px 14px 7px 0; text-align: right; border-bottom: 1px solid var(--rule); font-weight: 400; }
th:first-child { text-align: left; white-space: nowrap; }
td { white-space: nowrap; }
thead th { color: var(--soft); font-size: 0.875rem; }
th:last-child, td:last-child { padding-right: 0; }
.best { font-weight: 700; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 9px;
  background: var(--none); }
.swatch.fixed { background: var(--fixed); }
.swatch.learned { background: var(--learned); }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr)); gap: 14px; }
figure { margin: 0; }
.panels figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px 14px; }
.panels figcaption { font-weight: 600; font-size: 0.9rem; margin-bottom: 6px; }
svg { display: block; width: 100%; height: auto; max-width: 420px; margin: 0 auto; }
svg text { font-size: 12px; fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .tick { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--rule); }
.axis { stroke: var(--soft); }
.diagonal { stroke: var(--soft); stroke-dasharray: 2 3; }
.start { stroke: var(--ink); stroke-dasharray: 4 4; }
.layer { stroke: var(--ink); stroke-width: 1.5; }
.ring { fill: none; stroke: currentColor; opacity: 0.65; }
.disc { fill: currentColor; }
.error { stroke: currentColor; stroke-width: 2; }
.bar { fill: currentColor; opacity: 0.75; }
.curve { fill: none; stroke: currentColor; stroke-width: 1.5; opacity: 0.6; }
.bubble { fill: currentColor; fill-opacity: 0.75; }
svg .none { color: var(--none); }
svg .fixed { color: var(--fixed); }
svg .learned { color: var(--learned); }
.digits { display: grid; grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); gap: 14px; }
.digits figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px;
  text-align: center; }
.digits img { width: 96px; height: 96px; image-rendering: pixelated; border-radius: 3px; }
.digits figcaption { font-size: 0.85rem; line-height: 1.4; margin-top: 6px; color: var(--soft); }
.digits b { font-weight: 600; color: var(--good); white-space: nowrap; }
.digits .wrong b { color: var(--bad); }
.plain { margin-bottom: 22px; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 290px), 1fr)); gap: 0 28px; margin: 0;
  font-size: 0.875rem; }
.facts div { display: flex; gap: 16px; justify-content: space-between; padding: 5px 0;
  border-bottom: 1px solid var(--rule); }
.facts dt { color: var(--soft); flex: none; }
.facts dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
@media (max-width: 700px) {
  main { padding: 24px 16px 48px; }
  h1 { font-size: 1.6rem; }
  .cards, .cards tbody, .cards tr, .cards th, .cards td { display: block; }
  .cards thead { display: none; }
  .cards tr { padding: 10px 0; border-bottom: 1px solid var(--rule); }
  .cards th, .cards td { border: 0; padding: 1px 0; }
  .cards th { font-weight: 600; }
  .cards td { display: flex; justify-content: space-between; }
  .cards td::before { content: attr(data-label); color: var(--soft); font-weight: 400; }
  .digits { grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 10px; }
  .digits figure { padding: 10px 4px; }
  .digits img { width: 72px; height: 72px; }
}
"""
