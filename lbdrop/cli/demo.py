"""``lbdrop demo``: learned against fixed dropout on handwritten digits, in a minute or two."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from lbdrop.cli.common import check_writable, one_line_errors, writing
from lbdrop.demo import CONTESTANTS, Settings, Tick, run, work
from lbdrop.records import write_json
from lbdrop.report import percent, plus_minus, rates_in_words, write_page

__all__ = ["demo"]

PAGE, RESULT = "index.html", "result.json"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the JSON.")] = Path("lbdrop-demo"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Networks per contestant; 3 unless told.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training digits; 120 unless told.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of a minute; the numbers mean little.")
    ] = False,
) -> None:
    """Train a small network on digits without dropout, with fixed rates and with learned ones, and compare them."""
    given = {name: value for name, value in {"seeds": seeds, "epochs": epochs}.items() if value is not None}
    settings = replace(Settings.quick() if quick else Settings(), **given)
    console = Console(highlight=False)
    with one_line_errors():
        with writing(out):
            check_writable(out, PAGE, RESULT)
        with bar(settings, console) as tick:
            result = run(settings, tick)
        with writing(out):
            write_json(out / RESULT, result)
            write_page(out / PAGE, result)
        console.print(table(result))
        for sentence in result["findings"]:
            console.print(f"· {sentence}", markup=False)
        paths = f"\nPage: {(out / PAGE).resolve()}\nJSON: {(out / RESULT).resolve()}"
        console.print(paths, markup=False, soft_wrap=True)


@contextmanager
def bar(settings: Settings, console: Console) -> Iterator[Tick]:
    """A progress bar, and the function that moves it by one epoch."""
    trainings = len(settings.strengths) + settings.seeds - 1
    columns = (TextColumn("{task.description:<27}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        total = settings.epochs * trainings * sum(work(contestant) for contestant in CONTESTANTS)
        task = progress.add_task("", total=total)
        yield lambda label, cost: progress.update(task, description=label, advance=cost)


def table(result: Mapping[str, Any]) -> Table:
    """All contestants on the test digits."""
    seeds, test = len(result["seeds"]), result["data"]["test"]
    over = f"mean ± standard error over {seeds} seeds" if seeds > 1 else "one seed"
    shown = Table(title=f"{test:,} test digits, {over}", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("", "acc. %", "NLL", "ECE", "drop rates"):
        shown.add_column(heading, justify="left" if heading in ("", "drop rates") else "right")
    for entry in result["contestants"]:
        values = entry["test"]
        cells = percent(values["accuracy"]), plus_minus(values["nll"]), plus_minus(values["ece"])
        # Without spaces around ± the table fits 80 columns.
        shown.add_row(entry["name"], *(cell.replace(" ", "") for cell in cells), rates_in_words(entry))
    return shown
