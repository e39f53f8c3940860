"""``lbdrop report``: the records of many runs as one page, one table and one summary."""

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
        Path | None, typer.Option(help="Folder of CIFAR-10, to draw the most and least certain test images.")
    ] = None,
) -> None:
    """Compare CIFAR-10 runs by method, over seeds, beside the paper's numbers."""
    console = Console(highlight=False)
    with one_line_errors():
        try:
            import matplotlib  # noqa: F401  # before any work: the figure needs it

            from lbdrop.report import cifar10, runs, summary
            from lbdrop.vision.cifar10 import load
        except ModuleNotFoundError as error:
            raise DropoutError(f"{error.name}: package not found; pip install 'lbdrop[vision]'") from error
        found = summary.summarise(runs.read(paths))
        images = load(data, download=False, progress=False).test if data is not None else None
        with writing(out):
            check_writable(out, *cifar10.FILES)
            written = cifar10.write(out, found, images)
        console.print(table(found))
        for sentence in (*found["findings"], *found["caveats"]):
            console.print(f"· {sentence}", markup=False)
        for path in written:
            console.print(str(path.resolve()), markup=False, soft_wrap=True)


def table(found: dict[str, Any]) -> Table:
    """One line for each method."""
    from lbdrop.report.summary import show

    shown = Table(title="Test set, mean ± standard error", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("", "seeds", "acc. %", "NLL", "ECE"):
        shown.add_column(heading, justify="right" if heading else "left")
    for key in found["shown"]:
        row = found["rows"][key]
        # Without spaces around ± the table fits 80 columns.
        cells = (show(row["measures"][name], name).replace(" ", "") for name in ("accuracy", "nll", "ece"))
        shown.add_row(row["label"], str(len(row["seeds"])), *cells)
    return shown
