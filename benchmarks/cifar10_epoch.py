"""Seconds of one CIFAR-10 training epoch with every dropout scheme, in turn, beside the plain loop with ``nn.Dropout``.

Claim: learned rates take at most 1.10 × regular dropout. Run: ``python -m benchmarks.cifar10_epoch`` with the options of
``lbdrop reproduce cifar10``; the recipe is ``fast``.
"""

import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import nn

from experiments.cifar10 import recipes
from experiments.networks.vgg import VGG
from experiments.vision.batches import Batches
from experiments.vision.cifar10 import load
from experiments.vision.train import Schedule, fit
from lbdrop.io.records import provenance, write_json

PLAIN = "plain loop, nn.Dropout"


def main(
    data: Annotated[Path, typer.Option(help="Folder of CIFAR-10.")] = Path("data/cifar10"),
    rounds: Annotated[int, typer.Option(help="Measured epochs of each; one more comes first and is not counted.")] = 2,
    limit: Annotated[int | None, typer.Option(help="Images an epoch; all unless told.")] = None,
    out: Annotated[Path, typer.Option(help="The JSON to write.")] = Path(__file__).parent
    / "results"
    / "cifar10-epoch.json",
) -> None:
    """Time an epoch of each method."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    split = load(data).split().to(device)
    settings = recipes.Settings()
    seconds: dict[str, list[float]] = {}
    for round_ in range(rounds + 1):
        for name in (PLAIN, "regular", "lbd-unit", "lbd-layer", "concrete", "gaussian"):
            torch.manual_seed(0)
            if name == PLAIN:
                network: Any = VGG(19, dropout=lambda units: nn.Dropout(0.5), classes=10, pool=settings.pool)
            else:
                network = recipes.build(replace(settings, method=name), None)
            network = network.to(device, memory_format=torch.channels_last)
            objective = (
                None
                if name == PLAIN
                else recipes.build_objective(replace(settings, method=name), network, split, steps=0)
            )
            batches = Batches(
                split.train[:limit], split.train_labels[:limit], settings.batch, settings.size, train=True, augment=True
            )
            history = fit(network, objective, batches, Schedule(1, settings.lr, settings.rate_lr), progress=False)
            if round_:
                seconds.setdefault(name, []).append(history[0]["seconds"])
    base = statistics.median(seconds[PLAIN])
    result = {
        name: {"seconds": statistics.median(each), "ratio": statistics.median(each) / base, "each": each}
        for name, each in seconds.items()
    }
    write_json(out, {"settings": asdict(settings), "provenance": provenance(), "epochs": result})
    for name, row in result.items():
        Console().print(f"{name:24} {row['seconds']:.2f} s  {row['ratio']:.3f} ×")


if __name__ == "__main__":
    typer.run(main)
