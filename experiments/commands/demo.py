"""``lbdrop demo``: learned against fixed dropout on handwritten digits and in a generated shop, in a minute or two."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.commands.report import terminal_table
from experiments.demo import chapter as page
from experiments.demo.record import CONTESTANTS
from experiments.demo.run import Settings, Tick, run, work
from lbdrop.cli.common import check_writable, one_line_errors, writing
from lbdrop.io.records import write_json

__all__ = ["demo"]

PAGE, RESULT = "index.html", "result.json"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the JSON.")] = Path("lbdrop-demo"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Networks per contestant; default: 3.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training digits; default: 120.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of a minute; the numbers mean little.")
    ] = False,
) -> None:
    """Compare learned with fixed dropout, in a small network on digits and in a recommender on a generated shop.

    Prints two tables; writes a JSON and a page.

    Example:

        lbdrop demo --out lbdrop-demo
    """
    given = {name: value for name, value in {"seeds": seeds, "epochs": epochs}.items() if value is not None}
    settings = replace(Settings.quick() if quick else Settings(), **given)
    console = Console(highlight=False)
    with one_line_errors():
        # Not above: other commands need neither the time nor the packages.
        from experiments.demo.shop import FILES, ShopSettings, keep_shop
        from experiments.demo.shop import run as run_shop

        with writing(out):
            check_writable(out, PAGE)
            check_writable(out, RESULT, *FILES)

        with bar(settings, console) as tick:
            result = run(settings, tick)
        shop = ShopSettings.quick() if quick else ShopSettings()
        with console.status("opening a shop") as status:
            opened = run_shop(shop, lambda name: status.update(f"in the shop: {name}"))
        result |= {"shop": opened, "seconds": round(result["seconds"] + opened["seconds"], 1)}
        with writing(out):
            write_json(out / RESULT, result)
            page.write_page(out / PAGE, result)
            keep_shop(shop, out)
        console.print(terminal_table(page.grid(result)))
        for sentence in result["findings"]:
            console.print(f"· {sentence}", markup=False)
        console.print(terminal_table(page.shop_grid(result["shop"])))
        for sentence in result["shop"]["findings"]:
            console.print(f"· {sentence}", markup=False)
        where = {"Page": PAGE, "JSON": RESULT, "Likes": FILES[0], "Titles": FILES[1]}
        paths = "".join(f"\n{what + ':':8}{(out / name).resolve()}" for what, name in where.items())
        console.print(paths, markup=False, soft_wrap=True)


@contextmanager
def bar(settings: Settings, console: Console) -> Iterator[Tick]:
    """A progress bar, and the function that moves it by one epoch."""
    trainings = len(settings.strengths) + settings.seeds - 1
    columns = (TextColumn("{task.description:<27}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        total = settings.epochs * trainings * sum(work(contestant) for contestant in CONTESTANTS.values())
        task = progress.add_task("", total=total)
        yield lambda label, cost: progress.update(task, description=label, advance=cost)
