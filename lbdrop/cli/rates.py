"""``lbdrop rates``: the learned rates of a saved model, as a table and a histogram in the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lbdrop.cli.common import one_line, one_line_errors
from lbdrop.errors import DropoutError

if TYPE_CHECKING:
    from lbdrop.cli.saved_rates import Item, Layer

__all__ = ["rates"]

BINS, NARROW = 10, 72
LEVELS = " ▁▂▃▄▅▆▇█"


def rates(
    model: Annotated[
        Path,
        typer.Argument(
            help="A .safetensors file or a folder of them, a state written by torch.save, a Lightning checkpoint, or the"
            " folder of a recommender."
        ),
    ],
    items: Annotated[
        int | None, typer.Option(min=1, help="Most and least dropped items of a recommender.", show_default="5")
    ] = None,
) -> None:
    """Show the learned drop rates of a saved model: a table by layer, and a histogram.

    Examples:

        lbdrop rates model.safetensors

        lbdrop rates model --items 10
    """
    console = Console(highlight=False)
    with one_line_errors():
        from lbdrop.cli.saved_rates import read_rates

        found = read_rates(model)
        if items is not None and not found.items:
            raise DropoutError(f"--items: want a recommender with a rate for each item, got {model}; leave it out")
        console.print(_table(found.layers, console.width))
        console.print(_histogram(found.layers, console.width))
        if found.items:
            count = min(items or 5, len(found.items))
            console.print(_items("Least dropped items", found.items[:count]))
            console.print(_items("Most dropped items", found.items[: -count - 1 : -1]))


def _table(layers: "Sequence[Layer]", width: int) -> Table:
    wide = width >= NARROW
    several = any(len(layer.rates) > 1 for layer in layers)
    table = Table(title="Learned drop rates", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("layer", overflow="fold")
    if wide:
        table.add_column("kind", overflow="fold")
    for heading in ("units", "mean", "min", "max"):
        table.add_column(heading, justify="right", no_wrap=True)
    if wide and several:
        table.add_column("0 … 1", no_wrap=True)
    for layer in layers:
        values = layer.rates
        numbers = [f"{len(values):,}", *(f"{float(of):.3f}" for of in (values.mean(), values.min(), values.max()))]
        words = [layer.name, layer.kind] if wide else [layer.name]
        spark = [_spark(_counts([layer]))] if wide and several else []
        table.add_row(*(Text(one_line(word)) for word in words), *numbers, *spark)  # names come from files: no markup
    return table


def _counts(layers: "Sequence[Layer]") -> list[int]:
    """Rates in bins of equal width from 0 to 1."""
    import torch

    together = torch.cat([layer.rates for layer in layers])
    return torch.histc(together, BINS, 0.0, 1.0).int().tolist()


def _spark(counts: Sequence[int]) -> str:
    most = max(*counts, 1)
    return "".join(LEVELS[-(-count * (len(LEVELS) - 1) // most)] for count in counts)


def _histogram(layers: "Sequence[Layer]", width: int) -> Table:
    """A bar for each tenth, as long as the terminal allows."""
    counts = _counts(layers)
    most, total = max(*counts, 1), sum(counts)
    longest = max(4, min(width - 28, 60))
    table = Table(
        title=f"{total:,} rate{'s' * (total != 1)}",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        show_header=False,
    )
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for place, count in enumerate(counts):
        length = -(-count * longest // most)  # a single rate shows too
        table.add_row(f"{place / BINS:.1f}–{(place + 1) / BINS:.1f}", f"{count:,}", f"[cyan]{'█' * length}[/cyan]")
    return table


def _items(title: str, items: "Sequence[Item]") -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("item", overflow="fold")
    for heading in ("drop rate", "likes"):
        table.add_column(heading, justify="right", no_wrap=True)
    for item in items:
        table.add_row(Text(one_line(item.name)), f"{item.rate:.3f}", f"{item.likes:,.0f}")
    return table
