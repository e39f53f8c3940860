"""Contestants that take turns: median times and peak memory, as ratios to the first; shared by several benchmarks."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.progress import track
from rich.table import Table

__all__ = ["measure", "peak_bytes", "synchronize", "table"]

Contestant = Callable[[], object]


def measure(
    contestants: dict[str, Contestant], repeats: int, device: torch.device, title: str
) -> dict[str, dict[str, float]]:
    """Median seconds and peak extra bytes, absolute and as ratios to the first contestant."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    memory: dict[str, int] = {}
    for name, run in contestants.items():
        run()  # warm up: engines chosen, kernels loaded
        memory[name] = peak_bytes(run, device)
    for _ in track(range(repeats), title, transient=True):
        for name, run in contestants.items():
            synchronize(device)
            start = time.perf_counter()
            run()
            synchronize(device)
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(each) for name, each in times.items()}
    base = next(iter(contestants))
    return {
        name: {
            "seconds": medians[name],
            "time_ratio": medians[name] / medians[base],
            "peak_bytes": memory[name],
            "memory_ratio": memory[name] / memory[base],
            "fastest_seconds": min(times[name]),
        }
        for name in contestants
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_bytes(run: Contestant, device: torch.device) -> int:
    """The most that was allocated at once beyond what was there before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events: Any = profile.profiler
    held = peak = 0
    for event in events.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def table(title: str, measured: dict[str, dict[str, float]]) -> Table:
    shown = Table(title=title, title_justify="left")
    for heading in ("", "ms", "× time", "MiB", "× memory"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for name, m in measured.items():
        shown.add_row(
            name,
            f"{m['seconds'] * 1e3:,.1f}",
            f"{m['time_ratio']:.3f}",
            f"{m['peak_bytes'] / 2**20:,.0f}",
            f"{m['memory_ratio']:.2f}",
        )
    return shown
