"""A full disk, an unwritable path, Ctrl-C: one line of error, an exit code other than 0, and the old output unchanged."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from experiments.cifar10 import recipes
from experiments.vision.cifar10 import Images
from lbdrop.cli import app
from lbdrop.io import files

COMMANDS = ("fit", "score", "scores", "evaluate", "prepare", "report")


class World(NamedTuple):
    """Files for every command."""

    folder: Path

    def arguments(self, command: str, out: Path, changed: bool = False) -> list[str]:
        """A command that writes ``out``; changed, it would write something else there."""
        likes, model, runs = (str(self.folder / name) for name in ("likes.csv", "model", "runs"))
        fit = [
            "recommend",
            "fit",
            likes,
            "--epochs",
            "2",
            "--validation",
            "0",
            "--dropout",
            "learned",
            "--set",
            "hidden=8",
            "--set",
            "anneal_steps=9",
        ]
        return {
            "fit": [*fit, "--seed", str(int(changed)), "--out", str(out / "model")],
            "score": ["recommend", "score", model, "--k", str(3 + changed), "--out", str(out / "scores.parquet")],
            "scores": ["recommend", "score", model, "--k", str(3 + changed), "--out", str(out / "scores")],
            "evaluate": [
                *("recommend", "evaluate", model, str(self.folder / "later.csv"), "--samples", str(int(changed))),
                *("--out", str(out / "measures.json")),
            ],
            "prepare": [
                *("data", "prepare", "ml-1m", str(self.folder / "ml-1m"), "--allow-partial", "--held-out-users"),
                *(str(12 + changed), "--out", str(out / "prepared")),
            ],
            "report": ["report", runs, "--out", str(out / "report")],
            "cifar10": ["reproduce", "cifar10", "--resume", "--no-corruptions", "--out", str(out)],
            "ml-1m": [
                *("reproduce", "ml-1m", "--data", str(self.folder / "prepared" / "ml-1m"), "--resume", "--epochs", "2"),
                *("--batch", "20", "--change", "hidden=8", "--change", "latent=4", "--out", str(out)),
            ],
        }[command]


def call(arguments: list[str]) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made, random = World(tmp_path_factory.mktemp("world")), np.random.default_rng(0)
    for name, users in (("likes", range(60)), ("later", range(100, 140))):
        rows = [f"{user},{(user % 2) * 15 + item}" for user in users for item in random.choice(20, 8, replace=False)]
        (made.folder / f"{name}.csv").write_text("\n".join(["user_id,item_id", *rows]) + "\n")
    (made.folder / "ml-1m").mkdir()
    lines = [f"{user}::{1 + (user % 2) * 15 + item}::5::{user}" for user in range(1, 61) for item in random.choice(20, 9, replace=False)]  # fmt: skip
    (made.folder / "ml-1m" / "ratings.dat").write_text("\n".join(lines) + "\n")
    (made.folder / "ml-1m" / "movies.dat").write_text("".join(f"{i}::Film {i} (1999)::Drama\n" for i in range(1, 42)))
    for arguments in (
        made.arguments("fit", made.folder),
        made.arguments("prepare", made.folder),
        made.arguments("ml-1m", made.folder / "runs"),
    ):
        done = call(arguments)
        assert done.exit_code == 0, done.output
    return made


def tree(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


# --------------------------------------------------------------------------------------------------------------- faults


@contextmanager
def size_limit(_: pytest.MonkeyPatch) -> Iterator[None]:
    """No file may have more than 64 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def no_space(patch: pytest.MonkeyPatch, after: int = 0) -> AbstractContextManager[None]:
    """The disk is full when it has to store what was written, some outputs later."""

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return at_writing(patch, after, full)


def control_c(patch: pytest.MonkeyPatch, after: int = 0) -> AbstractContextManager[None]:
    """A real SIGINT while an output is being written, some outputs later."""
    return at_writing(patch, after, lambda: signal.raise_signal(signal.SIGINT))


@contextmanager
def at_writing(patch: pytest.MonkeyPatch, after: int, fault: Callable[[], None]) -> Iterator[None]:
    done, real = [0], files._flush

    def flush(path: Path) -> None:
        if path.suffix == ".part":  # the output itself, rather than a file in it
            done[0] += 1
            if done[0] == after + 1:
                fault()
        real(path)

    with patch.context() as inner:
        inner.setattr(files, "_flush", flush)
        yield


FAULTS = {"size limit": (size_limit, 1, "cannot write to"), "no space": (no_space, 1, "No space left on device"),
          "Ctrl-C": (control_c, 130, "stopped")}  # fmt: skip


def assert_one_line_error(done: Result, code: int, message: str) -> None:
    assert done.exit_code == code, (done.exit_code, done.output, done.exception)
    assert isinstance(done.exception, SystemExit)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


# ---------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("command", COMMANDS)
def test_old_output_stays_whatever_happens_to_the_new(
    command: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(world.arguments(command, tmp_path)).exit_code == 0
    before = tree(tmp_path)
    assert before
    for fault, code, message in FAULTS.values():
        with fault(monkeypatch):
            done = call(world.arguments(command, tmp_path, changed=True))
        assert_one_line_error(done, code, message)
        assert {name: content for name, content in tree(tmp_path).items() if ".unfinished/" not in name} == before
        assert not list(tmp_path.rglob("*.part"))
    done = call(world.arguments(command, tmp_path, changed=True))  # and with room again the new one comes
    assert done.exit_code == 0, done.output
    after = tree(tmp_path)
    assert after.keys() == before.keys()
    assert after != before or command == "report"


@pytest.mark.parametrize("command", [*COMMANDS, "ml-1m"])
def test_unwritable_output_is_refused_before_the_work(command: str, world: World, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file in place of a folder")
    done = call(world.arguments(command, tmp_path / "taken"))
    assert_one_line_error(done, 1, "cannot write to")
    assert tree(tmp_path) == {"taken": b"a file in place of a folder"}


def clockless(record: Any) -> Any:
    """A record without what depends on the clock."""
    if isinstance(record, dict):
        clock = ("seconds", "validation_seconds", "provenance", "date", "commit", "per_epoch")
        return {name: clockless(value) for name, value in record.items() if name not in clock}
    return [clockless(each) for each in record] if isinstance(record, list) else record


def images() -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (70, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.arange(70) % 10
    return Images(pixels[:50], labels[:50], pixels[50:], labels[50:])


@pytest.mark.process
@pytest.mark.parametrize("command", ["ml-1m", "cifar10"])
def test_reproduction_keeps_its_last_state_and_resumes_from_it(
    command: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.vision.cifar10.load", lambda path: images())
    small = {"depth": 11, "width": 8, "pool": 1, "size": 32, "batch": 20, "epochs": 2, "validation": 10, "samples": 2}
    monkeypatch.setitem(recipes.RECIPES, "fast", small)
    whole = tmp_path / "whole"
    assert call(world.arguments(command, whole)).exit_code == 0
    for fault in ("no space", "Ctrl-C"):
        broken, (fault_at, code, message) = tmp_path / fault, FAULTS[fault]
        with fault_at(monkeypatch, 1):  # type: ignore[call-arg]  # in the second epoch, when the first has its state
            done = call(world.arguments(command, broken))
        assert done.exit_code == code, (done.output, done.exception)
        assert message in done.stderr
        assert "Traceback" not in done.output
        assert str(broken / "checkpoints") in done.stderr
        assert tree(broken / "checkpoints")
        assert not list(broken.glob("*.json"))
        done = call(world.arguments(command, broken))
        assert done.exit_code == 0, done.output
        (record,) = broken.glob("*.json")
        assert clockless(json.loads(record.read_text())) == clockless(json.loads((whole / record.name).read_text()))


@pytest.mark.process
def test_control_c_in_a_terminal_leaves_a_state_that_the_same_command_resumes(world: World, tmp_path: Path) -> None:
    arguments = world.arguments("fit", tmp_path)
    arguments[arguments.index("--epochs") + 1] = "100000"
    running = subprocess.Popen([sys.executable, "-m", "lbdrop", *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)  # fmt: skip
    try:
        for _ in range(6000):
            if any((tmp_path / "model.unfinished").glob("epoch-?????")):
                break
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, errors
    assert "model.unfinished holds epoch" in errors
    assert "Traceback" not in errors
    reached = max(int(each.name[-5:]) for each in (tmp_path / "model.unfinished").glob("epoch-?????"))
    arguments[arguments.index("100000")] = str(reached + 1)  # the same run, which now has an end
    done = call(arguments)
    assert done.exit_code == 0, done.output
    epochs = json.loads((tmp_path / "model" / "model.json").read_text())["history"]["epochs"]
    assert [epoch["epoch"] for epoch in epochs] == list(range(1, reached + 2))
    assert not (tmp_path / "model.unfinished").exists()
