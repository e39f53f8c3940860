"""``lbdrop reproduce rates``: learned rates beside the best hand-tuned one, on many tasks, with one table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress, TextColumn

from lbdrop.cli.common import check_writable, one_line, one_line_errors, writing
from lbdrop.errors import DropoutError, needs_extra
from lbdrop.guards.processes import device_of_this_process

__all__ = ["rates"]


def rates(
    task: Annotated[str, typer.Option(help="A task or several with commas, or 'all-small'.")] = "all-small",
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds 0 to this less one; in the UCI tasks, published splits.")
    ] = 5,
    contestant: Annotated[
        str,
        typer.Option(
            help="A contestant or several with commas, 'grid' for the fixed rates, 'rules' for rates learned by other rules"
            " than balanced noise and self-tuning, 'retrained' for the grid's choice trained again on all data, or 'all'."
        ),
    ] = "all",
    epochs: Annotated[int | None, typer.Option(min=1, help="Default: the task's.")] = None,
    data: Annotated[
        Path,
        typer.Option(
            help="Folder of fashion-mnist.npz, uci.tar, prepared, cifar10 and vgg19-conv.npz, as the tasks need them."
        ),
    ] = Path("data"),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time, each on one core.", show_default="all cores; 4 on a GPU")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Default: a GPU if there is one.")] = None,
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
        with needs_extra("demo"):
            from experiments.rates import contestants, pool, run, table, tasks
        names = [name.strip() for name in contestant.split(",")]
        again = "retrained" in names or names == ["all"]
        direct = ",".join(name for name in names if name != "retrained")
        whos = {one: contestants.chosen(direct, one) if direct else [] for one in tasks.chosen(task)}
        folder = out if out is not None else run.RESULTS
        with writing(folder):
            check_writable(folder)
        ours = (_path(folder, one).exists() for one in tasks.TASKS.values())
        if (there := [name for name in table.FILES if (folder / name).exists()]) and not any(ours):
            raise DropoutError(
                f"{folder}: want a place for {there[0]}, got one of another program; choose another --out"
            )
        place = _checked(device)
        for one in whos:
            one.data(data, 0)  # missing data should end the table before it begins

        at_once = pool.usual_workers(place) if workers is None else workers
        cells = list(product(whos, range(seeds)))

        def run_all(choose: Callable[[Any, int, Any], Iterable[Any]]) -> list[str]:
            records = {one: run.read(_path(folder, one)) for one in whos}
            wanted: dict[Any, list[Any]] = {}  # contestants by their run, which two of them may have in common
            for one, seed in cells:
                for who in choose(one, seed, records[one]):
                    if not run.kept(records[one], one, who, seed, epochs):
                        wanted.setdefault((one, seed, who.same_run), []).append(who)
            jobs = {
                pool.Job(one.name, those[0].name, seed, data, epochs, place): those
                for (one, seed, _), those in wanted.items()
            }
            return _run_all(jobs, folder, at_once, console)

        failed = run_all(lambda one, seed, records: whos[one])
        if again:  # which ones is known when the grid has run
            failed += run_all(lambda one, seed, records: table.retraining(records, seed) if one.of.releases else [])
        with writing(folder):
            for path in table.save(folder):
                console.print(str(path.resolve()), markup=False, soft_wrap=True)
        if failed:
            what = failed[0] if len(failed) == 1 else f"{len(failed)} runs failed"
            raise DropoutError(f"{what}; the same command tries again")


def _run_all(jobs: Mapping[Any, Sequence[Any]], folder: Path, at_once: int, console: Console) -> list[str]:
    """Run what is left to run and write every record as it comes, of all whose run it is; returns what failed, and why."""
    from experiments.rates import pool, run, tasks

    failed: list[str] = []
    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[last]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("runs", total=len(jobs), last=f"{min(at_once, len(jobs))} at a time")
        try:
            for job, outcome in pool.outcomes([*jobs], at_once):
                if isinstance(outcome, DropoutError):
                    failed.append(f"{job.label}: {outcome}")
                    if len(jobs) > 1:
                        console.print(f"{job.label}: failed: {outcome}", markup=False, soft_wrap=True)
                else:
                    task = tasks.TASKS[job.task]
                    with writing(folder):
                        for who in jobs[job]:
                            run.write(_path(folder, task), task, run.shared(outcome, task, who, job.epochs))
                    console.print(f"{job.label}: {_summary(outcome)}", markup=False, soft_wrap=True)
                progress.update(bar, advance=1, last=job.label)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(
                f"stopped; runs that had ended are in {folder}, the same command goes on"
            ) from error
    return failed


def _checked(device: str | None) -> str:
    """The device by name, given or found; an error where it does not exist."""
    try:
        place = device_of_this_process(device)
        torch.empty(1, device=place).sum().item()  # "meta" has no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise DropoutError(
            f"device: want cpu or a GPU that is there, got {device!r} ({one_line(str(error))})"
        ) from error
    return str(place)


def _path(folder: Path, task: Any) -> Path:
    return folder / f"{task.name}.json"


def _summary(record: dict[str, Any]) -> str:
    def shown(measures: dict[str, float]) -> str:
        return ", ".join(f"{name} {value:.4f}" for name, value in measures.items())

    test, rates = record["test"], [f"{layer['mean']:.2f}" for layer in record["rates"].values()]
    return (
        f"test {shown(test['deterministic'])}; 20 masks {shown(test['masks'])};"
        f"{' rates ' + ' '.join(rates) + ';' if rates else ''} {record['seconds']['train']:.1f} s"
    )
