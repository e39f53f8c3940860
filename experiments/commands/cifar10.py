"""``lbdrop reproduce cifar10``: the left half of the paper's first table, one run or all of them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lbdrop.cli.common import check_writable, one_line_errors, writing
from lbdrop.errors import needs_extra
from lbdrop.guards import processes
from lbdrop.io.records import write_json

__all__ = ["cifar10"]


def cifar10(
    method: Annotated[
        str, typer.Option(help="A method, or 'all' for the whole table with the grid of rates.")
    ] = "lbd-unit",
    seed: Annotated[int, typer.Option(min=0, help="Draws weights, batches and masks.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="With --method all: seeds 0 to this less one.")] = 3,
    recipe: Annotated[str, typer.Option(help="'fast', or 'paper' for the published one.")] = "fast",
    rate: Annotated[
        float | None, typer.Option(help="The fixed drop rate, or the one to start from; default: the recipe's.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Default: the recipe's.")] = None,
    size: Annotated[int | None, typer.Option(min=32, help="Side of the images; default: the recipe's.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images a step; default: the recipe's.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; default: the recipe's.")] = None,
    data: Annotated[Path, typer.Option(help="Folder of CIFAR-10, in any of its formats.")] = Path("data/cifar10"),
    weights: Annotated[Path | None, typer.Option(help="Pretrained VGG19: .npz, .pth or .safetensors.")] = None,
    foreign: Annotated[
        Path | None,
        typer.Option(help="Cached images of other classes (.npz), to measure out-of-distribution detection."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the records.")] = None,
    resume: Annotated[bool, typer.Option(help="Keep the state of each epoch in --out, and go on from it.")] = False,
    corruptions: Annotated[bool, typer.Option(help="Measure under noise, blur and JPEG too.")] = True,
) -> None:
    """VGG19 on CIFAR-10 with learned, Concrete, Gaussian, MC or regular dropout; one JSON a run.

    A run whose JSON is there already is skipped, so a table that was interrupted goes on where it stopped. Example:

        lbdrop reproduce cifar10 --method all --weights vgg19-conv.npz
    """
    console = Console(highlight=False, quiet=not processes.is_first())
    with one_line_errors():
        with needs_extra("vision"):
            from experiments.cifar10 import recipes
            from experiments.vision.cifar10 import load
            from experiments.vision.tiny_imagenet import load_cached
        given: dict[str, Any] = {"epochs": epochs, "size": size, "batch": batch, "lr": lr, "rate": rate}
        base = recipes.Settings(method="lbd-unit" if method == "all" else method, seed=seed, recipe=recipe).check()
        usual = {"rate": recipes.METHODS[base.method].starts[0]} | recipes.RECIPES[recipe]
        base = replace(base, **usual | {name: value for name, value in given.items() if value is not None})
        runs = list(recipes.contestants(base, seeds)) if method == "all" else [base]
        folder = out if out is not None else Path(recipes.__file__).parent / "results"
        with writing(folder):
            check_writable(folder)
        device = processes.device_of_this_process()
        images = load(data).to(device)
        others = load_cached(foreign).to(device) if foreign is not None else None
        shifts = recipes.corruptions(images.test) if corruptions else None
        for index, settings in enumerate(runs, start=1):
            path = folder / f"{settings.name}.json"
            if path.exists():
                console.print(f"{index}/{len(runs)} {settings.name}: there already", markup=False)
                continue
            state = folder / "checkpoints" / settings.name if resume else None
            with writing(folder, state):
                record = recipes.run(
                    settings,
                    images,
                    weights=weights,
                    foreign=others,
                    device=device,
                    checkpoints=state,
                    shifts=shifts,
                    progress=len(runs) == 1,
                )
            if processes.is_first():
                with writing(folder):
                    write_json(path, record)
            console.print(f"{index}/{len(runs)} {settings.name}: {_summary(record)}", markup=False, soft_wrap=True)
        console.print(f"records: {folder.resolve()}; next: lbdrop report {folder}", markup=False, soft_wrap=True)


def _summary(record: dict[str, Any]) -> str:
    test, seconds = record["test"], record["seconds"]
    rates = ", ".join(f"{layer['mean']:.2f}" for layer in record["rates"].values())
    return (
        f"test accuracy {test['accuracy']:.2%}, NLL {test['nll']:.4f}, ECE {test['ece']:.4f}, PAvPU"
        f" {test['pavpu_mean_entropy']:.3f}, validation NLL {record['validation']['nll']:.4f}, rates {rates},"
        f" {seconds['train']:.0f} s"
    )
