"""What learned rates and many masks cost on VGG19, beside plain dropout and beside other libraries, in one run.

Claims: a training step with learned rates takes at most 1.10 × the same step with ``nn.Dropout``; prediction with 20 masks
at most 1.3 × one deterministic pass. Contestants take turns, so that whatever slows the machine slows all of them; times are
medians. Run: ``python -m benchmarks.overhead`` on a CPU (64 × 64), ``--size 224 --batch 64`` on a GPU.
"""

import importlib.util
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import lbdrop
from experiments.networks.vgg import VGG
from lbdrop.io.records import provenance, write_json

__all__ = ["main"]

Contestant = Callable[[], object]


def main(
    size: Annotated[int, typer.Option(help="Side of the images.")] = 64,
    batch: Annotated[int, typer.Option(help="Images a step.")] = 16,
    samples: Annotated[int, typer.Option(help="Masks in prediction.")] = 20,
    repeats: Annotated[int, typer.Option(help="Rounds; every contestant runs once in each.")] = 7,
    width: Annotated[int, typer.Option(help="Units of the classifier's hidden layers.")] = 4096,
    depth: Annotated[int, typer.Option(help="Depth of the VGG.")] = 19,
    out: Annotated[Path | None, typer.Option(help="The JSON to write.")] = None,
) -> None:
    """Time and memory of a training step and of prediction, as ratios."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    images = torch.rand(batch, 3, size, size, device=device)
    labels = torch.randint(0, 10, (batch,), device=device)

    def model(dropout: Callable[[int], nn.Module]) -> nn.Module:
        return VGG(depth, dropout=dropout, classes=10, width=width).to(device)

    def autocast() -> Any:
        # bf16 where the hardware has it; a CPU run stays in float32.
        return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()

    groups = {
        "training step": lambda: training(model, images, labels, autocast),
        f"prediction, {samples} masks": lambda: prediction(model, images, samples, autocast),
    }
    result: dict[str, Any] = {
        "settings": {"network": f"VGG{depth}", "size": size, "batch": batch, "samples": samples, "repeats": repeats,
                     "precision": "bf16 autocast" if device.type == "cuda" else "float32", "width": width},
        "provenance": provenance(),
    }  # fmt: skip
    console = Console()
    for name, make in groups.items():
        contestants, missing = make()
        measured = measure(contestants, repeats, device, name)
        result[name] = {"contestants": measured, "missing": missing}
        console.print(table(name, measured))
        for peer, why in missing.items():
            console.print(f"{peer}: not measured, {why}", markup=False)
    path = out or Path(__file__).parent / "results" / f"overhead-{device.type}.json"
    console.print(f"JSON: {write_json(path, result)}", soft_wrap=True)


def training(
    model: Callable[..., nn.Module], images: Tensor, labels: Tensor, autocast: Callable[[], Any]
) -> tuple[dict[str, Contestant], dict[str, str]]:
    """One optimiser step: plain dropout first, to which all others are compared."""
    # One network: memory for its three moments is taken once, and only the dropouts differ between contestants.
    network: Any = model(lambda units: nn.Dropout(0.5))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-5, fused=images.is_cuda)
    plain = [network.classifier[2], network.classifier[5]]
    learned = [lbdrop.LearnableDropout(layer.out_features).to(images.device) for layer in
               (network.classifier[0], network.classifier[3])]  # fmt: skip
    logits = torch.optim.Adam([layer.logit for layer in learned], lr=1e-3)

    def use(layers: list[nn.Module]) -> None:
        network.classifier[2], network.classifier[5] = layers

    def losses(m: nn.Module) -> Tensor:
        with autocast():
            return F.cross_entropy(m(images), labels, reduction="none")

    def step(loss: Tensor) -> None:
        loss.backward()
        optimizer.step()
        logits.step()
        optimizer.zero_grad()
        logits.zero_grad()

    def plain_step() -> None:
        use(plain)
        step(losses(network).mean())

    def learned_step(estimator: str, check: bool) -> Contestant:
        use(list(learned))
        objective = lbdrop.Objective(network, examples=50_000, estimator=estimator, check=check)

        def run() -> None:
            use(list(learned))
            step(objective(losses))

        return run

    return {
        "nn.Dropout": plain_step,
        "learned, double-cv": learned_step("double-cv", True),
        "learned, double-cv-4": learned_step("double-cv-4", True),
        "learned, double-cv-8": learned_step("double-cv-8", True),
        "learned, double-cv, check=False": learned_step("double-cv", False),
        "learned, arm": learned_step("arm", True),
    }, {}


def prediction(
    model: Callable[..., nn.Module], images: Tensor, samples: int, autocast: Callable[[], Any]
) -> tuple[dict[str, Contestant], dict[str, str]]:
    """One deterministic pass first, then many masks by us, by a loop, and by other libraries."""
    learned, plain = model(lbdrop.LearnableDropout).eval(), model(lambda units: nn.Dropout(0.5)).eval()

    def under(function: Contestant) -> Contestant:
        def run() -> object:
            with torch.no_grad(), autocast():
                return function()

        return run

    def loop() -> Tensor:
        with lbdrop.masks.drawn(learned):
            return torch.stack([learned(images) for _ in range(samples)])

    contestants = {
        "one deterministic pass": under(lambda: plain(images)),
        "lbdrop.predict": under(lambda: lbdrop.predict(learned, images, samples=samples)),
        "a loop of passes": under(loop),
    }
    missing = {}
    for name, peer in {"torch-uncertainty": torch_uncertainty, "baal": baal}.items():
        try:
            contestants[name] = under(peer(model(lambda units: nn.Dropout(0.5)).eval(), images, samples))
        except ImportError as error:
            missing[name] = str(error)
    return contestants, missing


def torch_uncertainty(network: nn.Module, images: Tensor, samples: int) -> Contestant:
    # Its MC dropout is one file; the package around it imports torchvision, which the CPU machine does not have.
    found = importlib.util.find_spec("torch_uncertainty")
    if found is None or found.origin is None:
        raise ImportError("torch_uncertainty is not installed")
    file = Path(found.origin).parent / "methods" / "mc_dropout.py"
    spec = importlib.util.spec_from_file_location("peer_mc_dropout", file)
    if spec is None or spec.loader is None or not file.exists():
        raise ImportError(f"no {file}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wrapped = module._MCDropout(network, samples, last_layer=False, on_batch=False).eval()
    return lambda: wrapped(images)


def baal(network: nn.Module, images: Tensor, samples: int) -> Contestant:
    from baal.bayesian.dropout import patch_module  # pyright: ignore[reportMissingImports]
    from baal.modelwrapper import ModelWrapper, TrainingArgs  # pyright: ignore[reportMissingImports]

    arguments = TrainingArgs(use_cuda=images.is_cuda, replicate_in_memory=False)
    wrapper = ModelWrapper(patch_module(network, inplace=True), arguments)
    return lambda: wrapper.predict_on_batch(images, iterations=samples)


def measure(
    contestants: dict[str, Contestant], repeats: int, device: torch.device, title: str
) -> dict[str, dict[str, float]]:
    """Median seconds and peak extra bytes, absolute and as ratios to the first contestant."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    memory: dict[str, int] = {}
    for name, run in contestants.items():
        run()  # warm up: engines chosen, kernels loaded
        memory[name] = peak_bytes(run, device)
    for _ in track(range(repeats), title, transient=True):
        for name, run in contestants.items():
            synchronize(device)
            start = time.perf_counter()
            run()
            synchronize(device)
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(each) for name, each in times.items()}
    base = next(iter(contestants))
    return {
        name: {
            "seconds": medians[name],
            "time_ratio": medians[name] / medians[base],
            "peak_bytes": memory[name],
            "memory_ratio": memory[name] / memory[base],
            "fastest_seconds": min(times[name]),
        }
        for name in contestants
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_bytes(run: Contestant, device: torch.device) -> int:
    """The most that was allocated at once beyond what was there before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events: Any = profile.profiler
    held = peak = 0
    for event in events.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def table(title: str, measured: dict[str, dict[str, float]]) -> Table:
    shown = Table(title=title, title_justify="left")
    for heading in ("", "ms", "× time", "MiB", "× memory"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for name, m in measured.items():
        shown.add_row(
            name,
            f"{m['seconds'] * 1e3:,.1f}",
            f"{m['time_ratio']:.3f}",
            f"{m['peak_bytes'] / 2**20:,.0f}",
            f"{m['memory_ratio']:.2f}",
        )
    return shown


if __name__ == "__main__":
    typer.run(main)
