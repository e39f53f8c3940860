"""``lbdrop rates``: the learned rates of a saved model, as a table and a histogram in the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lbdrop.cli.common import one_line, table
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
    from lbdrop.cli.saved_rates import read_rates

    console, found = Console(highlight=False), read_rates(model)
    if items is not None and not found.items:
        raise DropoutError(f"--items: want a recommender with a rate for each item, got {model}; leave it out")
    console.print(_layers(found.layers, console.width))
    console.print(_histogram(found.layers, console.width))
    if found.items:
        count = min(items or 5, len(found.items))
        console.print(_items("Least dropped items", found.items[:count]))
        console.print(_items("Most dropped items", found.items[: -count - 1 : -1]))


def _layers(layers: "Sequence[Layer]", width: int) -> Table:
    wide = width >= NARROW
    shown = table("layer", *["kind"] * wide, numbers=("units", "mean", "min", "max"), title="Learned drop rates")
    sparks = wide and any(len(layer.rates) > 1 for layer in layers)
    if sparks:
        shown.add_column("0 … 1", no_wrap=True)
    for layer in layers:
        values = layer.rates
        numbers = [f"{len(values):,}", *(f"{float(of):.3f}" for of in (values.mean(), values.min(), values.max()))]
        names = [Text(one_line(word)) for word in (layer.name, layer.kind)[: 1 + wide]]  # from files: no markup
        shown.add_row(*names, *numbers, *[_spark(_counts([layer]))] * sparks)
    return shown


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
    shown = table(numbers=("", ""), title=f"{total:,} rate{'s' * (total != 1)}")
    shown.show_header, shown.box = False, None
    shown.add_column(no_wrap=True)
    for place, count in enumerate(counts):
        length = -(-count * longest // most)  # a single rate shows too
        shown.add_row(f"{place / BINS:.1f}–{(place + 1) / BINS:.1f}", f"{count:,}", f"[cyan]{'█' * length}[/cyan]")
    return shown


def _items(title: str, items: "Sequence[Item]") -> Table:
    shown = table("item", numbers=("drop rate", "likes"), title=title)
    for item in items:
        shown.add_row(Text(one_line(item.name)), f"{item.rate:.3f}", f"{item.likes:,.0f}")
    return shown
