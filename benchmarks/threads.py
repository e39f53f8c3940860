"""Ten thousand predictions with one model, by eight threads at once: each has to be the one that a single thread gets.

Claim: none is wrong and none fails. Run: ``python -m benchmarks.threads``.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

import lbdrop
from lbdrop.io.records import provenance, write_json

RESULTS = Path(__file__).parent / "results"


def main(
    threads: Annotated[int, typer.Option(help="Threads that predict at once.")] = 8,
    calls: Annotated[int, typer.Option(help="Predictions with each model.")] = 5_000,
    seeds: Annotated[int, typer.Option(help="Different seeds; a single thread predicts once with each.")] = 100,
    out: Annotated[Path, typer.Option(help="The JSON to write.")] = RESULTS / "threads.json",
) -> None:
    """Compare the predictions of many threads with those of one."""
    torch.set_num_threads(1)
    models: dict[str, Callable[[], nn.Module]] = {
        "MLP, one batched call": perceptron,
        "LSTM, pass after pass": Recurrent,
    }
    result: dict[str, Any] = {name: tried(make, threads, calls, seeds) for name, make in models.items()}
    total = {key: sum(each[key] for each in result.values()) for key in ("predictions", "right", "wrong", "errors")}
    settings = {"threads": threads, "calls": calls, "seeds": seeds, "masks": 5}
    write_json(out, {"settings": settings, "total": total, "models": result, "provenance": provenance()})
    Console().print(total)


def tried(make: Callable[[], nn.Module], threads: int, calls: int, seeds: int) -> dict[str, Any]:
    """How many predictions are right, wrong or errors, and the seconds of one in one thread and in many."""
    torch.manual_seed(0)
    model, x = lbdrop.convert(make(), verbose=False), torch.randn(16, 8)

    def predicted(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return lbdrop.predict(model, x, samples=5, kind="regression", generator=generator).mean

    def right(call: int) -> bool | None:
        try:
            return torch.equal(predicted(call % seeds), expected[call % seeds])
        except Exception:
            return None

    modes = [module.training for module in model.modules()]
    start = time.perf_counter()
    expected = [predicted(seed) for seed in range(seeds)]
    alone = (time.perf_counter() - start) / seeds
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(right, range(calls)))
    at_once = (time.perf_counter() - start) / calls
    counts = {"right": answers.count(True), "wrong": answers.count(False), "errors": answers.count(None)}
    unharmed = [module.training for module in model.modules()] == modes
    return {
        "predictions": calls,
        **counts,
        "modes_unharmed": unharmed,
        "seconds_alone": alone,
        "seconds_at_once": at_once,
    }


def perceptron() -> nn.Module:
    hidden = [nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*hidden, nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 3))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 16, 2, dropout=0.3, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x[:, None])[0][:, -1])


if __name__ == "__main__":
    typer.run(main)
