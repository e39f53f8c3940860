"""The command of the service says what to install; ``test_commands_in_docs.py`` runs it as in the docs."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.process
def test_serve_without_fastapi_says_what_to_install() -> None:
    code = "import sys; sys.modules['fastapi'] = None; from lbdrop.cli import app; app()"
    with contextlib.chdir(DOCS):
        run = subprocess.run(
            [sys.executable, "-c", code, "recommend", "serve", "model", "--port", "0"], capture_output=True, text=True
        )
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "fastapi: package not found; pip install 'lbdrop[serve]'\n"
