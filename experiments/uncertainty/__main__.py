"""The uncertainty experiment: what is missing is run, a JSON each, and the page is made of what is there.

python -m experiments.uncertainty rates --folder data --out runs/uncertainty       # rates of the UCI splits
python -m experiments.uncertainty uci --folder data --out runs/uncertainty         # the UCI benchmark with them
python -m experiments.uncertainty rivals --folder data --out runs/uncertainty      # classification, all contestants
python -m experiments.uncertainty page --out runs/uncertainty                      # collect runs, write docs/uncertainty.md
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.processes import outcomes, usual_workers
from experiments.rates import uci
from experiments.uncertainty.uci_protocol import SPLITS, run_set
from experiments.uncertainty.uci_rates import RULES, RatesJob
from lbdrop.io.records import read_json, write_json

__all__ = ["main"]

SEEDS = 3


def rates(given: argparse.Namespace, until: float) -> None:
    """A run for each split and rule."""
    jobs = [
        RatesJob(name, split, rule, given.folder)
        for split in range(max(SPLITS.values())) for name in given.set for rule in RULES
        if split < SPLITS[name] and not _rates_file(given.out, name, split, rule).exists()
    ]  # fmt: skip
    print(f"{len(jobs)} runs for rates", flush=True)
    for job, record in outcomes(jobs, given.workers):
        write_json(_rates_file(given.out, job.name, job.split, job.rule), record)
        if time.monotonic() > until:
            print("the time is over; the same command goes on with what is missing", flush=True)
            return


def _rates_file(out: Path, name: str, split: int, rule: str) -> Path:
    return out / f"rates-{name}-{split}-{rule}.json"


def benchmark(given: argparse.Namespace, until: float) -> None:
    """A set at a time, all splits and contestants side by side."""
    for name in sorted(given.set, key=lambda each: uci.SIZES[each]):
        if (given.out / f"uci-{name}.json").exists() or time.monotonic() > until:
            continue
        learned = {
            (split, rule): read_json(file)["rates"]
            for split in range(SPLITS[name]) for rule in RULES if (file := _rates_file(given.out, name, split, rule)).exists()
        }  # fmt: skip
        began = time.monotonic()
        record = run_set(name, given.folder, learned, device=given.device)
        write_json(given.out / f"uci-{name}.json", record)
        print(f"{name}: {time.monotonic() - began:.0f} s, {', '.join(record['contestants'])}", flush=True)


def rivals(given: argparse.Namespace, until: float) -> None:
    from experiments.uncertainty.contestants import of_task
    from experiments.uncertainty.runs import Job, name_of
    from experiments.uncertainty.tasks import TASKS

    jobs = []
    for seed in range(given.seeds):
        for name, task in TASKS.items():
            wanted = of_task(name, task.places)
            missing = tuple(each for each in wanted if not (given.out / name_of(name, seed, each)).exists())
            if missing and (not given.task or name in given.task):
                jobs.append(Job(name, seed, missing, given.folder, given.out, given.device))
    print(f"{len(jobs)} tasks and seeds", flush=True)
    for job, count in outcomes(jobs, given.workers):
        print(f"{job.task}, seed {job.seed}: {count}", flush=True)
        if time.monotonic() > until:
            return


def make_page(given: argparse.Namespace, until: float) -> None:
    from experiments.uncertainty.page import collect, write

    collect(given.out)
    write()


COMMANDS: dict[str, Any] = {"rates": rates, "uci": benchmark, "rivals": rivals, "page": make_page}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=[*COMMANDS])
    parser.add_argument("--folder", type=Path, default=Path("data"), help="where the data are")
    parser.add_argument("--out", type=Path, default=Path("runs/uncertainty"), help="a JSON for every run")
    parser.add_argument("--set", nargs="+", choices=[*SPLITS], default=[*SPLITS], help="of UCI")
    parser.add_argument("--task", nargs="+", default=[], help="of the rivals; by default all")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--minutes", type=float, default=1e9, help="when to begin nothing new")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for what in given.what:
        workers = given.workers or usual_workers(given.device if what == "rivals" else "cpu")
        COMMANDS[what](
            argparse.Namespace(**(vars(given) | {"workers": workers})), time.monotonic() + 60 * given.minutes
        )


if __name__ == "__main__":
    main()
