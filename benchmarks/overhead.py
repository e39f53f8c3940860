"""What learned rates cost on eleven networks: time and memory of a step and of a prediction, as ratios, in one run.

Claims: the default bound takes at most 1.30 plain steps, the held-out rule 1.15 (an MLP of 50 units 1.5), compiled beside
compiled the same; a prediction with 20 masks takes no longer than a loop of 20 passes. Contestants take turns, so that what
slows the machine slows all of them; a time is the least of its rounds, of the process on a CPU and of the clock on a GPU.

A run has steps of several kinds, which are timed apart and weighed as a run of 1,000 steps has them: of the bound those in
which rates learn, at their share; of the held-out rule those of warm-up and of measuring (two fifths) and those behind.

Run: ``python -m benchmarks.overhead``; a network that the JSON has already is not measured again. ``--compiled`` takes minutes
for each network.
"""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.overhead_contestants import LIMITS, measure
from benchmarks.overhead_tasks import TASKS
from lbdrop.io.records import provenance, write_json

__all__ = ["main", "table"]


def main(
    network: Annotated[list[str] | None, typer.Option(help="Networks to measure; all by default.")] = None,
    samples: Annotated[int, typer.Option(help="Masks in prediction.")] = 20,
    rounds: Annotated[int, typer.Option(help="Every contestant has its turn once in each.")] = 5,
    compiled: Annotated[bool, typer.Option(help="Compiled models too.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU where there is one.")] = None,
    processes: Annotated[int, typer.Option(help="Networks at once, each on a core of its own.")] = 1,
    out: Annotated[Path | None, typer.Option(help="The JSON to write, and to go on from.")] = None,
) -> None:
    """Time and memory of a training step and of prediction, as ratios."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    path = out or Path(__file__).parent / "results" / f"overhead-{device}.json"
    settings = {"samples": samples, "rounds": rounds, "threads": 1, "steps of a run": 1000}
    before = json.loads(path.read_text()) if path.exists() else {}
    done: dict[str, Any] = before.get("networks", {}) if before.get("settings") == settings else {}
    console, names = Console(), network or list(TASKS)
    todo = [name for name in names if name not in done or (compiled and not done[name]["compiled"])]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = [pool.submit(measure, name, device, samples, rounds, compiled) for name in todo]
        for name, found in (each.result() for each in as_completed(waiting)):
            done[name] = found
            ordered = {each: done[each] for each in TASKS if each in done}
            record = {"settings": settings, "limits": LIMITS, "provenance": provenance(device), "networks": ordered}
            write_json(path, record)
            console.print(table(name, found))
    console.print(f"JSON: {path}", soft_wrap=True)


def table(name: str, found: dict[str, Any]) -> Table:
    shown = Table(title=f"{name} ({found['plan']})", title_justify="left")
    for heading in ("", "ms", "× time", "× memory"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for group in ("training", "compiled", "prediction"):
        for each, m in found[group].items():
            ms, ratio, memory = f"{m['seconds'] * 1e3:,.2f}", f"{m['time_ratio']:.2f}", m.get("memory_ratio")
            shown.add_row(f"{group}: {each}", ms, ratio, "" if memory is None else f"{memory:.2f}")
    return shown


if __name__ == "__main__":
    typer.run(main)
