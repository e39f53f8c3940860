"""Runs side by side give what they give one after another, and nothing is left running when nobody waits for it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from experiments import processes
from experiments.commands import reproduce_rates
from experiments.rates import pool, run
from experiments.rates.pool import Job
from lbdrop.errors import DropoutError


@pytest.mark.process
def test_runs_in_other_processes_equal_those_of_this_one(tmp_path: Path) -> None:
    jobs = [Job("digits", name, 0, tmp_path, epochs=1) for name in ("none", "fixed-0.3", "tuned-layer")]
    without_data = Job("uci-boston", "none", 0, tmp_path)
    alone, beside = (dict(pool.outcomes([*jobs, without_data], workers)) for workers in (1, 2))
    assert beside.keys() == {*jobs, without_data}
    for job in jobs:
        here, there = alone[job], beside[job]
        assert isinstance(here, dict)
        assert isinstance(there, dict)
        assert there["test"]["masks"]["nll"] == pytest.approx(here["test"]["masks"]["nll"], rel=1e-4)
        for name, rates in here["rates"].items():
            assert there["rates"][name] == pytest.approx(rates)
        assert here["provenance"]["hardware"].endswith(", 1 threads")
        assert there["provenance"]["hardware"].endswith(", 1 threads")
    for found in (alone[without_data], beside[without_data]):
        assert isinstance(found, DropoutError)
        assert "uci.tar" in str(found)


class Told:
    """In place of a job: what a process finds in its environment."""

    def run(self) -> dict[str, Any]:
        return {name: os.environ.get(name) for name in pool.KEEPING_MEMORY}


@pytest.mark.process
def test_worker_processes_keep_their_memory_and_this_one_is_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in pool.KEEPING_MEMORY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "123")
    jobs: list[Any] = [Told(), Told()]
    for _, found in pool.outcomes(jobs, 2):
        assert found == pool.KEEPING_MEMORY | {"MALLOC_TRIM_THRESHOLD_": "123"}
    assert "MALLOC_MMAP_MAX_" not in os.environ
    assert os.environ["MALLOC_TRIM_THRESHOLD_"] == "123"


def test_run_that_fails_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(task: object, contestant: object, seed: int, **rest: object) -> dict[str, int]:
        if seed == 1:
            raise DropoutError("diverged")
        return {"seed": seed}

    monkeypatch.setattr(run, "run", failing)
    found = [outcome for _, outcome in pool.outcomes([Job("digits", "none", seed, tmp_path) for seed in range(3)], 1)]
    assert found[0] == {"seed": 0}
    assert found[2] == {"seed": 2}
    assert isinstance(found[1], DropoutError)
    assert str(found[1]) == "diverged"


@pytest.mark.process
def test_workers_end_when_the_results_are_not_wanted(tmp_path: Path) -> None:
    jobs = [Job("digits", "none", 0, tmp_path, epochs=1)]
    jobs += [Job("digits", "kl-layer", seed, tmp_path, epochs=10_000) for seed in range(3)]  # half an hour
    found = pool.outcomes(jobs, 2)
    assert next(found)[0] == jobs[0]
    begun = time.monotonic()
    found.close()
    assert time.monotonic() - begun < 60
    # The pool's own thread waits for them too, and what it hears first is known here a moment later.
    while multiprocessing.active_children() and time.monotonic() - begun < 70:
        time.sleep(0.01)
    assert not multiprocessing.active_children()


def test_out_of_memory_ends_one_run_and_not_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(task: object, contestant: object, seed: int, **rest: object) -> dict[str, int]:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(run, "run", short)
    ((_, found),) = pool.outcomes([Job("digits", "none", 0, tmp_path)], 1)
    assert str(found) == "CUDA out of memory.; where memory is short, try fewer workers"


@pytest.mark.process
def test_killed_worker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_set_up_worker", partial(os._exit, 9))  # as the kernel does where memory is short
    with pytest.raises(DropoutError, match="a process was killed.*try fewer than 2 workers"):
        list(pool.outcomes([Job("digits", "none", seed, tmp_path, epochs=1) for seed in range(2)], 2))


@contextmanager
def started(folder: Path, contestants: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process group of its own, as a terminal has it; nothing of it is left."""
    command = [
        sys.executable,
        "-m",
        "lbdrop",
        "reproduce",
        "rates",
        "--task",
        "digits",
        "--seeds",
        "1",
        "--workers",
        "2",
    ]
    command += ["--epochs", "40", "--out", str(folder), "--contestant", contestants]
    options: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    options["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            if members(process.pid):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not there() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert there()


def members(group: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # gone meanwhile
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.process
@pytest.mark.parametrize("early", [True, False], ids=["while workers start", "after a run"])
def test_ctrl_c_says_what_is_kept_and_the_same_command_goes_on(early: bool, tmp_path: Path) -> None:
    with started(tmp_path, "none,kl-unit,loss-unit,prior-unit") as process:
        if early:
            wait_for(lambda: len(members(process.pid)) > 2, process)
        else:
            wait_for((tmp_path / "digits.json").exists, process)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip() == f"stopped; runs that had ended are in {tmp_path}, the same command goes on"
    before = run.read(tmp_path / "digits.json")
    assert [record["contestant"] for record in before] == ([] if early else ["none"])
    if not early:
        with started(tmp_path, "none") as again:
            assert again.wait(120) == 0
        assert run.read(tmp_path / "digits.json") == before


@pytest.mark.process
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    with started(tmp_path, "kl-unit,loss-unit,prior-unit") as process:
        wait_for(lambda: len(members(process.pid)) > 2, process)
        time.sleep(8)  # until they have begun
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while members(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not members(process.pid)


def test_runs_that_fail_are_said_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: object, **rest: object) -> None:
        raise DropoutError("diverged")

    monkeypatch.setattr(run, "run", failing)
    app = typer.Typer()
    app.command()(reproduce_rates.rates)
    call = ["--task", "digits", "--seeds", "1", "--workers", "1", "--out", str(tmp_path), "--contestant"]
    done = CliRunner().invoke(app, [*call, "none,fixed-0.1"])
    assert done.exit_code == 1
    assert "digits, no dropout, seed 0: failed: diverged" in done.output
    assert done.output.endswith("2 runs failed; the same command tries again\n")
    done = CliRunner().invoke(app, [*call, "none"])
    assert done.exit_code == 1
    assert "digits, no dropout, seed 0: diverged; the same command tries again" in done.output


def test_missing_device_is_one_line(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(reproduce_rates.rates)
    for device in ("cuda:99", "abacus", "meta"):
        done = CliRunner().invoke(app, ["--task", "digits", "--device", device, "--out", str(tmp_path)])
        assert done.exit_code == 1
        assert done.output.startswith(f"device: want cpu or a GPU that is there, got '{device}'")
        assert len(done.output.strip().splitlines()) == 1
