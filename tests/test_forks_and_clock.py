"""Forked processes, a clock that jumps, and two commands in one folder: as the page on reliability says."""

import ast
import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.checkerboard import checkerboard
from typer.testing import CliRunner

import lbdrop
from lbdrop.cli import app
from lbdrop.io.files import locked
from lbdrop.recommend import Recommender
from lbdrop.recommend.train.checkpoints import WORK

FORKED = """
import os, sys, torch, lbdrop
torch.set_num_threads(1)
torch.manual_seed(0)
model = lbdrop.convert(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)), verbose=False)
x = torch.ones(2, 4)
lbdrop.predict(model, x, samples=2)
hear, speak = os.pipe()
child = os.fork()
seeded = lbdrop.predict(model, x, samples=5, generator=torch.Generator().manual_seed(7)).mean
said = f"{seeded.tolist()} {lbdrop.predict(model, x, samples=5).mean.tolist()}"
if not child:
    os.write(speak, said.encode())
    os._exit(0)
os.waitpid(child, 0)
print(os.read(hear, 1 << 16).decode() == said)
"""


@pytest.mark.process
def test_forked_process_draws_the_same_masks_as_its_parent() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == "True\n", ended.stderr


def test_nothing_but_the_date_of_a_record_reads_the_clock() -> None:
    found = []
    for path in Path(lbdrop.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.time", "datetime.now", "time.localtime"):
                found.append(path.name)
    assert found == ["records.py"]


def test_fit_under_a_clock_that_goes_back_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fitted(folder: Path) -> Recommender:
        small = {"hidden": 4, "latent": 2, "epochs": 2, "validation": 0, "progress": False}
        model = Recommender("vae-drop", **small)  # type: ignore[arg-type]
        model.fit(checkerboard(), checkpoints=folder / "state")
        model.save(folder / "model")
        return Recommender.load(folder / "model")

    expected = fitted(tmp_path / "plain").recommend(k=3)
    backwards = itertools.count(2e9, -3600.0)
    monkeypatch.setattr(time, "time", lambda: next(backwards))
    assert fitted(tmp_path / "jumping").recommend(k=3).equals(expected)


def test_second_fit_into_one_folder_is_one_line(tmp_path: Path) -> None:
    checkerboard().write_csv(tmp_path / "likes.csv")
    words = [
        "recommend",
        "fit",
        str(tmp_path / "likes.csv"),
        "--out",
        str(tmp_path / "model"),
        "--method",
        "popularity",
    ]
    with locked(tmp_path / "model.unfinished", WORK):
        ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 1
    (line,) = ended.stderr.strip().splitlines()
    assert "want a folder that nobody else writes to, got one locked by another process or thread" in line
    assert CliRunner().invoke(app, words).exit_code == 0
