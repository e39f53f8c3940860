"""The result of a demo as one page that needs nothing else: figures are inline SVG, pictures inline PNG.

Every number and every sentence on the page comes from the JSON; colours follow the reader's light or dark setting.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lbdrop.report import figures, shop
from lbdrop.report.figures import Json, panels
from lbdrop.report.style import STYLE

__all__ = [
    "document", "facts", "note", "percent", "plus_minus", "rates_in_words", "render", "write_files", "write_page",
]  # fmt: skip


def write_page(path: Path, result: Json) -> Path:
    """Write the page of a result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_files(path.parent, {path.name: render(result).encode()})
    return path


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write beside the target, then rename: whoever looks finds the old file or the new one, never half of one."""
    for name, content in contents.items():
        beside = folder / f"{name}.{os.getpid()}.part"
        try:
            beside.write_bytes(content)
            beside.replace(folder / name)
        finally:
            beside.unlink(missing_ok=True)


def render(result: Json) -> str:
    """The whole page."""
    entries = result["contestants"]
    parts = [
        _header(result),
        _section("What came out", _list(result["findings"]), _table(entries), _note_on_errors(result)),
        _section("Seed by seed", panels(*(figures.dots(entries, m) for m in figures.METRICS)), figures.DOTS_CAPTION),
        _section("The rates", panels(*(figures.rates(result, at) for at in figures.LAYERS)), figures.RATES_CAPTION),
        _section(
            "Are they as sure as they are right?",
            panels(*map(figures.reliability, entries)),
            figures.RELIABILITY_CAPTION,
        ),
        _section("The least certain test digits", figures.digits(result["uncertain"])),
        *(_shop(result["shop"]) if "shop" in result else ()),
        _section("How it was run", _search(entries), _selection(result), _settings(result)),
    ]
    return document("lbdrop demo", parts, shop.SHOP_STYLE)


def document(title: str, parts: Sequence[str], style: str = "") -> str:
    """A page of these sections, which loads nothing and runs nothing."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';"
        ' img-src data:">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n"
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


def note(text: str) -> str:
    """A remark below a table or a figure."""
    return f'<p class="note">{escape(text)}</p>'


def _header(result: Json) -> str:
    data, settings, seeds = result["data"], result["settings"], len(result["seeds"])
    hidden = settings["hidden"]
    return (
        "<header>\n<h1>Dropout rates, fixed and learned</h1>\n"
        f"<p>A 64–{hidden}–{hidden}–10 network on {escape(data['name'])}: {data['train']:,} to train on,"
        f" {data['validation']:,} to choose settings by, {data['test']:,} to test on. {_count(seeds, 'seed')},"
        f" {_count(settings['epochs'], 'epoch')}, {_count(settings['masks'], 'mask')} per prediction.</p>\n</header>"
    )


def _shop(found: Json) -> list[str]:
    return [
        _section("A shop with known tastes", shop.lead(found), _list(found["findings"]), shop.scores(found)),
        _section("Learned rates in the shop", shop.rates_by_likes(found)),
        _section("Three customers", shop.customers(found)),
    ]


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
    return f'<i class="swatch {figures.FAMILY[entry["kind"]]}"></i>'


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


def facts(runs: Sequence[Json], protocol: Sequence[str]) -> list[str]:
    """What all runs share, and where they come from."""
    made = [run["provenance"] for run in runs]
    dates = sorted(str(each["date"]) for each in made if "date" in each)
    sources = {
        "runs": len(runs),
        "commit": _different(each.get("commit", "unknown") for each in made),
        "date": " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "unknown",
        "hardware": _different(each.get("hardware", "unknown") for each in made),
        "versions": _different(_plain([f"{k} {v}" for k, v in each.get("versions", {}).items()]) for each in made),
    }
    names = {name: None for run in runs for name in run["settings"]}
    values = {name: list({str(run["settings"].get(name)): None for run in runs}) for name in names}
    shared = {name.replace("_", " "): value[0] for name, value in values.items() if len(value) == 1}
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in {**sources, **shared}.items()
    )
    return [
        "".join(f"<p>{escape(text)}.</p>" for text in protocol),
        f'<dl class="facts">{shown}</dl>',
        note("Settings that differ between methods are in summary.json."),
    ]


def _different(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(map(str, values)))
