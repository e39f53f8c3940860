"""``lbdrop reproduce``: the experiments of the paper, each a thin shell over a recipe in ``experiments``."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from experiments.collaborative.record import DATA
from experiments.commands.camvid import camvid
from experiments.commands.cifar10 import cifar10
from experiments.commands.reproduce_collaborative import command
from experiments.commands.reproduce_rates import rates
from experiments.toy.record import PARAMETERS, styled
from lbdrop.cli.common import check_writable, one_line_errors, writing
from lbdrop.errors import needs_extra
from lbdrop.io.records import write_json

__all__ = ["app", "toy"]

app = typer.Typer(no_args_is_help=True, help="Run an experiment of the paper again.")
app.command()(cifar10)
app.command()(camvid)
app.command()(rates)
for _name in DATA:
    app.command(_name)(command(_name))


@app.callback()
def reproduce() -> None:
    """Run an experiment of the paper again."""
    # Without a callback a single command would swallow its own name.


@app.command()
def toy(
    seed: Annotated[int, typer.Option(min=0, help="Draws the network, its data and all masks.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the JSON and the figure.", show_default="experiments/toy/results")
    ] = None,
    draws: Annotated[int, typer.Option(min=2, help="Monte-Carlo samples at every pair of keep rates.")] = 200,
    grid: Annotated[int, typer.Option(min=2, help="Keep rates per parameter.")] = 13,
) -> None:
    """Bias, spread and error of four gradient estimators against exact gradients; half a minute.

    Example:

        lbdrop reproduce toy --seed 1 --out toy
    """
    console = Console(highlight=False)
    with one_line_errors():
        with needs_extra("demo"):
            from experiments.toy import figure, recipes
        folder = out if out is not None else Path(recipes.__file__).parent / "results"
        names = ("toy.json", "toy.png")
        with writing(folder):
            check_writable(folder, *names)
        with Progress(console=console, transient=True) as progress:

            def track(items: Sequence[Any], what: str) -> Iterable[Any]:
                return progress.track(items, description=what)

            record = recipes.run(recipes.Settings(seed=seed, draws=draws, grid=grid), track)
        with writing(folder):
            paths = [write_json(folder / names[0], record), figure.save(record, folder / names[1])]
        console.print(toy_table(record["summary"]))
        for path in paths:
            console.print(str(path.resolve()), markup=False, soft_wrap=True)


def toy_table(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    """One line for each estimator and parameter, within 80 columns."""
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, caption="z: bias in standard errors; means over all pairs of keep rates"
    )
    for column in ("estimator", "", "verdict"):
        table.add_column(column, no_wrap=True)
    for column in ("max |z|", "|z|>4", "|bias|", "std", "MSE"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, parameters in summary.items():
        for index, (parameter, found) in enumerate(parameters.items()):
            table.add_row(
                "" if index else styled(name).short,
                PARAMETERS[parameter],
                found["verdict"],
                f"{found['max_abs_z']:.1f}",
                f"{found['share_abs_z_above_4']:.0%}",
                *(f"{found[kind]:.2e}" for kind in ("mean_abs_bias", "mean_std", "mean_mse")),
            )
    return table
