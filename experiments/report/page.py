"""One page that needs nothing else: chapters of sections, a list of them on top, style and script inside.

Every number and every sentence on a page comes from the JSON of the runs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from experiments.report.records import Json
from experiments.report.script import POLICY, SCRIPT
from experiments.report.style import STYLE
from lbdrop.cli.common import PAGE_MARK
from lbdrop.io.files import replacing

__all__ = [
    "Chapter", "Section", "document", "fact_list", "facts", "findings", "note", "number", "percent", "plain", "plus_minus",
    "section", "write_files",
]  # fmt: skip

TOLD = 5


class Section(NamedTuple):
    """A heading and what stands below it, as HTML."""

    title: str
    html: str


class Chapter(NamedTuple):
    """What one kind of runs has on the page; the lead is plain text."""

    title: str
    lead: str
    sections: Sequence[Section]


def section(title: str, *parts: str) -> Section:
    """A section of these pieces of HTML."""
    return Section(title, "\n".join(parts))


def document(chapters: Sequence[Chapter], unknown: Sequence[str] = ()) -> str:
    """The page: one chapter as it is, several under a common heading; ``unknown`` lines say what is not on it."""
    one = len(chapters) == 1
    title = chapters[0].title if one else "Runs side by side"
    lead = chapters[0].lead if one else f"{len(chapters)} kinds of runs, a chapter each."
    ids = [
        [f"{_slug(chapter.title)}-{n}-{_slug(each.title)}" for n, each in enumerate(chapter.sections)]
        for chapter in chapters
    ]
    leads = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in (lead, *unknown))
    body = [f"<header>\n<h1>{escape(title)}</h1>\n{leads}{_contents(chapters, ids, one)}</header>"]
    for chapter, names in zip(chapters, ids, strict=True):
        if not one:
            body.append(
                f'<header class="chapter" id="{_slug(chapter.title)}"><h1>{escape(chapter.title)}</h1>'
                f"<p>{escape(chapter.lead)}</p></header>"
            )
        body += [
            f'<section id="{name}">\n<h2>{escape(each.title)}</h2>\n{each.html}\n</section>'
            for name, each in zip(names, chapter.sections, strict=True)
        ]
    # Numbers stay whole at line ends.
    whole = "\n".join(body).replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{PAGE_MARK}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n<script>{SCRIPT}</script>\n</head>\n<body>\n<main>\n"
        f"{whole}\n</main>\n</body>\n</html>\n"
    )


def _contents(chapters: Sequence[Chapter], ids: Sequence[Sequence[str]], one: bool) -> str:
    links = []
    for chapter, names in zip(chapters, ids, strict=True):
        links += [] if one else [f'<a class="top" href="#{_slug(chapter.title)}">{escape(chapter.title)}</a>']
        links += [
            f'<a href="#{name}">{escape(each.title)}</a>' for name, each in zip(names, chapter.sections, strict=True)
        ]
    return f'<nav aria-label="Contents">{"".join(links)}</nav>\n' if len(links) > 1 else ""


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write beside the target, then rename: readers find the old file or the new one, never half of one."""
    for name, content in contents.items():
        with replacing(folder / name) as beside:
            beside.write_bytes(content)


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


def number(text: str) -> float | None:
    """The number that a cell begins with, by which it is sorted.

    >>> number("94.18 ± 0.11"), number("−1,200 level"), number("3e-05"), number("LBD")
    (94.18, -1200.0, 3e-05, None)
    """
    found = re.match(r"[+−-]?(?:\d[\d,]*)?\.?\d+(?:e[+-]?\d+)?(?![\w.])", text.strip())
    return float(found[0].replace(",", "").replace("−", "-")) if found else None


def plain(value: Any) -> str:
    """A setting as text: lists with commas."""
    return ", ".join(map(plain, value)) if isinstance(value, list | tuple) else str(value)


# -------------------------------------------------------------------------------------------------------------- pieces


def note(words: str) -> str:
    """A remark below a table or a figure."""
    return f'<p class="note">{escape(words)}</p>'


def findings(sentences: Sequence[str]) -> str:
    """What came out, the first sentences at once and the others to be opened."""
    first, rest = _items(sentences[:TOLD]), sentences[TOLD:]
    if len(rest) < 2:
        return _items(sentences)
    return f"{first}<details><summary>{len(rest)} more findings</summary>{_items(rest)}</details>"


def _items(sentences: Sequence[str]) -> str:
    return '<ul class="findings">' + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def fact_list(pairs: Mapping[str, Any]) -> str:
    """Names and values."""
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(plain(value))}</dd></div>" for name, value in pairs.items()
    )
    return f'<dl class="facts">{shown}</dl>'


def facts(runs: Sequence[Json], protocol: Sequence[str] = ()) -> list[str]:
    """What all runs share, and where they come from."""
    made = [run["provenance"] for run in runs]
    dates = sorted(str(each["date"]) for each in made if "date" in each)
    sources = {
        "runs": len(runs),
        "commit": _different(each.get("commit", "unknown") for each in made),
        "date": " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "unknown",
        "hardware": _different(each.get("hardware", "unknown") for each in made),
        "versions": _different(_versions(each.get("versions", "unknown")) for each in made),
    }
    names = {name: None for run in runs for name in run["settings"]}
    values = {name: list({plain(run["settings"].get(name)): None for run in runs}) for name in names}
    shared = {name.replace("_", " "): value[0] for name, value in values.items() if len(value) == 1}
    return ["".join(f"<p>{escape(text)}.</p>" for text in protocol), fact_list({**sources, **shared})]


def _versions(found: Any) -> str:
    return plain([f"{name} {version}" for name, version in found.items()]) if isinstance(found, dict) else plain(found)


def _different(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(map(str, values)))
