"""Seconds of a training epoch in one process and in several, with the same total batch: what another process is worth.

Claim: two processes train a recommender faster than one. Run: ``python -m benchmarks.processes``, which starts the processes
itself; each has one thread of the CPU, or a GPU of its own.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from lbdrop.guards import processes
from lbdrop.io.records import provenance, write_json
from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.model.settings import Settings, method
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.loop import Loop, launch

RESULTS = Path(__file__).parent / "results"


def main(
    ranks: Annotated[list[int], typer.Option(help="Numbers of processes; may be repeated.")] = [1, 2],  # noqa: B006
    users: Annotated[int, typer.Option(help="Users of the generated training set.")] = 20_000,
    items: Annotated[int, typer.Option(help="Items of its catalogue.")] = 4_000,
    per_user: Annotated[int, typer.Option(help="Items of a user.")] = 60,
    batch: Annotated[int, typer.Option(help="Users a step, over all processes.")] = 500,
    epochs: Annotated[int, typer.Option(help="Measured epochs; one more comes first and is not counted.")] = 3,
    out: Annotated[Path | None, typer.Option(help="The JSON to write.")] = None,
) -> None:
    """Time the recommender's epochs; called by itself in every process."""
    settings = method("sivae-lbd", batch=batch)
    if "RANK" in os.environ:
        return _work(settings, users, items, per_user, epochs, Path(os.environ["LBDROP_TIMES"]))
    device = processes.device_of_this_process()
    target = out or RESULTS / f"processes-{device.type}.json"
    given = {"users": users, "items": items, "per-user": per_user, "batch": batch, "epochs": epochs}
    seconds: dict[int, list[float]] = {}
    for count in ranks:
        times = target.with_suffix(f".{count}.times")
        times.parent.mkdir(parents=True, exist_ok=True)
        call = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m", "benchmarks.processes"]
        options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "LBDROP_TIMES": str(times.resolve())}
        try:
            subprocess.run([sys.executable, "-m", *call, *options], check=True, env=env)
            seconds[count] = [float(each) for each in times.read_text().split()]
        finally:
            times.unlink(missing_ok=True)
    medians = {count: statistics.median(each) for count, each in seconds.items()}
    rows = {
        str(count): {"seconds": medians[count], "speed": medians[ranks[0]] / medians[count], "each": seconds[count]}
        for count in ranks
    }
    content = {"settings": {**given, "method": settings.method}, "provenance": provenance(), "processes": rows}
    write_json(target, content)
    for count, row in rows.items():
        Console().print(
            f"{count} processes: {row['seconds']:.2f} s an epoch, {row['speed']:.2f} × the speed of {ranks[0]}"
        )


def _work(settings: Settings, users: int, items: int, per_user: int, epochs: int, times: Path) -> None:
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    fabric = launch()
    shelf = items // per_user  # one item of each shelf: no item twice
    chosen = torch.randint(shelf, (users, per_user), generator=torch.Generator().manual_seed(0))
    chosen += torch.arange(per_user) * shelf
    starts = torch.arange(users + 1).mul(per_user).numpy()
    rows = Rows(starts, chosen.flatten().int(), items, device=fabric.device)
    torch.manual_seed(0)
    loop = Loop(VAE(items, settings).to(fabric.device), rows, settings, fabric)
    seconds = [loop.epoch(number)["seconds"] for number in range(1, epochs + 2)][1:]
    if processes.is_first():
        times.write_text(" ".join(map(str, seconds)))


if __name__ == "__main__":
    typer.run(main)
