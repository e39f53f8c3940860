"""``lbdrop demo``: learned against fixed dropout on handwritten digits and in a generated shop, in a minute or two."""

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
    """Compare learned with fixed dropout, in a small network on digits and in a recommender on a generated shop."""
    given = {name: value for name, value in {"seeds": seeds, "epochs": epochs}.items() if value is not None}
    settings = replace(Settings.quick() if quick else Settings(), **given)
    console = Console(highlight=False)
    with one_line_errors():
        with writing(out):
            check_writable(out, PAGE, RESULT)
        # Not above: other commands need neither the time nor the packages.
        from lbdrop.demo_shop import ShopSettings
        from lbdrop.demo_shop import run as run_shop

        with bar(settings, console) as tick:
            result = run(settings, tick)
        with console.status("opening a shop") as status:
            opened = run_shop(
                ShopSettings.quick() if quick else ShopSettings(), lambda name: status.update(f"in the shop: {name}")
            )
        result |= {"shop": opened, "seconds": round(result["seconds"] + opened["seconds"], 1)}
        with writing(out):
            write_json(out / RESULT, result)
            write_page(out / PAGE, result)
        console.print(table(result))
        for sentence in result["findings"]:
            console.print(f"· {sentence}", markup=False)
        console.print(shop_table(result["shop"]))
        for sentence in result["shop"]["findings"]:
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


def shop_table(shop: Mapping[str, Any]) -> Table:
    """All contestants on the shop's test customers, the oracle last."""
    title = f"{shop['data']['test']:,} new customers of a generated shop, mean ± standard error"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("", "Recall@20", "NDCG@100"):
        shown.add_column(heading, justify="right" if heading else "left")
    for entry in shop["contestants"]:
        cells = (plus_minus(entry["test"][measure]).replace(" ", "") for measure in ("recall@20", "ndcg@100"))
        shown.add_row(entry["name"], *cells)
    return shown
