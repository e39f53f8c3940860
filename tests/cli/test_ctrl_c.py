"""Ctrl-C ends in one line and keeps what was done, whenever it comes and however often."""

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from helpers.checkerboard import checkerboard

from lbdrop.io.manifest import read_header
from lbdrop.recommend.train.checkpoints import KIND

pytestmark = pytest.mark.process

DURING_AN_IMPORT = """
import os, signal, sys

pressed_at, sys.argv = sys.argv[1], ["lbdrop", *sys.argv[2:]]

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == pressed_at:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressed())
from lbdrop.__main__ import main
main()
"""
LISTENING = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
"""A shell's background jobs ignore it."""


def test_ctrl_c_during_training_is_one_line_and_keeps_the_state(tmp_path: Path) -> None:
    checkerboard().write_csv(tmp_path / "likes.csv")
    words = ["recommend", "fit", str(tmp_path / "likes.csv"), "--out", str(tmp_path / "model"), "--epochs", "100000"]
    command = [sys.executable, "-m", "lbdrop", *words, "--validation", "0", "--dropout", "learned", "--set", "hidden=4"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=LISTENING
    ) as process:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "model.unfinished").glob("epoch-?????")) and time.monotonic() < deadline:
            time.sleep(0.02)
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.03)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    (line,) = said.strip().splitlines()
    assert line.startswith("stopped in epoch")
    (state,) = (tmp_path / "model.unfinished").glob("epoch-?????")
    assert read_header(state, KIND)["step"] > 0


@pytest.mark.parametrize("module", ["typer", "numpy", "torch", "polars", "lbdrop.recommend.saving"])
def test_ctrl_c_during_an_import_is_one_line(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DURING_AN_IMPORT, module, "recommend", "similar", str(tmp_path), "7"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=LISTENING)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped\n")


def test_ctrl_c_while_python_tidies_up_is_one_line_too() -> None:
    code = """
import os, signal
from unittest import mock
import lbdrop.__main__ as command

def rows():
    try:
        yield 1
    finally:
        os.kill(os.getpid(), signal.SIGINT)

def app(prog_name):
    generator = rows()
    next(generator)
    del generator
    print("went on")

with mock.patch("lbdrop.cli.app", app):
    command.main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, preexec_fn=LISTENING
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped\n")
