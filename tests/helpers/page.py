"""A page of the documentation, run block by block: in this process, or in one of its own as a reader runs it."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import lbdrop
from helpers.documented import FENCED, ROOT


def preamble() -> dict[str, Any]:
    """What the pages take as given."""
    x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))
    return {"torch": torch, "nn": nn, "F": F, "lbdrop": lbdrop, "model": model, "x": x, "y": y,
            "train": TensorDataset(x, y), "__name__": "page"}  # fmt: skip


def outputs(page: Path) -> list[tuple[str, str]]:
    """What the code above each block of text printed, beside that block."""
    names, said, text, found = preamble(), "", page.read_text(), []
    for block in FENCED.finditer(text):
        if block[1].strip() == "python":
            above = "\n" * (text.count("\n", 0, block.start()) + 1)  # so that an error names the line of the page
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(above + block[2], str(page), "exec"), names)
            said = printed.getvalue()
        elif block[1].strip() == "text":
            found.append((said, block[2]))
    return found


def outputs_in_a_process(page: Path, folder: Path) -> list[tuple[str, str]]:
    """The same by a Python of its own, started in a folder."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:lbdrop", "-m", "helpers.page", str(page), str(folder / "outputs.json")],
        cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [(said, shown) for said, shown in json.loads((folder / "outputs.json").read_text())]


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    Path(sys.argv[2]).write_text(json.dumps(outputs(Path(sys.argv[1]))))
