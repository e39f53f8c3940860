"""Recommender runs as one page that needs nothing else, a markdown table, a JSON summary and a figure.

Every number and sentence comes from the summary; published numbers stand beside ours as they were printed.

Boluki, Ardywibowo, Dadaneh, Zhou and Qian, Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lbdrop.records import write_json
from lbdrop.report import charts
from lbdrop.report import collaborative_charts as drawn
from lbdrop.report.collaborative_runs import MEASURES
from lbdrop.report.collaborative_summary import MAIN
from lbdrop.report.figures import panels
from lbdrop.report.page import _list, _section, document, facts, note, plus_minus, write_files
from lbdrop.report.runs import Json
from lbdrop.report.summary import judged
from lbdrop.report.tables import Columns, html, pipes

__all__ = ["FILES", "Titles", "markdown", "render", "write"]

FILES = ("index.html", "table.md", "summary.json", "grid.png")

Titles = Mapping[str, Mapping[str, str]]
"""By data set: an item's title by its id as text."""

NOTE = (
    "± is the standard error over seeds, or over test users where there is one seed. The best mean of each column is bold,"
    " whether or not it is clearly best. Published: the paper's own table, or for {elsewhere} their authors' papers; on the"
    " complete data, with the published schedules."
)


def write(folder: Path, summary: dict[str, Any], titles: Titles | None = None) -> list[Path]:
    """Write all files; the figure only where a grid of fixed rates was run."""
    contents = {FILES[0]: render(summary, titles).encode(), FILES[1]: markdown(summary).encode()}
    if (figure := drawn.grid_png(summary)) is not None:
        contents[FILES[3]] = figure
    write_files(folder, contents)
    write_json(folder / FILES[2], summary)
    return [folder / name for name in FILES if name in contents or name == FILES[2]]


def render(summary: Json, titles: Titles | None = None) -> str:
    """The whole page."""
    sets = summary["datasets"]
    parts = [_header(summary), _section("What came out", _list(summary["findings"]), *map(note, summary["caveats"]))]
    for name, found in sets.items():
        rows = [found["rows"][key] for key in found["shown"]]

        def titled(title: str, *content: str, lead: str = f"{name}: " if len(sets) > 1 else "") -> str:
            return _section(lead + (title if lead else _titled(title)), *content)

        parts += [
            titled("the table", *_tables(rows)),
            titled("fixed rates and learned ones", *_grids(found)),
            titled("training", *_training(rows)),
            titled("learned rates by popularity", *_rates(rows)),
            titled("three test users", *_examples(found, (titles or {}).get(name, {}))),
        ]
    protocol = [text for found in sets.values() for text in _said_once(found["protocol"])]
    parts.append(_section("How it was run", *facts(summary["runs"], protocol)))
    whole = [part.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%") for part in parts]
    return document("lbdrop: collaborative filtering", whole, charts.CHART_STYLE + drawn.GRID_STYLE)


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
        "validation NDCG@100": _cell("validation", MAIN),
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
    return {"validation NDCG@100": _cell("validation", MAIN), **_measured()}


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


def _header(summary: Json) -> str:
    seeds = max(len(found["seeds"]) for found in summary["datasets"].values())
    return (
        "<header>\n<h1>Collaborative filtering: dropout rates, fixed and learned</h1>\n"
        f"<p>{len(summary['runs'])} runs on {escape(', '.join(summary['datasets']))}, up to {seeds}"
        f" seed{'s' * (seeds > 1)} a method: what recommenders find of items that were hidden from them.</p>\n</header>"
    )


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
    row = max(learned, key=lambda row: row["validation"][MAIN]["mean"])

    def named(item: Any) -> str:
        return escape(titles.get(str(item), str(item)))

    parts = [
        f"<p>Under {escape(row['label'])}, seed {row['examples']['seed']}: what a user has (the best-known"
        " first), and what is recommended. ✓: among the items that were held out.</p>"
    ]
    for user in row["examples"]["users"]:
        hits = sum(each["held_out"] for each in user["shown"])
        more = f"<li>… and {user['items'] - len(user['has'])} more</li>" if user["items"] > len(user["has"]) else ""
        has = "".join(f"<li>{named(item)}</li>" for item in user["has"])
        shown = "".join(f"<li>{'✓ ' * each['held_out']}{named(each['item'])}</li>" for each in user["shown"])
        parts.append(
            f"<h3>A user with {user['items']} items: {hits} of {len(user['shown'])} shown are among the"
            f" {user['held_out']} held out</h3>"
            + panels(f"<figure><figcaption>has</figcaption><ul>{has}{more}</ul></figure>",
                     f"<figure><figcaption>is shown</figcaption><ol>{shown}</ol></figure>")
        )  # fmt: skip
    return parts if titles else [*parts, note("Items by id; lbdrop report --data PREPARED shows titles.")]


def _said_once(protocols: Sequence[str]) -> list[str]:
    """The data first, once, then what was done with them."""
    ends = [text.partition("; ") for text in protocols]
    return list(dict.fromkeys([*(data for data, _, _ in ends), *(_titled(rest) for _, _, rest in ends if rest)]))


def _titled(text: str) -> str:
    return text[:1].upper() + text[1:]
