"""Prediction with many masks on one street scene, FC-DenseNet103, beside a loop of whole passes, in one run.

Claim: ten masks take at most 0.75 × the time of ten passes. The way down, 22.2 of 69.1 G multiply-adds, runs once; what is
behind the masks runs for all of them in one call, which takes more memory than one pass after another: both are given.
Run: ``python -m benchmarks.segmentation`` on a GPU, ``--height 96 --width 128`` on a CPU.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import nn

import lbdrop
from benchmarks.timing import measure, table
from experiments.networks.tiramisu import CommonDropout2d, FCDenseNet, batch_statistics
from lbdrop.io.records import provenance, write_json

__all__ = ["compare", "main"]


def main(
    height: Annotated[int, typer.Option(help="Height of the image.")] = 360,
    width: Annotated[int, typer.Option(help="Width of the image.")] = 480,
    samples: Annotated[int, typer.Option(help="Masks.")] = 10,
    repeats: Annotated[int, typer.Option(help="Rounds; every contestant runs once in each.")] = 15,
    depth: Annotated[int, typer.Option(help="Depth of the network.")] = 103,
    out: Annotated[Path | None, typer.Option(help="The JSON to write.")] = None,
) -> None:
    """Time and memory of prediction, as ratios to a loop of passes."""
    result = compare(height, width, samples, repeats, depth)
    console = Console()
    for statistics in ("running", "batch"):
        console.print(table(f"{samples} masks, {statistics} statistics", result[statistics]["contestants"]))
    path = out or Path(__file__).parent / "results" / f"segmentation-{result['settings']['device']}.json"
    console.print(f"JSON: {write_json(path, result)}", soft_wrap=True)


def compare(height: int, width: int, samples: int, repeats: int, depth: int) -> dict[str, Any]:
    """The measured contestants under both kinds of BatchNorm statistics."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    torch.manual_seed(0)

    def dropout(block: str, channels: int) -> nn.Module:
        return lbdrop.LearnableDropout(rate=0.2, channels=True) if block == "middle" else CommonDropout2d(0.2)

    network: Any = FCDenseNet(depth, dropout=dropout).to(device).eval()
    image = torch.rand(1, 3, height, width, device=device)
    if on_gpu:
        network, image = (each.to(memory_format=torch.channels_last) for each in (network, image))

    def under(function: Any, statistics: str) -> Any:
        def run() -> object:
            precision = torch.autocast("cuda", dtype=torch.bfloat16) if on_gpu else nullcontext()
            own = batch_statistics(network) if statistics == "batch" else nullcontext()
            with torch.no_grad(), precision, own:
                return function()

        return run

    def loop() -> lbdrop.Predictive:
        with lbdrop.masks.drawn(network):
            return lbdrop.Predictive.of(torch.stack([network(image) for _ in range(samples)]), keep_samples=False)

    contestants = {
        f"a loop of {samples} passes": loop,
        "lbdrop.predict": lambda: lbdrop.predict(network, image, samples=samples, keep_samples=False),
        "one pass without masks": lambda: network(image),
    }
    result: dict[str, Any] = {
        "settings": {"network": f"FC-DenseNet{depth}", "height": height, "width": width, "samples": samples,
                     "repeats": repeats, "device": device.type, "precision": "bf16 autocast" if on_gpu else "float32"},
        "provenance": provenance(),
    }  # fmt: skip
    for statistics in ("running", "batch"):
        each = {name: under(function, statistics) for name, function in contestants.items()}
        result[statistics] = {"contestants": measure(each, repeats, device, statistics)}
    return result


if __name__ == "__main__":
    typer.run(main)
