"""Models that other people wrote, converted in two lines: how many of their random draws are learned, and what else changes.

Run: ``python -m benchmarks.zoo`` in an environment with the extra ``zoo``. Each model is examined in a process of its own.
A run that was stopped goes on where it was; ``--again`` forgets what failed.
"""

import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
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
SECONDS = 20
"""Of CPU for one model, and ten times as many of a clock."""


def entries(sources: list[str]) -> list[Entry]:
    """The models of all sources, in an order that has nothing to do with what they are."""
    found: list[Entry] = []
    for source in sources:
        found += getattr(importlib.import_module(f"benchmarks.zoo.{source}_models"), f"{source}_entries")()
    return sorted(found, key=lambda each: hashlib.md5(each.name.encode()).hexdigest())


def in_process(entry: Entry) -> dict[str, Any]:
    """Examine a model in a process that may fail, run out of time, or change what it likes."""
    read, write = os.pipe()
    sys.stdout.flush()
    if not (child := os.fork()):
        os.close(read)
        signal.alarm(10 * SECONDS)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        started = time.process_time()
        try:
            record: dict[str, Any] = examine(entry.make)
        except Exception as error:
            record = {"verdict": "not built", "reason": f"{type(error).__name__}: {error}"[:400]}
        record["cpu_seconds"] = round(time.process_time() - started, 1)
        with os.fdopen(write, "w") as out:
            out.write(json.dumps(record))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as back:
        text = back.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"verdict": "not built", "reason": f"no result within {SECONDS} s of CPU"}


def main(
    source: Annotated[list[str] | None, typer.Option(help="A library; may be repeated; by default all.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="The name of a model; may be repeated.")] = None,
    again: Annotated[
        list[str] | None, typer.Option(help="Examine those with this verdict again; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The JSON to write.")] = RESULT,
) -> None:
    """Examine the models, and write the record after each."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    stub_torchvision()
    content = read_json(out) if out.exists() else {"models": {}}
    models: dict[str, Any] = content["models"]
    here = provenance("cpu") | {"packages": versions()}
    found = entries(source or list(SOURCES))
    content["listed"] = content.get("listed", {}) | Counter(each.source for each in found)
    for entry in found:
        key = f"{entry.source}/{entry.name}"
        known = key in models and models[key]["verdict"] not in (again or [])
        if entry.name not in only if only else known:
            continue
        models[key] = record = in_process(entry)
        content["provenance"], record["commit"] = here, here["commit"]
        write_json(out, content | {"models": dict(sorted(models.items()))})
        print(f"{key}: {record['verdict']} {record.get('wrong', record.get('reason', ''))}"[:300], flush=True)


def versions() -> dict[str, str]:
    """Of the libraries whose models are examined."""
    found = {}
    for each in PACKAGES:
        with suppress(PackageNotFoundError):
            found[each] = version(each)
    return found


if __name__ == "__main__":
    typer.run(main)
