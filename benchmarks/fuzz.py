"""Do forged files ever end in a traceback, run their own code, or write where they should not? Every reader, thousands of them.

Valid small files of every format are damaged or forged (:mod:`benchmarks.fuzz_containers`) and given to the command or function
that reads them (:mod:`benchmarks.fuzz_inputs`). An input is accepted, or refused in one line. Anything else is a fault: another
exception, a warning, a folder that only code in the file could have made, a file outside the output, more than 2 GiB of memory
above what the process began with, half a minute. Each reader has a process of its own, so that one that dies is told from one
that refuses.

Run: ``python -m benchmarks.fuzz --examples 12000`` (a quarter of an hour on one core).
"""

import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import hypothesis.strategies as st
import typer
from hypothesis import HealthCheck, Phase, given, seed, settings
from rich.console import Console
from rich.progress import Progress

from benchmarks.fuzz_changes import CANARY, Files
from benchmarks.fuzz_containers import changes
from benchmarks.fuzz_images import VISION
from benchmarks.fuzz_inputs import RECOMMENDER, Contents, outcome
from lbdrop.io.records import provenance, write_json

__all__ = ["READERS", "campaign", "check", "settled"]

READERS = {**RECOMMENDER, **VISION}
HEADROOM = 2 << 30
SECONDS = 30


def check(name: str, files: Contents, signed: bool = True) -> str:
    """Give an input to a reader, and look whether it did what only code or a path in the file could have made it do."""
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        found = outcome(reader, reader.sign(files) if signed else files, Path(folder))
        assert not Path(CANARY).exists(), "code in the file was run"
        left = {path.name for path in Path(folder).iterdir()}
        assert left <= {"in", "out", "history.csv", "scores.parquet", "out.unfinished"}, f"files were made: {left}"
    return found


def settled(examples: int, **options: Any) -> settings:
    """Hypothesis without a clock and without a memory of other runs."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],  # pyright: ignore[reportArgumentType]
        report_multiple_bugs=False,
        **options,
    )


def campaign(name: str, examples: int, number: int) -> dict[str, Any]:
    """So many inputs to one reader: how many were refused and accepted, and the first fault if there is one."""
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    started = time.perf_counter()

    @seed(number)
    @settled(examples, phases=[Phase.generate, Phase.shrink])
    @given(files=changes(Files(READERS[name].files())), signed=st.booleans())
    def holds(files: Files, signed: bool) -> None:
        counts["inputs"] += 1
        with _alarm():
            found = check(name, files, signed)
        counts["accepted" if found == "accepted" else "refused"] += 1
        kinds[found.partition("want ")[2][:60]] += 1

    fault = None
    try:
        holds()
    except BaseException as error:  # whatever it is, it belongs into the record
        fault = "".join(traceback.format_tb(error.__traceback__)[-6:]) + f"{type(error).__name__}: {error}"[:500]
    return {
        **{key: counts[key] for key in ("inputs", "refused", "accepted")},
        "tracebacks": int(fault is not None),
        "fault": fault,
        "seconds": round(time.perf_counter() - started, 1),
        "reasons": len(kinds),
    }


@contextmanager
def _alarm():
    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _alone(name: str, examples: int, number: int) -> dict[str, Any]:
    """The campaign in a process of its own."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.fuzz",
        "--only",
        name,
        "--examples",
        str(examples),
        "--seed",
        str(number),
    ]
    ended = subprocess.run(words, capture_output=True, text=True)
    try:
        return json.loads(ended.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        end = f"the process ended with {ended.returncode}: {ended.stderr[-3000:]}"
        return {"inputs": 0, "refused": 0, "accepted": 0, "tracebacks": 1, "fault": end, "seconds": 0.0, "reasons": 0}


def main(
    examples: Annotated[int, typer.Option(min=1, help="Inputs over all readers.")] = 12_000,
    out: Annotated[Path, typer.Option(help="Where the record goes.")] = Path("benchmarks/results/fuzz.json"),
    number: Annotated[int, typer.Option("--seed", help="Draws the inputs.")] = 0,
    only: Annotated[
        str | None, typer.Option(help="One reader, in this process; its counts go to stdout as JSON.")
    ] = None,
) -> None:
    """Damage and forge files for every reader, count what happens, write the record."""
    if only is not None:
        warnings.simplefilter("error")
        check(only, READERS[only].files())  # imports come before the bound
        _bound_memory()
        print(json.dumps(campaign(only, examples, number)))
        return
    console = Console(highlight=False)
    share = -(-examples // len(READERS))
    found: dict[str, Any] = {}
    with Progress(console=console, transient=True) as progress:
        for name in progress.track(READERS, description="readers"):
            found[name] = _alone(name, share, number)
            console.print(_line(name, found[name]), markup=False, soft_wrap=True)
            if found[name]["fault"]:
                console.print(found[name]["fault"], markup=False)
    total = {
        key: sum(each[key] for each in found.values())
        for key in ("inputs", "refused", "accepted", "tracebacks", "seconds")
    }
    console.print(_line("all", total), markup=False)
    write_json(out, {"seed": number, "total": total, "readers": found, "provenance": provenance()})
    console.print(f"JSON: {out.resolve()}", markup=False, soft_wrap=True)
    raise typer.Exit(int(total["tracebacks"] > 0))


def _line(name: str, found: dict[str, Any]) -> str:
    counts = ", ".join(f"{found[key]:,} {key}" for key in ("inputs", "refused", "accepted", "tracebacks"))
    return f"{name}: {counts}, {found['seconds']:.0f} s"


if __name__ == "__main__":
    typer.run(main)
