"""A training step of FC-DenseNet103 whose dense blocks are one operation each, beside layers one by one, in one run.

Claim: at most three quarters of the time. A block's features lie where they are read and are normalised by statistics that
are made once (:mod:`experiments.networks.dense`). Both steps are recorded as CUDA graphs and replayed, so no memory is
measured: it is taken when a graph is recorded.
Run: ``python -m benchmarks.dense_step`` on a GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor

from benchmarks.timing import measure
from experiments.networks import dense
from experiments.networks.tiramisu import FCDenseNet
from experiments.vision.segment import WARM_UP, Recorded, image_losses
from lbdrop.io.records import provenance, write_json

__all__ = ["difference", "main"]

WAYS = {"layers one by one": False, "blocks as one operation": True}


def main(
    batch: Annotated[int, typer.Option(help="Crops a step.")] = 4,
    side: Annotated[int, typer.Option(help="Side of a crop.")] = 224,
    repeats: Annotated[int, typer.Option(help="Rounds; every contestant runs once in each.")] = 30,
    out: Annotated[Path | None, typer.Option(help="The JSON to write.")] = None,
) -> None:
    """Time of a step, and how far apart the two ways' gradients are."""
    device = torch.device("cuda")
    x = torch.rand(batch, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 11, (batch, side, side), device=device)
    steps = {name: _step(x, y, fast) for name, fast in WAYS.items()}
    measured = {
        name: {key: value for key, value in each.items() if key not in ("peak_bytes", "memory_ratio")}
        for name, each in measure(steps, repeats, device, "training step").items()
    }
    result: dict[str, Any] = {
        "settings": {"network": "FC-DenseNet103", "batch": batch, "side": side, "repeats": repeats, "optimizer": "AdamW",
                     "precision": "bf16 autocast", "recorded": True},
        "provenance": provenance(),
        "contestants": measured,
        "gradients_apart": difference(x[:1], y[:1]),
    }  # fmt: skip
    console = Console()
    for name, each in measured.items():
        console.print(f"{name}: {each['seconds'] * 1e3:.1f} ms, {each['time_ratio']:.2f} ×")
    console.print(f"gradients apart in float32, relative: {result['gradients_apart']:.2g}")
    path = out or Path(__file__).parent / "results" / "dense-step-cuda.json"
    console.print(f"JSON: {write_json(path, result)}", soft_wrap=True)


def _network(device: torch.device) -> Any:
    network = FCDenseNet(103, generator=torch.Generator().manual_seed(0))
    return network.to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def _step(x: Tensor, y: Tensor, fast: bool) -> Callable[[], object]:
    network = _network(x.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True, capturable=True)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = image_losses(network, x, y).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    recorded = Recorded(step, network)
    with _as_one_operation(fast):
        for _ in range(WARM_UP + 2):
            recorded(x, y)
    return lambda: recorded(x, y)


def difference(x: Tensor, y: Tensor) -> float:
    """Of all gradients in float32 without dropout, the norm of the difference relative to that of one."""
    found = []
    for fast in WAYS.values():
        network = _network(x.device)
        for module in network.modules():
            if hasattr(module, "rate"):
                module.rate = 0.0
        with _as_one_operation(fast), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            image_losses(network, x, y).mean().backward()
        found.append(torch.cat([p.grad.flatten() for p in network.parameters()]).double())
    return float((found[0] - found[1]).norm() / found[0].norm())


@contextmanager
def _as_one_operation(wanted: bool) -> Iterator[None]:
    is_fast = dense.is_fast
    dense.is_fast = lambda x, weight: wanted and is_fast(x, weight)
    try:
        yield
    finally:
        dense.is_fast = is_fast


if __name__ == "__main__":
    typer.run(main)
