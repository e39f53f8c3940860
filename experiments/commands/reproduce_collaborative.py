"""``lbdrop reproduce netflix|netflix-sample|ml-1m|ml-20m|msd``: the collaborative filtering table, one run or all of them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lbdrop.cli.common import check_writable, one_line_errors, writing
from lbdrop.errors import DropoutError, needs_extra
from lbdrop.guards import processes
from lbdrop.io.records import write_json

__all__ = ["command"]


def command(name: str) -> Callable[..., None]:
    """The command of one data set, or of a sample of one."""
    whole = name.removesuffix("-sample")

    def reproduce(
        method: Annotated[
            str,
            typer.Option(
                help="A method or several with commas, 'grid' for the fixed rates, or 'all' for the whole table."
            ),
        ] = "sivae-lbd",
        seed: Annotated[int, typer.Option(min=0, help="Draws weights, the order of users and masks.")] = 0,
        seeds: Annotated[int, typer.Option(min=1, help="With 'all' or 'grid': seeds 0 to this less one.")] = 1,
        rate: Annotated[
            float | None,
            typer.Option(help="Of vae-drop and vae-dense-drop the fixed rate, default 0.5."),
        ] = None,
        epochs: Annotated[int | None, typer.Option(min=1, help="Default: the schedule's.")] = None,
        batch: Annotated[int | None, typer.Option(min=1, help="Users a step; default: the schedule's.")] = None,
        change: Annotated[
            list[str] | None, typer.Option(help="Another setting of the network, as name=value; may be repeated.")
        ] = None,
        validate_every: Annotated[int, typer.Option(min=1, help="Epochs between validations.")] = 1,
        validation_samples: Annotated[
            int, typer.Option(min=0, help="Masks averaged when epochs are compared; 0 runs once, without masks.")
        ] = 0,
        patience: Annotated[int | None, typer.Option(min=1, help="Stop after so many validations in vain.")] = None,
        data: Annotated[
            Path | None,
            typer.Option("--data", "--source", help="The prepared data set.", show_default=f"data/prepared/{whole}"),
        ] = None,
        out: Annotated[
            Path | None, typer.Option(help="Folder for the records.", show_default="experiments/collaborative/results")
        ] = None,
        resume: Annotated[bool, typer.Option(help="Keep the state of each epoch in --out, and go on from it.")] = False,
        device: Annotated[str | None, typer.Option(help="Default: a GPU if there is one.")] = None,
    ) -> None:
        console = Console(highlight=False, quiet=not processes.is_first())
        with one_line_errors():
            with needs_extra("recommend,rivals"):
                from experiments.collaborative import recipes, samples
                from lbdrop.recommend.data.prepared import load_prepared
            runs = _runs(recipes, name, method, seed, seeds, rate)
            changes = {"epochs": epochs, "batch": batch} | _changes(change or [])
            changes = {key: value for key, value in changes.items() if value is not None}
            for one in runs:  # a wrong setting should end the table before it begins
                if one.method not in recipes.RIVALS:
                    recipes.settings_of(one, changes)
            folder = out if out is not None else Path(recipes.__file__).parent / "results"
            with writing(folder):
                check_writable(folder)
            left = [one for one in runs if not (folder / f"{one.name}.json").exists()]
            training = {
                "validate_every": validate_every,
                "patience": patience,
                "validation_samples": validation_samples,
            }
            split = samples.split(_prepared(load_prepared, whole, data), name) if left else None
            failed = 0
            for index, one in enumerate(runs, start=1):
                lead, path = f"{index}/{len(runs)} {one.name}:", folder / f"{one.name}.json"
                if path.exists():
                    console.print(f"{lead} there already", markup=False)
                    continue
                state = folder / "checkpoints" / one.name if resume else None
                try:
                    with writing(folder, state):
                        record = recipes.run(
                            name,
                            one.method,
                            one.seed,
                            split,
                            rate=one.rate,
                            device=processes.device_of_this_process(device),
                            changes={} if one.method in recipes.RIVALS else changes,
                            training=training,
                            checkpoints=state,
                            progress=len(runs) == 1,
                        )
                except DropoutError as error:
                    if len(runs) == 1:
                        raise
                    failed += 1  # the other rows of a table do not depend on this one
                    console.print(f"{lead} failed: {error}", markup=False, soft_wrap=True)
                    continue
                if processes.is_first():
                    with writing(folder):
                        write_json(path, record)
                console.print(f"{lead} {_summary(record)}", markup=False, soft_wrap=True)
            console.print(f"records: {folder.resolve()}; next: lbdrop report {folder}", markup=False, soft_wrap=True)
            if failed:
                raise DropoutError(f"{failed} of {len(runs)} runs failed; the same command tries them again")

    reproduce.__doc__ = f"""The paper's recommenders and their rivals on {name}; one JSON a run.

    A run whose JSON is there already is skipped, so a table that was interrupted goes on where it stopped. Example:

        lbdrop reproduce {name} --method all --seeds 3
    """
    return reproduce


def _runs(recipes: Any, name: str, method: str, seed: int, seeds: int, rate: float | None) -> Sequence[Any]:
    chosen = method.split(",")
    if rate is not None and (len(chosen) > 1 or method in ("all", "grid")):
        raise DropoutError(f"--rate: want a single method, got {method!r}")
    if method == "all":
        return list(recipes.contestants(name, seeds))
    if method == "grid":
        return [one for s in range(seeds) for encoder in recipes.GRIDS for one in recipes.grid(name, encoder, s)]
    return [recipes.Run(name, each.strip(), seed, rate) for each in chosen]


def _changes(given: Sequence[str]) -> dict[str, Any]:
    """Values are read as JSON where they are JSON, and as text elsewhere."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise DropoutError(f"--change: want name=value, got {each!r}")
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            found[name] = value
    return found


def _prepared(load: Callable[[Path], Any], name: str, data: Path | None) -> Any:
    folder = data if data is not None else Path("data/prepared") / name
    if not (folder / "manifest.json").exists():
        raise DropoutError(
            f"{folder}: want {name} as prepared by lbdrop, got nothing there; run lbdrop data prepare {name} SOURCE --out"
            f" {folder.parent}, or say where it is with --data"
        )
    prepared = load(folder)
    if prepared.name != name:
        raise DropoutError(f"{folder}: want {name}, got {prepared.name}; say where {name} is with --data")
    return prepared


def _summary(record: dict[str, Any]) -> str:
    test, error = record["test"]["mean"], record["test"]["standard_error"]
    errors = {name: "" if value is None else f" ± {value:.4f}" for name, value in error.items()}
    measures = ", ".join(f"{name} {value:.4f}{errors[name]}" for name, value in test.items())
    best, rates, choice = record["best"], record["rates"], record["choice"]
    parts = [f"test {measures}", f"validation ndcg@100 {record['validation']['mean']['ndcg@100']:.4f}"]
    parts += [f"best epoch {best['epoch']} of {len(record['history'])}, β {best['beta']:.3g}"] if best else []
    parts += [f"keep {rates['keep']:.3f}"] if rates else []
    parts += [f"chosen {json.dumps(choice['chosen'])}"] if choice and len(choice["tried"]) > 1 else []
    return ", ".join([*parts, f"{record['seconds']['train']:.0f} s"])
