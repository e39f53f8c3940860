"""Run setups, side by side, and write a line for every run; what is there already is not run again.

    python -m experiments.regret.run --half development --workers 2 --out results/here

A line is one run of one contestant. The contestants of the verdict come first, one seed after another: what is there
when the time is over has all setups, with fewer seeds. Of Python packages torch, numpy and jaxtyping are enough.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.processes import outcomes, usual_workers
from experiments.regret.distribution import HALVES, draw
from experiments.regret.runs import CONTESTANTS, GRID, Job
from lbdrop.io.records import provenance

__all__ = ["jobs", "main", "read"]

COUNT, SEEDS = 100, 5
SEEDS_OF = {"bound": 2}
"""Of what takes longest, fewer."""
ROUNDS: tuple[tuple[str, ...], ...] = (
    ("balanced-layer", "balanced-model", *(f"fixed-{rate:g}" for rate in GRID)),
    ("retrained", "fixed-0.1-retrained", "early"),
    ("bound",),
)
"""What is run first, of all setups and seeds: where the time is over early, the verdict is there."""


def read(places: Sequence[Path]) -> list[dict[str, Any]]:
    """The lines of files, and of those in folders; one that was cut off is left out."""
    files = [file for place in places for file in (sorted(place.glob("*.jsonl")) if place.is_dir() else [place])]
    lines = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue
    return lines


def jobs(
    half: str, count: int, seeds: Sequence[int], contestants: Sequence[str], data: Path, known: Sequence[dict[str, Any]]
) -> list[Job]:
    """All of which something is missing; the longest setups of a seed come first."""
    there: dict[tuple[str, int], dict[str, Any]] = {}
    for line in known:
        if "setup" in line:
            there.setdefault((line["setup"], line["seed"]), {})[line["contestant"]] = line
    setups = sorted(draw(half, count), key=lambda setup: -setup.seconds)
    found = [
        Job(setup, seed, tuple(name for name in contestants if seed < SEEDS_OF.get(name, seed + 1)), data,
            there.get((setup.name, seed), {}))
        for seed in seeds
        for setup in setups
    ]  # fmt: skip
    return [job for job in found if set(job.contestants) - set(job.known)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=[*HALVES], required=True)
    parser.add_argument("--count", type=int, default=COUNT, help="how many setups, from the first on")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--contestant", default=",".join(CONTESTANTS), help="some of them, with commas")
    parser.add_argument("--workers", type=int, default=usual_workers("cpu"))
    parser.add_argument("--minutes", type=float, default=1e9, help="when to stop")
    parser.add_argument("--data", type=Path, default=Path("data/regret.npz"))
    parser.add_argument("--out", type=Path, required=True, help="folder for the lines")
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="files and folders of lines from before")
    given = parser.parse_args(arguments)
    names = given.contestant.split(",")
    if unknown := set(names) - set(CONTESTANTS):
        parser.error(f"contestant: want among {', '.join(CONTESTANTS)}, got {sorted(unknown)}")
    given.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (given.out / f"{given.half}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"provenance": provenance("cpu"), "workers": given.workers}) + "\n")
        for wanted in ROUNDS:
            file.flush()
            here = [name for name in wanted if name in names]
            todo = jobs(given.half, given.count, range(given.seeds), here, given.data, read([*given.known, given.out]))
            print(f"{', '.join(here)}: {len(todo)} setups and seeds to run", flush=True)
            results = outcomes(todo, given.workers) if todo and here else ()
            for done, (_, lines) in enumerate(results, 1):
                file.writelines(json.dumps(line) + "\n" for line in lines)
                file.flush()
                minutes = (time.monotonic() - began) / 60
                if done % 20 == 0 or done == len(todo):
                    print(f"{done} of {len(todo)} after {minutes:.1f} minutes", flush=True)
                if minutes > given.minutes:
                    print("the time is over; the same command goes on with what is missing", flush=True)
                    return


if __name__ == "__main__":
    main()
