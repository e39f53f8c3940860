"""Runs side by side give what they give one after another, and nothing is left running when nobody waits for it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from experiments.rates import pool, run
from experiments.rates.pool import Job
from lbdrop.cli import reproduce_rates
from lbdrop.errors import DropoutError

HERE = Path("data")


def test_runs_in_other_processes_are_those_of_this_one() -> None:
    jobs = [Job("digits", name, 0, HERE, epochs=1) for name in ("none", "fixed-0.3", "tuned-layer")]
    alone, beside = (dict(pool.outcomes(jobs, workers)) for workers in (1, 2))
    assert beside.keys() == set(jobs)
    for job in jobs:
        here, there = alone[job], beside[job]
        assert isinstance(here, dict)
        assert isinstance(there, dict)
        assert there["test"]["masks"]["nll"] == pytest.approx(here["test"]["masks"]["nll"], rel=1e-4)
        for name, rates in here["rates"].items():
            assert there["rates"][name] == pytest.approx(rates)
        assert there["provenance"]["hardware"].endswith(", 1 threads")


def test_a_run_that_fails_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_nothing_runs_on_when_nobody_waits() -> None:
    jobs = [Job("digits", "none", 0, HERE, epochs=1), *(Job("digits", "kl-layer", seed, HERE) for seed in range(3))]
    found = pool.outcomes(jobs, 2)
    assert next(found)[0] == jobs[0]  # the others take a hundred times as long
    found.close()
    assert not multiprocessing.active_children()


def test_a_process_that_is_killed_is_an_error_and_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_alone", partial(os._exit, 9))  # as the kernel does where memory is short
    with pytest.raises(DropoutError, match="a process was killed.*try fewer than 2 workers"):
        list(pool.outcomes([Job("digits", "none", seed, HERE, epochs=1) for seed in range(2)], 2))


def test_ctrl_c_says_what_is_kept_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lbdrop", "reproduce", "rates", "--task", "digits", "--seeds", "1"]
    command += ["--workers", "2", "--out", str(tmp_path), "--contestant"]
    started = subprocess.Popen(
        [*command, "none,kl-unit,loss-unit,prior-unit"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "digits.json").exists() and started.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130
    assert said.strip() == f"stopped; runs that had ended are in {tmp_path}, the same command goes on"
    before = run.read(tmp_path / "digits.json")
    assert [record["contestant"] for record in before] == ["none"]
    again = subprocess.run([*command, "none"], capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert run.read(tmp_path / "digits.json") == before


def test_a_device_that_is_not_there_ends_in_one_line(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(reproduce_rates.rates)
    for device in ("cuda:99", "abacus"):
        done = CliRunner().invoke(app, ["--task", "digits", "--device", device, "--out", str(tmp_path)])
        assert done.exit_code == 1
        assert done.output.startswith(f"device: want cpu or a GPU that is there, got '{device}'")
        assert len(done.output.strip().splitlines()) == 1
