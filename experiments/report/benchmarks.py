"""Any benchmark's JSON as tables: wherever a mapping or a list holds mappings with numbers, that is a table of theirs.

No benchmark is known by name: a new one that writes settings, provenance and its numbers is shown as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from experiments.report.charts import bars
from experiments.report.compose import Grid, Part
from experiments.report.page import Chapter, Section, fact_list, findings, section
from experiments.report.records import Json, load
from experiments.report.schema import Wrong, fields, listed, text
from experiments.report.svg import panels
from experiments.report.tables import Columns, html
from lbdrop.errors import DropoutError

__all__ = ["part", "tables_of"]

RECORD = fields({"settings": fields({}), "provenance": fields({})}, {"findings": listed(text)})
SKIPPED = ("settings", "provenance", "findings", "history", "benchmark", "summary")
MAX_ROWS, MAX_TABLES, MAX_DEPTH = 60, 24, 4
DRAWN_ENDINGS = ("ratio", "relative", "merit", "seconds", "per_second")
"""A column whose name ends in one of these is drawn, the first in this order."""


def part(files: Sequence[Path], data: Path | None) -> Part:
    """A section for every benchmark."""
    runs = {}
    for path in files:
        run = load(path)
        try:
            RECORD("", run)
        except Wrong as error:
            raise DropoutError(f"{path}: want the record of a benchmark with {error}; run it again") from error
        runs[path.stem] = run
    found = {name: list(tables_of(run.get("summary", run))) for name, run in runs.items()}
    sections = [_section(name, run, found[name]) for name, run in runs.items()]
    grids = [
        Grid(f"{name}{f', {title}' * bool(title)}", ("", *_headings(rows)[:4]),
             [(label, *(_shown(row.get(column)) for column in _headings(rows)[:4])) for label, row in rows.items()])
        for name, tables in found.items()
        for title, rows in tables[:2]
    ]  # fmt: skip
    lead = f"{len(runs)} benchmark{'s' * (len(runs) > 1)}: {', '.join(runs)}."
    said = [sentence for run in runs.values() for sentence in run.get("findings", [])]
    return Part(Chapter("Benchmarks: time, memory, variance", lead, sections), grids, said)


Rows = dict[str, dict[str, Any]]


def tables_of(value: Any, title: str = "", depth: int = 0) -> Iterable[tuple[str, Rows]]:
    """Every table in a record with its title: rows by name, each with its scalars.

    >>> list(tables_of({"a": {"seconds": 1.0}, "b": {"seconds": 2.0, "each": [1, 2]}}))
    [('', {'a': {'seconds': 1.0}, 'b': {'seconds': 2.0}})]
    """
    if depth > MAX_DEPTH:
        return
    if isinstance(value, list):
        value = {_name(each, place): each for place, each in enumerate(value[:MAX_ROWS]) if isinstance(each, Mapping)}
    if not isinstance(value, Mapping):
        return
    inside = {
        str(name): each for name, each in value.items() if name not in SKIPPED and isinstance(each, Mapping | list)
    }
    rows = {name: scalars for name, each in inside.items() if len(scalars := _scalars(each)) and _has_number(scalars)}
    if rows:
        yield title, dict(list(rows.items())[:MAX_ROWS])
    for name, each in inside.items():
        yield from tables_of(each, f"{title}, {name}" if title else name, depth + 1)


def _scalars(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {}
    return {
        str(name): each for name, each in value.items() if isinstance(each, int | float | str) and name not in SKIPPED
    }


def _has_number(scalars: Mapping[str, Any]) -> bool:
    return any(isinstance(each, int | float) and not isinstance(each, bool) for each in scalars.values())


def _name(each: Any, place: int) -> str:
    scalars = list(_scalars(each).items())[:2]
    return ", ".join(f"{name} {_shown(value)}" for name, value in scalars) or f"number {place + 1}"


def _section(name: str, run: Json, found: Sequence[tuple[str, Rows]]) -> Section:
    made = run["provenance"]
    parts = [f"<p>{_plain(run['benchmark'])}</p>"] if isinstance(run.get("benchmark"), str) else []
    parts += [findings(run["findings"])] if run.get("findings") else []
    for title, rows in found[:MAX_TABLES]:
        parts += [f"<h3>{_plain(title)}</h3>"] if title else []
        parts.append(
            html(_columns(rows), [{**row, "key": label, "label": label} for label, row in rows.items()], first="name")
        )
        if drawn := _drawn(title, rows):
            parts.append(panels(drawn))
    if len(found) > MAX_TABLES:
        parts.append(f"<p>{len(found) - MAX_TABLES} more tables are in the JSON.</p>")
    origin = {key: made.get(key, "unknown") for key in ("commit", "date", "hardware")}
    return section(name, *parts, "<h3>How it was run</h3>", fact_list({**origin, **run["settings"]}))


def _plain(title: str) -> str:
    return escape(title.replace("_", " "))


def _headings(rows: Rows) -> list[str]:
    return list({column: None for row in rows.values() for column in row})


def _columns(rows: Rows) -> Columns:
    def cell(column: str) -> Any:
        return lambda row: _shown(row.get(column))

    return {column.replace("_", " "): cell(column) for column in _headings(rows)}


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3e}"


def _drawn(title: str, rows: Rows) -> str:
    for ending in DRAWN_ENDINGS:
        for column in _headings(rows):
            values = {label: row[column] for label, row in rows.items() if isinstance(row.get(column), int | float)}
            if column.endswith(ending) and len(values) > 1 and all(0 <= value < 1e15 for value in values.values()):
                return bars(column.replace("_", " "), {label: float(value) for label, value in values.items()})
    return ""
