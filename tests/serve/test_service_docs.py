"""The commands on the pages about the service run as they are written there."""

import contextlib
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner

from lbdrop.cli import app, serve
from lbdrop.recommend.shop import Shop

DOCS = Path(__file__).parent.parent.parent / "docs"


def commands(page: str) -> list[str]:
    return re.findall(r"^lbdrop (.*)$", (DOCS / page).read_text(), re.MULTILINE)


@pytest.mark.parametrize(("page", "count"), [("service.md", 2), ("tutorials/recommender.md", 5)])
def test_commands_run_one_after_the_other(
    page: str, count: int, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("likes.csv", "train.csv"):
        shop.interactions.write_csv(tmp_path / name)
    shop.interactions.with_columns(user_id=shop.interactions["user_id"] + 1_000).write_csv(tmp_path / "newcomers.csv")
    shop.items.write_csv(tmp_path / "items.csv")
    served: list[Any] = []
    anywhere = serve.listening
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve, "listening", lambda host, port: anywhere(host, 0))
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: served.append(sockets[0].getsockname()))
    found = commands(page)
    assert len(found) == count
    for command in found:
        result = CliRunner().invoke(app, shlex.split(command))
        assert result.exit_code == 0, (command, result.output)
    assert [address for address, _ in served] == ["127.0.0.1"]


def test_without_its_packages_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['fastapi'] = None; from lbdrop.cli import app; app()"
    with contextlib.chdir(DOCS):
        run = subprocess.run(
            [sys.executable, "-c", code, "recommend", "serve", "model", "--port", "0"], capture_output=True, text=True
        )
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "fastapi: package not found; pip install 'lbdrop[serve]'\n"
