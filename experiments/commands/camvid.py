"""``lbdrop reproduce camvid``: the right half of the paper's first table, one run or all of them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lbdrop.cli.common import check_writable, one_line_errors, writing
from lbdrop.errors import needs_extra

__all__ = ["camvid"]


def camvid(
    method: Annotated[
        str, typer.Option(help="lbd, concrete, gaussian, mc or mc-masks, several with commas, or 'all' for the table.")
    ] = "lbd",
    seed: Annotated[int, typer.Option(min=0, help="Draws weights, batches and masks.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="With --method all: seeds 0 to this less one.")] = 2,
    recipe: Annotated[str, typer.Option(help="'fast', or 'paper' for the published one.")] = "fast",
    epochs: Annotated[int | None, typer.Option(min=1, help="On whole images; default: the recipe's.")] = None,
    crop_epochs: Annotated[
        int | None,
        typer.Option(min=0, help="Of a common start on crops, 0 for none; default: the recipe's."),
    ] = None,
    crop: Annotated[int | None, typer.Option(min=32, help="Side of the crops; default: the recipe's.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Whole images a step; default: the recipe's.")] = None,
    statistics: Annotated[
        str | None, typer.Option(help="What BatchNorm uses at test: batch, running or re-estimated.")
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder of CamVid with its split files, or of archives of it.")] = Path(
        "data/camvid"
    ),
    out: Annotated[Path | None, typer.Option(help="Folder for the records.")] = None,
    resume: Annotated[bool, typer.Option(help="Keep states in --out, and go on from them.")] = False,
) -> None:
    """FC-DenseNet103 on CamVid with learned, Concrete, Gaussian or fixed dropout in its middle block; one JSON a row.

    MC and regular dropout are one training (mc) predicted with and without masks. A run whose JSON is there already is
    skipped, so a table that was interrupted goes on where it stopped. Example:

        lbdrop reproduce camvid --method all --data data/camvid --resume
    """
    console = Console(highlight=False)
    with one_line_errors():
        with needs_extra("vision"):
            import torch

            from experiments.camvid import recipes, runs
            from experiments.vision.camvid import load
        rounds = crop_epochs if crop_epochs is None else (recipes.Round(crop_epochs),) * (crop_epochs > 0)
        given = {"epochs": epochs, "rounds": rounds, "crop": crop, "batch": batch, "statistics": statistics}
        names = ["lbd"] if method == "all" else [name.strip() for name in method.split(",")]
        bases = [recipes.Settings(method=name, seed=seed, recipe=recipe).check() for name in names]
        chosen: dict[str, Any] = recipes.RECIPES[recipe] | {k: v for k, v in given.items() if v is not None}
        bases = [replace(base, **chosen).check() for base in bases]
        wanted = list(recipes.contestants(bases[0], seeds)) if method == "all" else bases
        folder = out if out is not None else Path(recipes.__file__).parent / "results"
        with writing(folder):
            check_writable(folder)
        scenes = load(data).to("cuda" if torch.cuda.is_available() else "cpu")
        starts = runs.Starts(scenes, folder / "checkpoints" if resume else None, progress=len(wanted) == 1)
        for index, settings in enumerate(wanted, start=1):
            head = f"{index}/{len(wanted)} {settings.name}"
            with writing(folder):
                records = runs.once(settings, starts, folder)
            if records is None:
                console.print(f"{head}: there already", markup=False)
            for record in records or ():
                console.print(f"{head}: {runs.summary(record)}", markup=False, soft_wrap=True)
        console.print(f"records: {folder.resolve()}; next: lbdrop report {folder}", markup=False, soft_wrap=True)
