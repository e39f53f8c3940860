"""``lbdrop report``: the records of many runs as one page, one table and one summary."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lbdrop.cli.common import check_writable, one_line_errors, writing
from lbdrop.errors import DropoutError

__all__ = ["report"]


def report(
    paths: Annotated[list[Path], typer.Argument(help="Run records (.json), or folders of them.")],
    out: Annotated[Path, typer.Option(help="Folder for page, table, summary and figure.")] = Path("lbdrop-report"),
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of CIFAR-10, to draw the most and least certain test images; or of a prepared data set, or of"
            " several, to show titles."
        ),
    ] = None,
) -> None:
    """Compare CIFAR-10 or recommender runs by method, over seeds, beside the paper's numbers."""
    console = Console(highlight=False)
    with one_line_errors():
        try:
            import matplotlib  # noqa: F401  # before any work: the figure needs it
        except ModuleNotFoundError as error:
            raise DropoutError(f"{error.name}: package not found; pip install 'lbdrop[vision]'") from error
        made = _collaborative if _experiment(paths) == "collaborative" else _cifar10
        found, table, files, write = made(paths, data)
        with writing(out):
            check_writable(out, *files)
            written = write(out)
        console.print(table)
        for sentence in (*found["findings"], *found["caveats"]):
            console.print(f"· {sentence}", markup=False)
        for path in written:
            console.print(str(path.resolve()), markup=False, soft_wrap=True)


Made = tuple[dict[str, Any], Any, Sequence[str], Callable[[Path], list[Path]]]
"""The summary, what the terminal shows, the names of the files, and what writes them."""


def _experiment(paths: Sequence[Path]) -> str:
    """Of which experiment these records are; what is none of them is left to the reader's own complaint."""
    from lbdrop.report import runs

    contents = [runs.load(path) for path in runs.files(paths)]
    kinds = {str(each.get("experiment")) for each in contents if each.get("kind") != "summary"}
    if {"cifar10", "collaborative"} <= kinds:
        raise DropoutError("records of CIFAR-10 and of recommenders are mixed; report on one experiment at a time")
    return "collaborative" if "collaborative" in kinds else "cifar10"


def _cifar10(paths: Sequence[Path], data: Path | None) -> Made:
    try:
        from lbdrop.report import cifar10, runs, summary
        from lbdrop.vision.cifar10 import load
    except ModuleNotFoundError as error:
        raise DropoutError(f"{error.name}: package not found; pip install 'lbdrop[vision]'") from error
    found = summary.summarise(runs.read(paths))
    images = load(data, download=False, progress=False).test if data is not None else None
    return found, table(found), cifar10.FILES, lambda out: cifar10.write(out, found, images)


def _collaborative(paths: Sequence[Path], data: Path | None) -> Made:
    from lbdrop.report import collaborative, collaborative_runs, collaborative_summary

    found = collaborative_summary.summarise(collaborative_runs.read(paths))
    titles = _titles(data, found["datasets"]) if data is not None else None
    shown = collaborative_table(found)
    return found, shown, collaborative.FILES, lambda out: collaborative.write(out, found, titles)


def _titles(folder: Path, wanted: Sequence[str]) -> dict[str, dict[str, str]]:
    """Titles of the data sets in this folder, or of the one that it is."""
    try:
        from lbdrop.recommend.prepared import load_prepared
    except ModuleNotFoundError as error:
        raise DropoutError(f"{error.name}: package not found; pip install 'lbdrop[recommend]'") from error
    there = [each for each in (folder, *(folder / name for name in wanted)) if (each / "manifest.json").exists()]
    if not there:
        raise DropoutError(
            f"{folder}: want a prepared data set ({', '.join(wanted)}), got none there; run lbdrop data prepare"
        )
    sets = [load_prepared(each) for each in there]
    return {
        each.name: dict(zip(map(str, each.interactions.items.to_list()), each.titles.to_list(), strict=True))
        for each in sets
    }


def table(found: dict[str, Any]) -> Table:
    """One line for each method."""
    from lbdrop.report.summary import show

    shown = _empty("Test set, mean ± standard error", ("", "seeds", "acc. %", "NLL", "ECE"))
    for key in found["shown"]:
        row = found["rows"][key]
        # Without spaces around ± the table fits 80 columns.
        cells = (show(row["measures"][name], name).replace(" ", "") for name in ("accuracy", "nll", "ece"))
        shown.add_row(row["label"], str(len(row["seeds"])), *cells)
    return shown


def collaborative_table(found: dict[str, Any]) -> Table:
    """One line for each method and data set."""
    from lbdrop.report.page import plus_minus

    shown = _empty("Test users, mean ± standard error", ("", "seeds", *found["measures"].values()))
    for name, each in found["datasets"].items():
        shown.add_section()
        shown.add_row(name)
        for key in each["shown"]:
            row = each["rows"][key]
            cells = (plus_minus(row["test"][measure], 4).replace("0.", ".").replace(" ", "") for measure in row["test"])
            shown.add_row(row["label"], str(len(row["seeds"])), *cells)
    return shown


def _empty(title: str, headings: Sequence[str]) -> Table:
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        shown.add_column(heading, justify="right" if heading else "left")
    return shown
