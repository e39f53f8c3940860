"""What a golden record is: the numbers of one recipe, and the processor and versions that made them.

On the same processor and versions a recipe must give the same bits. Elsewhere sums are taken in another order, so the
numbers must agree to a rounding tolerance.
"""

import json
import math
import platform
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

__all__ = ["ATOL", "RECORDS", "RTOL", "Numbers", "differences", "machine", "path_of", "read", "run"]

Numbers = dict[str, list[float]]
"""Named lists of numbers."""

RECORDS = Path(__file__).parent / "records"
RTOL, ATOL = 2e-3, 1e-6
"""What rounding may change elsewhere: so much of the largest number of a list, and so much. Another mask changes more."""


def path_of(name: str) -> Path:
    return RECORDS / f"{name}.json"


def read(name: str) -> dict[str, Any]:
    return json.loads(path_of(name).read_text())


def machine() -> dict[str, str]:
    """What decides the bits of a run on one CPU thread."""
    return {
        "cpu": _cpu(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        **{package: version(package) for package in ("torch", "numpy", "scipy")},
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    values = {name.strip(): value.strip() for name, value in found.items()}
    named = [values[name] for name in ("model name", "cpu family", "model", "stepping") if name in values]
    return " / ".join(named) or platform.processor() or platform.machine()


def run(recipe: Callable[[], Numbers]) -> Numbers:
    """The numbers of a recipe: one thread, seed 0, its warnings unheard, and the caller's random state as before."""
    with _one_thread(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        numbers = {key: [float(value) for value in values] for key, values in recipe().items()}
    bad = [key for key, values in numbers.items() if not values or not all(map(math.isfinite, values))]
    if bad:
        raise ValueError(f"golden record: want finite numbers, at least one in each list, got others in {bad}")
    return numbers


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def differences(found: Numbers, recorded: Numbers, *, exact: bool) -> list[str]:
    """One line for each list that is not as recorded; none where all agree."""
    lines = [f"{key}: missing" for key in recorded if key not in found]
    lines += [f"{key}: not in the record" for key in found if key not in recorded]
    for key in recorded.keys() & found.keys():
        new, old = found[key], recorded[key]
        if len(new) != len(old):
            lines.append(f"{key}: want {len(old)} numbers, got {len(new)}")
            continue
        allowed = 0.0 if exact else ATOL + RTOL * max(map(abs, old))
        wrong = [i for i, (a, b) in enumerate(zip(new, old, strict=True)) if not abs(a - b) <= allowed]
        if wrong:
            i = wrong[0]
            lines.append(f"{key}: {len(wrong)} of {len(old)} differ, first [{i}]: want {old[i]!r}, got {new[i]!r}")
    return sorted(lines)
