"""What one run with balanced rates costs beside one at a fixed rate: whole runs of the same length, side by side.

Claim: a learned run costs at most 1.5 fixed ones, so a third of a grid of six. Run: ``python -m benchmarks.learned_run``.
Networks of a few hundred weights measure Python, larger ones arithmetic; the tasks go from one to the other. All but the last
have the length that they have in the table; a last one is short, for its time.
"""

import statistics
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from experiments.rates import run
from experiments.rates.record import CONTESTANTS
from experiments.rates.tasks import TASKS
from lbdrop.io.records import provenance, write_json

RESULTS = Path(__file__).parent / "results"
WHO = ("fixed-0.1", "balanced-layer")


def main(
    tasks: Annotated[str, typer.Option(help="Tasks and their epochs, with commas.")] = (
        "uci-boston:189,digits:100,fashion-3000-mlp:100,fashion-3000-cnn:20"
    ),
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs of each, in turn; the median of their ratios is reported.")
    ] = 7,
    data: Annotated[Path, typer.Option(help="Folder of fashion-mnist.npz and uci.tar.")] = Path("data"),
    out: Annotated[Path | None, typer.Option(help="The JSON to write.")] = None,
) -> None:
    """Time runs with fixed and with balanced rates of some tasks, on one thread."""
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    for name, epochs in (each.split(":") for each in tasks.split(",")):
        seconds: dict[str, list[float]] = {who: [] for who in WHO}
        for seed in range(repeats + 1):  # the first of each warms up, and is not counted
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                both = [
                    run.Training(TASKS[name], CONTESTANTS[who], seed % 3, folder=data, epochs=int(epochs))
                    for who in WHO
                ]
                for _ in zip(*both, strict=True):  # epoch by epoch in turn: the machine may be quicker a second later
                    pass
            for who, training in zip(WHO, both, strict=True):
                seconds[who] += [training.seconds["cpu"]] if seed else []
        ratio = statistics.median(tuned / fixed for fixed, tuned in zip(*(seconds[who] for who in WHO), strict=True))
        rows[name] = {"epochs": int(epochs), "seconds": seconds, "ratio": ratio}
        fixed = statistics.median(seconds[WHO[0]])
        Console().print(f"{name}: a run with balanced rates costs {ratio:.2f} fixed ones ({fixed:.2f} s of CPU)")
    target = out or RESULTS / "learned_run.json"
    write_json(target, {"settings": {"repeats": repeats, "threads": 1}, "provenance": provenance(), "tasks": rows})


if __name__ == "__main__":
    typer.run(main)
