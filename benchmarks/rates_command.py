"""How long one command of the table of rates takes: every contestant of a task, runs side by side, measured as a whole.

Goal: under 30 minutes for five seeds of a task. Run, where nothing else runs: ``python -m benchmarks.rates_command``. Five
seeds are measured, from the start of the command to its end, or as many as asked for, and five reckoned from these.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from experiments.rates import pool, run
from experiments.rates.record import CONTESTANTS
from lbdrop.io.records import provenance, write_json

RESULTS = Path(__file__).parent / "results"
SEEDS = 5


def main(
    tasks: Annotated[str, typer.Option(help="Tasks, with commas.")] = "fashion-3000-mlp",
    data: Annotated[Path, typer.Option(help="Folder of fashion-mnist.npz and uci.tar.")] = Path("data"),
    out: Annotated[Path | None, typer.Option(help="The JSON to write.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="The task's unless told.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many to run.")] = SEEDS,
) -> None:
    """Time the command of some tasks, on all cores."""
    rows: dict[str, Any] = {}
    for task in tasks.split(","):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "lbdrop", "reproduce", "rates", "--task", task, "--seeds", str(seeds)]
            command += [] if epochs is None else ["--epochs", str(epochs)]
            wall, before = time.perf_counter(), _cpu()
            subprocess.run([*command, "--device", "cpu", "--data", str(data), "--out", folder], check=True)
            wall, cpu = time.perf_counter() - wall, _cpu() - before
            records = run.read(Path(folder) / f"{task}.json")
        training: dict[str, float] = {}
        for record in records:
            training[record["contestant"]] = training.get(record["contestant"], 0.0) + record["seconds"]["cpu"] / seeds
        five = SEEDS * wall / seeds / 60
        runs = len({(record["seed"], CONTESTANTS[record["contestant"]].same_run) for record in records})
        rows[task] = {"runs": runs, "wall_seconds": wall, "cpu_seconds": cpu, "minutes_of_five_seeds": five}
        rows[task]["cpu_seconds_of_training_a_seed"] = training
        Console().print(f"{task}: {runs} runs in {wall:.0f} s, so five seeds in {five:.1f} minutes")
    settings = {"workers": pool.usual_workers("cpu"), "seeds": seeds, "epochs": epochs}
    write_json(
        out or RESULTS / "rates_command.json",
        {"settings": settings, "provenance": provenance("cpu"), "tasks": rows},
    )


def _cpu() -> float:
    """Of all processes that were started from here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    typer.run(main)
