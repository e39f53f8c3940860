"""``lbdrop reproduce rates``: learned rates beside the best hand-tuned one, on many tasks, with one table."""

import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn

from lbdrop.cli.common import check_writable, importing_experiments, one_line_errors, writing
from lbdrop.errors import DropoutError

__all__ = ["rates"]


def rates(
    task: Annotated[str, typer.Option(help="A task or several with commas, or 'all-small'.")] = "all-small",
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds 0 to this less one; in the UCI tasks, published splits.")
    ] = 5,
    contestant: Annotated[
        str,
        typer.Option(
            help="A contestant or several with commas, 'grid' for the fixed rates, 'retrained' for the chosen one trained"
            " again on all data, or 'all'."
        ),
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
        with importing_experiments("demo"):
            from experiments.rates import contestants, run, table, tasks
        names = [name.strip() for name in contestant.split(",")]
        again = "retrained" in names or names == ["all"]
        direct = ",".join(name for name in names if name != "retrained")
        whos = {one: contestants.chosen(direct, one) if direct else [] for one in tasks.chosen(task)}
        total = seeds * sum(len(each) for each in whos.values())
        folder = out if out is not None else run.RESULTS
        with writing(folder):
            check_writable(folder)
        for one in whos:
            one.data(data, 0)  # missing data should end the table before it begins

        def plan() -> Iterator[tuple[Any, Any, int]]:
            for one, seed in product(whos, range(seeds)):
                yield from ((one, who, seed) for who in whos[one])
                if again:  # which ones is known when the grid has run
                    yield from ((one, who, seed) for who in table.retraining(run.read(_path(folder, one)), seed))

        failed = 0
        columns = (*Progress.get_default_columns(), TextColumn("{task.fields[now]}"))
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("runs", total=total or None, now="")
            for one, who, seed in plan():
                lead, path = f"{one.name}, {who.label}, seed {seed}:", _path(folder, one)
                progress.update(bar, now=lead[:-1])
                if not run.kept(run.read(path), one, who, seed, epochs):
                    try:
                        record = _run(run, one, who, seed, folder=data, epochs=epochs)
                    except DropoutError as error:
                        if total == 1:
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
            raise DropoutError(f"{failed} runs failed; the same command tries them again")


def _path(folder: Path, task: Any) -> Path:
    return folder / f"{task.name}.json"


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
