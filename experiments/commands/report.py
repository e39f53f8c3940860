"""``lbdrop report``: the records of many runs, of any kind, as one page with its tables beside it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lbdrop.cli.common import check_writable, one_line, one_line_errors, writing

if TYPE_CHECKING:
    from experiments.report.compose import Grid

__all__ = ["report", "terminal_table"]


def report(
    paths: Annotated[list[Path], typer.Argument(help="Run records (.json), or folders of them; kinds may be mixed.")],
    out: Annotated[Path, typer.Option(help="Folder for page, tables, summaries and figures.")] = Path("lbdrop-report"),
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data for pictures and titles: a folder of CIFAR-10, of CamVid or of prepared ratings; or one with cifar10,"
            " camvid and prepared in it."
        ),
    ] = None,
) -> None:
    """Show runs side by side on one page that works offline: sortable tables, figures, pictures, examples.

    Records of different experiments have a chapter each. A JSON that is no record is named and left out.

    Examples:

        lbdrop report experiments/cifar10/results --data data/cifar10

        lbdrop report lbdrop-demo experiments benchmarks/results --data data --out everything
    """
    console = Console(highlight=False)
    with one_line_errors():
        from experiments.report import compose

        found = compose.compose(paths, data)
        with writing(out):
            check_writable(out, compose.PAGE)
            written = compose.write(out, found)
        for part in found.parts.values():
            for grid in part.grids:
                console.print(terminal_table(grid))
            for sentence in part.said:
                console.print(f"· {one_line(sentence)}", markup=False)
        for sentence in found.unknown:
            console.print(one_line(sentence), markup=False, soft_wrap=True)
        for path in written:
            console.print(str(path.resolve()), markup=False, soft_wrap=True)


def terminal_table(grid: "Grid") -> Table:
    """The table in the terminal."""
    shown = Table(title=grid.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in grid.headings:
        shown.add_column(heading, justify="right" if heading else "left")
    for row in grid.rows:
        shown.add_row(*(Text(one_line(cell)) for cell in row))  # names come from files: no markup
    return shown
