"""Models that other people wrote, converted in two lines: how many of their random draws are learned, and what else changes.

Run: ``python -m benchmarks.zoo --processes 8`` in an environment with the extra ``zoo``. Each model is examined in a process of
its own. A run that was stopped goes on where it was; ``--again`` examines those with a verdict again, by code of today.
"""

import hashlib
import importlib
import multiprocessing
import resource
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import wait
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.zoo.examine import examine
from benchmarks.zoo.models import Entry, stub_torchvision
from lbdrop.io.records import provenance, read_json, write_json

RESULT = Path(__file__).parent.parent / "results" / "zoo.json"
PACKAGES = ("transformers", "timm", "torchvision", "torch_geometric", "segmentation-models-pytorch", "rtdl_revisiting_models",
            "tabm", "pytorch-tabnet", "tab-transformer-pytorch", "neuralforecast")  # fmt: skip
SOURCES = ("transformers", "timm", "torchvision", "graphs", "segmentation", "tabular", "forecasting")
SECONDS = 40
"""Of CPU for one model, and five times as many of a clock."""
FORK = multiprocessing.get_context("fork")


def entries(sources: list[str]) -> list[Entry]:
    """The models of all sources, in an order that has nothing to do with what they are."""
    found: list[Entry] = []
    for source in sources:
        found += getattr(importlib.import_module(f"benchmarks.zoo.{source}_models"), f"{source}_entries")()
    return sorted(found, key=lambda each: hashlib.md5(each.name.encode()).hexdigest())


def examined(entries: Iterable[Entry], processes: int) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Each entry with its record, as they come; each in a process that may fail, run out of time, or change what it likes."""
    waiting = iter(entries)
    running: dict[Any, tuple[Entry, Any, float]] = {}
    while True:
        while len(running) < processes and (entry := next(waiting, None)):
            mine, childs = FORK.Pipe(duplex=False)
            process = FORK.Process(target=_examine_and_send, args=(entry, childs), daemon=True)
            process.start()
            childs.close()
            running[mine] = entry, process, time.monotonic()
        if not running:
            return
        for ready in wait(list(running), timeout=1):
            entry, process, _ = running.pop(ready)
            yield entry, _received(ready)
            process.join()
        for _, process, started in running.values():
            if time.monotonic() - started > 5 * SECONDS:
                process.kill()


def _examine_and_send(entry: Entry, out: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    started = time.process_time()
    try:
        record: dict[str, Any] = examine(entry.make)
    except Exception as error:
        record = {"verdict": "not built", "reason": f"{type(error).__name__}: {error}"[:400]}
    out.send(record | {"cpu_seconds": round(time.process_time() - started, 1)})


def _received(end: Any) -> dict[str, Any]:
    with end:
        try:
            return end.recv()
        except EOFError:
            return {"verdict": "not built", "reason": f"no result within {SECONDS} s of CPU"}


def main(
    source: Annotated[list[str] | None, typer.Option(help="A library; may be repeated; by default all.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="The name of a model; may be repeated.")] = None,
    again: Annotated[
        list[str] | None, typer.Option(help="Examine those with this verdict again, or 'all'; may be repeated.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="How many models are examined at once.")] = 1,
    out: Annotated[Path, typer.Option(help="The JSON to write.")] = RESULT,
) -> None:
    """Examine the models, and write the record after each."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    stub_torchvision()
    content = read_json(out) if out.exists() else {"models": {}, "runs": []}
    here = provenance("cpu") | {"packages": versions()}
    content["runs"].append(here)
    run, models = len(content["runs"]) - 1, content["models"]
    found = entries(source or list(SOURCES))
    content["listed"] = content.get("listed", {}) | Counter(each.source for each in found)
    asked = [each for each in found if each.name in only] if only else [
        each for each in found if key_of(each) not in models or {"all", models[key_of(each)]["verdict"]} & {*(again or [])}
    ]  # fmt: skip
    for entry, record in examined(asked, processes):
        models[key_of(entry)] = record | {"run": run}
        write_json(out, content | {"models": dict(sorted(models.items()))})
        print(f"{key_of(entry)}: {record['verdict']} {record.get('wrong', record.get('reason', ''))}"[:300], flush=True)


def key_of(entry: Entry) -> str:
    return f"{entry.source}/{entry.name}"


def versions() -> dict[str, str]:
    """Of the libraries whose models are examined."""
    found = {}
    for each in PACKAGES:
        with suppress(PackageNotFoundError):
            found[each] = version(each)
    return found


if __name__ == "__main__":
    typer.run(main)
