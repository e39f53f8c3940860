"""Tables, on a page or in markdown: columns are functions of a row."""

from collections.abc import Callable, Mapping, Sequence
from html import escape

from experiments.report import charts
from experiments.report.page import number
from experiments.report.records import Json

__all__ = ["Columns", "html", "pipes"]

Columns = Mapping[str, Callable[[Json], str]]


def pipes(shown: Columns, rows: Sequence[Json]) -> str:
    """The same as html, in markdown."""
    lines = [list(shown), ["---"] * len(shown), *([cell(row) for cell in shown.values()] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def html(
    shown: Columns,
    rows: Sequence[Json],
    best: Mapping[str, str] | None = None,
    mark: str | None = None,
    aside: str | None = None,
    first: str = "method",
) -> str:
    """A row for each method, to be sorted by any column; ``mark`` is tinted, ``aside`` does not compete."""
    words = {heading for heading, cell in shown.items() if all(number(cell(row)) is None for row in rows)}
    lines = []
    for row in rows:
        cells = "".join(
            _cell(cell(row), best is not None and best.get(heading) == row["key"], heading in words)
            for heading, cell in shown.items()
        )
        swatch = f'<i class="swatch m-{charts.family(row)}"></i>' if "family" in row else ""
        css = {mark: " class=chosen", aside: " class=aside"}.get(row["key"], "")
        lines.append(f"<tr{css}><th scope=row>{swatch}{escape(row['label'])}</th>{cells}</tr>")
    head = f"<tr><th scope=col>{escape(first)}</th>" + "".join(
        f"<th scope=col{' class=text' * (heading in words)}>{escape(heading)}</th>" for heading in shown
    )
    table = f'<table class="sortable"><thead>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-label="table">{table}</div>'


def _cell(text: str, best: bool, words: bool) -> str:
    value = number(text)
    css = "best" * best or "text" * words
    data = f' data-value="{value:.12g}"' if value is not None else ""
    return f"<td{f' class={css}' * bool(css)}{data}>{escape(text).replace(chr(10), '<br>')}</td>"
