"""One task under one seed: every contestant that is wanted, a record each."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.uncertainty import measures
from experiments.uncertainty.bench import SAMPLES, Bench, Fitted
from experiments.uncertainty.contestants import CONTESTANTS
from experiments.uncertainty.tasks import TASKS
from lbdrop import metrics
from lbdrop.io.records import provenance, write_json

__all__ = ["COUNTS", "Job", "name_of", "run"]

COUNTS = (1, 2, 5, 10, 20, 50)


def name_of(task: str, seed: int, contestant: str) -> str:
    """Of its file."""
    plain = "".join(c if c.isalnum() else "-" for c in f"{task} {contestant}".lower())
    return f"{plain}-{seed}.json"


class Job(NamedTuple):
    """Several contestants of one task and seed, so that what they share is trained once; written as they end."""

    task: str
    seed: int
    contestants: tuple[str, ...]
    folder: Path
    out: Path
    device: str = "cpu"
    epochs: int | None = None

    def run(self) -> int:
        for record in run(self.task, self.seed, self.contestants, self.folder, self.device, self.epochs):
            write_json(self.out / name_of(self.task, self.seed, record["contestant"]), record)
        return len(self.contestants)


def run(
    task: str, seed: int, contestants: Sequence[str], folder: Path, device: str = "cpu", epochs: int | None = None
) -> Iterator[dict[str, Any]]:
    """The records, one after another."""
    bench = Bench(TASKS[task], TASKS[task].load(folder, seed), seed, device, epochs)
    for name in contestants:
        fitted = CONTESTANTS[name][0](bench)
        yield {
            "task": task, "seed": seed, "contestant": name, "epochs": bench.epochs,
            "examples": len(bench.parts.train[0]), **_measured(bench, fitted),
            "training": fitted.seconds / bench.plain_seconds, "passes": fitted.passes, "copies": fitted.copies,
            "extra": fitted.extra or {}, "provenance": provenance(device),
        }  # fmt: skip


def _measured(bench: Bench, fitted: Fitted) -> dict[str, Any]:
    parts = bench.parts
    x, y = parts.validation
    degree = measures.temperature(fitted.probabilities(x, SAMPLES).mean(0), y)
    samples = fitted.probabilities(parts.test[0], max(COUNTS) if fitted.passes == SAMPLES else 1)
    probs = samples[:SAMPLES].mean(0) if fitted.copies == 1 else fitted.probabilities(parts.test[0], SAMPLES).mean(0)
    scaled = measures.calibrated(probs, degree)
    found: dict[str, Any] = {
        "test": measures.judge(probs, parts.test[1]), "calibrated": measures.judge(scaled, parts.test[1]),
        "temperature": degree,
        "masks": {str(n): float(metrics.nll(samples[:n].mean(0), parts.test[1])) for n in COUNTS if n <= len(samples)},
    }  # fmt: skip
    inside = _entropy(probs)
    for name, strangers in (("near", parts.near), ("far", parts.far)):
        outside = _entropy(fitted.probabilities(strangers, SAMPLES).mean(0))
        found[name] = float(metrics.out_of_distribution_auroc(inside, outside))
    found["shift"] = {
        name: measures.judge(fitted.probabilities(x, SAMPLES).mean(0), y) for name, (x, y) in parts.shifted.items()
    }
    return found


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(1)
