"""Recommender runs as a chapter of a page, a markdown table, a JSON summary and a figure.

Every number and sentence comes from the summary; published numbers stand beside ours as they were printed.

Boluki, Ardywibowo, Dadaneh, Zhou and Qian, Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from experiments.collaborative import chapter_charts as drawn
from experiments.collaborative.chapter_summary import summarise
from experiments.collaborative.record import MEASURE, MEASURES, read
from experiments.report.compose import Grid, Part
from experiments.report.page import Chapter, Section, facts, findings, note, plus_minus, section
from experiments.report.records import Json
from experiments.report.statistics import judged
from experiments.report.svg import panels
from experiments.report.tables import Columns, html, pipes
from lbdrop.errors import DropoutError

__all__ = ["Titles", "chapter", "markdown", "part"]

Titles = Mapping[str, Mapping[str, str]]
"""By data set: an item's title by its id as text."""

NOTE = (
    "± is the standard error over seeds, or over test users where there is one seed. The best mean of each column is bold,"
    " whether or not it is clearly best. Published: the paper's own table, or for {elsewhere} their authors' papers; on the"
    " complete data, with the published schedules."
)


def part(files: Sequence[Path], data: Path | None) -> Part:
    """The chapter of these records, the same as a table and a summary; the figure only where a grid of rates was run."""
    summary = summarise(read(files))
    titles = _titles(data, list(summary["datasets"])) if data is not None else None
    contents = {
        "table.md": markdown(summary).encode(),
        "summary.json": (json.dumps(summary, indent=1, ensure_ascii=False) + "\n").encode(),
    }
    if (figure := drawn.grid_png(summary)) is not None:
        contents["grid.png"] = figure
    said = [*summary["findings"], *summary["caveats"]]
    grids = [_grid_of(name, found) for name, found in summary["datasets"].items()]
    return Part(chapter(summary, titles), grids, said, contents)


def _titles(folder: Path, wanted: Sequence[str]) -> dict[str, dict[str, str]]:
    """Titles of the data sets in this folder, or of the one that it is; a sample's are those of the whole."""
    from lbdrop.recommend.data.prepared import load_prepared

    wholes = dict.fromkeys(name.removesuffix("-sample") for name in wanted)
    there = [each for each in (folder, *(folder / name for name in wholes)) if (each / "manifest.json").exists()]
    if not there:
        raise DropoutError(
            f"{folder}: want a prepared data set ({', '.join(wanted)}), got none there; run lbdrop data prepare"
        )
    sets = [load_prepared(each) for each in there]
    found = {
        each.name: dict(zip(map(str, each.interactions.items.to_list()), each.titles.to_list(), strict=True))
        for each in sets
    }
    return found | {name: found[whole] for name in wanted if (whole := name.removesuffix("-sample")) in found}


def _grid_of(name: str, found: Json) -> Grid:
    rows = [found["rows"][key] for key in found["shown"]]
    lines = [
        (row["label"], str(len(row["seeds"])),
         *(plus_minus(row["test"][measure], 4).replace("0.", ".").replace(" ", "") for measure in row["test"]))
        for row in rows
    ]  # fmt: skip
    return Grid(f"{name}: test users, mean ± standard error", ("", "seeds", *MEASURES.values()), lines)


def chapter(summary: Json, titles: Titles | None = None) -> Chapter:
    """All that the page says."""
    sets = summary["datasets"]
    sections = [section("What came out", findings(summary["findings"]), *map(note, summary["caveats"]))]
    for name, found in sets.items():
        rows = [found["rows"][key] for key in found["shown"]]

        def titled(title: str, *content: str, lead: str = f"{name}: " if len(sets) > 1 else "") -> Section:
            return section(lead + (title if lead else _titled(title)), *content)

        sections += [
            titled("the table", *_tables(rows)),
            titled("fixed rates and learned ones", *_grids(found)),
            titled("training", *_training(rows)),
            titled("learned rates by popularity", *_rates(rows)),
            titled("three test users", *_examples(found, (titles or {}).get(name, {}))),
        ]
    protocol = [text for found in sets.values() for text in _said_once(found["protocol"])]
    sections.append(
        section(
            "How it was run", *facts(summary["runs"], protocol),
            note("Settings that differ between methods are in summary.json."),
        )
    )  # fmt: skip
    seeds = max(len(found["seeds"]) for found in sets.values())
    lead = (
        f"{len(summary['runs'])} runs on {', '.join(sets)}, up to {seeds} seed{'s' * (seeds > 1)} a method: what"
        " recommenders find of items that were hidden from them."
    )
    return Chapter("Collaborative filtering: dropout rates, fixed and learned", lead, sections)


def markdown(summary: Json) -> str:
    """The same tables as text."""
    parts = []
    for name, found in summary["datasets"].items():
        rows = [found["rows"][key] for key in found["shown"]]
        names: Columns = {"method": lambda row: row["label"], "seeds": lambda row: str(len(row["seeds"]))}
        parts += [
            f"## {name}: {found['data']['test_users']:,} test users, {found['data']['items']:,} items",
            pipes({**names, **_measured(), **_published(rows)}, rows),
            _note(rows),
            pipes({"method": lambda row: row["label"], **_choices(), **_costs()}, rows),
        ]
        for grid in found["grids"].values():
            points = [found["rows"][point["key"]] for point in grid["points"]]
            mark: Columns = {"chosen": lambda row, key=grid["chosen"]: "on validation" if row["key"] == key else ""}
            parts += [f"Fixed rates, {grid['label']}.", pipes({**names, **_grid_columns(), **mark}, points)]
        if found["differences"]:
            rows = [_named(found, d) for d in found["differences"]]
            columns: Columns = {"method": lambda row: row["label"], **_difference_columns(" ")}
            parts += ["Differences, paired by seed.", pipes(columns, rows)]
    return "\n\n".join([*parts, *(f"- {sentence}" for sentence in (*summary["findings"], *summary["caveats"]))]) + "\n"


# ------------------------------------------------------------------------------------------------------------- columns


def _measured(part: str = "test") -> dict[str, Callable[[Json], str]]:
    return {label: _cell(part, name) for name, label in MEASURES.items()}


def _cell(part: str, name: str) -> Callable[[Json], str]:
    return lambda row: plus_minus(row[part][name], 4)


def _published(rows: Sequence[Json]) -> dict[str, Callable[[Json], str]]:
    """Columns of what was printed; none where nothing was."""
    if not any(row["published"] for row in rows):
        return {}

    def cell(name: str) -> Callable[[Json], str]:
        return lambda row: f"{row['published'][name]:.4f}" if row["published"] else "–"

    return {f"published {label}": cell(name) for name, label in MEASURES.items()}


def _choices() -> dict[str, Callable[[Json], str]]:
    """What validation users decided."""

    def masks(row: Json) -> str:
        return ", ".join(map(str, row["masks"])) or "–"

    def chosen(row: Json) -> str:
        tried = row["choice"]["tried"] if row["choice"] else []
        return ", ".join(f"{k} {v:g}" for k, v in row["choice"]["chosen"].items()) if len(tried) > 1 else "–"

    return {
        "validation NDCG@100": _cell("validation", MEASURE),
        "mean keep rate": _number("keep", 3),
        "best epoch": _number("best_epoch", 0),
        "β there": _number("beta", 3),
        "masks at test": masks,
        "settings": chosen,
    }


def _costs() -> dict[str, Callable[[Json], str]]:
    """What is recommended beside how well, and what it took."""
    return {
        "coverage, %": _number("coverage", 1, 100),
        "popularity, percentile": _number("popularity", 1, 100),
        "s per epoch": _number("seconds_per_epoch", 2),
        "s in all": _number("seconds", 0),
        "peak memory, GiB": _number("peak_bytes", 2, 2**-30),
    }


def _number(name: str, digits: int, scale: float = 1.0) -> Callable[[Json], str]:
    return lambda row: plus_minus(row[name], digits, scale) if row[name] else "–"


def _grid_columns() -> Columns:
    return {"validation NDCG@100": _cell("validation", MEASURE), **_measured()}


def _difference_columns(space: str = "\n") -> Columns:
    def cell(name: str) -> Callable[[Json], str]:
        def shown(row: Json) -> str:
            value = row["measures"][name]
            ends = value["interval"]
            between = f"{space}[{ends[0]:.4f}, {ends[1]:.4f}]" if ends else ""
            return f"{'+' * (value['mean'] > 0)}{plus_minus(value, 4)}{between} {judged(value)}"

        return shown

    against: Columns = {"minus": lambda row: row["minus"], "seeds": lambda row: str(len(row["seeds"]))}
    return {**against, **{label: cell(name) for name, label in MEASURES.items()}}


def _named(found: Json, d: Json) -> dict[str, Any]:
    ours, theirs = (found["rows"][key] for key in (d["method"], d["against"]))
    shown = drawn.styled(ours)
    return {**d, "key": ours["key"], "label": ours["label"], "minus": theirs["label"], "family": shown["family"]}


# ------------------------------------------------------------------------------------------------------------ sections


def _tables(rows: Sequence[Json]) -> list[str]:
    shown = [drawn.styled(row) for row in rows]
    seeds: Columns = {"seeds": lambda row: str(len(row["seeds"]))}
    printed, parts = [row for row in shown if row["published"]], []
    if printed:
        pairs = {}
        for (label, ours), theirs in zip(_means().items(), _published(rows).values(), strict=True):
            pairs |= {f"ours: {label}": ours, f"published: {label}": theirs}
        parts = ["<h3>Beside the published numbers</h3>", html(pairs, printed)]
    return [
        html({**seeds, **_measured()}, shown, _best(rows)), *parts, note(_note(rows)),
        "<h3>What validation users chose</h3>", html(_there(_choices(), rows), shown),
        note("β: the KL's weight in the best epoch, where it rises with the steps. Masks at test: so many are averaged, or 0"
             " for a single pass without masks, whichever is better on validation users."),
        "<h3>Reach and cost</h3>", html(_there(_costs(), rows), shown),
        note("Coverage: the share of the catalogue that is recommended to anyone, in lists of a hundred. Popularity: the mean"
             " percentile of what is recommended."),
    ]  # fmt: skip


def _there(shown: Columns, rows: Sequence[Json]) -> Columns:
    """Without columns that have nothing in them."""
    return {heading: cell for heading, cell in shown.items() if any(cell(row) != "–" for row in rows)}


def _means() -> dict[str, Callable[[Json], str]]:
    def cell(name: str) -> Callable[[Json], str]:
        return lambda row: f"{row['test'][name]['mean']:.4f}"

    return {label: cell(name) for name, label in MEASURES.items()}


def _best(rows: Sequence[Json]) -> dict[str, str]:
    return {label: max(rows, key=lambda row: row["test"][name]["mean"])["key"] for name, label in MEASURES.items()}


def _note(rows: Sequence[Json]) -> str:
    if not any(row["published"] for row in rows):
        return NOTE.partition(" Published")[0]
    names = [row["published_as"] for row in rows if row["published"] and not row["in_the_paper"]]
    return NOTE.format(elsewhere="; ".join(names) or "others")


def _grids(found: Json) -> list[str]:
    if not found["grids"]:
        return ["<p>No grid of fixed rates was run (methods vae-drop and vae-dense-drop).</p>"]
    figures = [
        drawn.grid(_titled(grid["label"]), encoder, grid, found["rows"]) for encoder, grid in found["grids"].items()
    ]
    parts = [
        panels(*figures),
        note("Test NDCG@100 in per cent. Blue: fixed rates; the ring is the one that validation chooses. Other discs: learned"
             " rates, at the mean drop rate of the best epoch. Bars: one standard error to either side."),
    ]  # fmt: skip
    for grid in found["grids"].values():
        points = [drawn.styled(found["rows"][point["key"]]) for point in grid["points"]]
        parts += [
            f"<h3>{escape(_titled(grid['label']))}</h3>",
            html(_grid_columns(), points, _best(points), grid["chosen"]),
        ]
    if found["differences"]:
        parts += [
            "<h3>Learned minus fixed, paired by seed</h3>",
            html(_difference_columns(), [_named(found, d) for d in found["differences"]]),
            note("Mean ± standard error of the difference over shared seeds; from three seeds on with its 95 % t interval, not"
                 " corrected for the number of comparisons. Level: the interval holds 0. The fixed rate is chosen on"
                 " validation users."),
        ]  # fmt: skip
    return parts


def _training(rows: Sequence[Json]) -> list[str]:
    figures = drawn.training(rows)
    if not figures:
        return ["<p>No network was trained.</p>"]
    return [*figures, note("Means over seeds, at most thirty epochs a line.")]


def _rates(rows: Sequence[Json]) -> list[str]:
    if not (figure := drawn.popularity(rows)):
        return ["<p>No run has learned a rate for every item.</p>"]
    return [figure, note("Twenty bins of equally many items; the first seed.")]


def _examples(found: Json, titles: Mapping[str, str]) -> list[str]:
    rows = [row for row in found["rows"].values() if row["examples"]["users"]]
    if not rows:
        return ["<p>No run kept examples.</p>"]
    learned = [row for row in rows if row["method"].startswith("sivae-lbd")] or rows
    row = max(learned, key=lambda row: row["validation"][MEASURE]["mean"])

    def named(item: Any) -> str:
        return escape(titles.get(str(item), str(item)))

    cards = []
    for user in row["examples"]["users"]:
        hits = sum(each["held_out"] for each in user["shown"])
        more = f"<li>… and {user['items'] - len(user['has'])} more</li>" if user["items"] > len(user["has"]) else ""
        has = "".join(f"<li>{named(item)}</li>" for item in user["has"])
        shown = "".join(
            f"<li><span{' class=found' * each['held_out']}>{'✓ ' * each['held_out']}{named(each['item'])}</span></li>"
            for each in user["shown"]
        )
        cards.append(
            f"<article><h3>A user with {user['items']} items</h3><p>{hits} of {len(user['shown'])} shown are among the"
            f" {user['held_out']} held out.</p><h4>Has</h4><ul>{has}{more}</ul><h4>Is shown</h4><ol>{shown}</ol></article>"
        )
    parts = [
        f"<p>Under {escape(row['label'])}, seed {row['examples']['seed']}: what a user has (the best-known"
        " first), and what is recommended. ✓: among the items that were held out.</p>",
        f'<div class="people">{"".join(cards)}</div>',
    ]
    return parts if titles else [*parts, note("Items by id; lbdrop report --data PREPARED shows titles.")]


def _said_once(protocols: Sequence[str]) -> list[str]:
    """The data first, once, then what was done with them."""
    ends = [text.partition("; ") for text in protocols]
    return list(dict.fromkeys([*(data for data, _, _ in ends), *(_titled(rest) for _, _, rest in ends if rest)]))


def _titled(text: str) -> str:
    return text[:1].upper() + text[1:]
