"""``lbdrop reproduce rates``: learned rates beside the best hand-tuned one, on many tasks, with one table."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn

from lbdrop.cli.common import check_writable, one_line_errors, writing
from lbdrop.errors import DropoutError

__all__ = ["rates"]


def rates(
    task: Annotated[str, typer.Option(help="A task or several with commas, or 'all-small'.")] = "all-small",
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds 0 to this less one; in the UCI tasks, published splits.")
    ] = 5,
    contestant: Annotated[
        str, typer.Option(help="A contestant or several with commas, 'grid' for the fixed rates, or 'all'.")
    ] = "all",
    epochs: Annotated[int | None, typer.Option(min=1, help="The task's unless told.")] = None,
    data: Annotated[Path, typer.Option(help="Folder of fashion-mnist.npz and uci.tar.")] = Path("data"),
    out: Annotated[
        Path | None, typer.Option(help="Folder for records and table.", show_default="experiments/rates/results")
    ] = None,
) -> None:
    """Fixed, rival and learned dropout rates on the same networks; one JSON a task, and a table with verdicts.

    A run that is there already is skipped, so a table that was interrupted goes on where it stopped. Example:

        lbdrop reproduce rates --task digits --seeds 5
    """
    console = Console(highlight=False)
    with one_line_errors():
        try:
            from experiments.rates import contestants, run, table, tasks
        except ModuleNotFoundError as error:
            raise DropoutError(
                f"{error.name}: package not found; this command wants a checkout of lbdrop and pip install -e '.[demo]'"
            ) from error
        plan = [
            (one, who, seed)
            for one in tasks.chosen(task)
            for seed in range(seeds)
            for who in contestants.chosen(contestant, one)
        ]
        folder = out if out is not None else run.RESULTS
        with writing(folder):
            check_writable(folder)
        for one in {id(one): one for one, _, _ in plan}.values():
            one.data(data, 0)  # missing data should end the table before it begins
        failed = 0
        columns = (*Progress.get_default_columns(), TextColumn("{task.fields[now]}"))
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("runs", total=len(plan), now="")
            for one, who, seed in plan:
                lead, path = f"{one.name}, {who.label}, seed {seed}:", folder / f"{one.name}.json"
                progress.update(bar, now=lead[:-1])
                if not run.kept(run.read(path), one, who, seed, epochs):
                    try:
                        record = _run(run, one, who, seed, folder=data, epochs=epochs)
                    except DropoutError as error:
                        if len(plan) == 1:
                            raise
                        failed += 1  # the other runs do not depend on this one
                        console.print(f"{lead} failed: {error}", markup=False, soft_wrap=True)
                    else:
                        with writing(folder):
                            run.write(path, one, record)
                        console.print(f"{lead} {_summary(record)}", markup=False, soft_wrap=True)
                progress.advance(bar)
        with writing(folder):
            for path in table.save(folder):
                console.print(str(path.resolve()), markup=False, soft_wrap=True)
        if failed:
            raise DropoutError(f"{failed} of {len(plan)} runs failed; the same command tries them again")


def _run(run: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run.run(*args, **kwargs)


def _summary(record: dict[str, Any]) -> str:
    def shown(measures: dict[str, float]) -> str:
        return ", ".join(f"{name} {value:.4f}" for name, value in measures.items())

    test, rates = record["test"], [f"{layer['mean']:.2f}" for layer in record["rates"].values()]
    return (
        f"test {shown(test['deterministic'])}; 20 masks {shown(test['masks'])};"
        f"{' rates ' + ' '.join(rates) + ';' if rates else ''} {record['seconds']['train']:.1f} s"
    )
