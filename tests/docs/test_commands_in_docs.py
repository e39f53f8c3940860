"""The commands of every page run as they are written there, one after the other, on small generated files.

Schedules of hours are cut short by :mod:`stand_ins`. What starts processes or a cluster is in
``test_process_commands_in_docs.py``; commands within sentences are parsed.
"""

import argparse
import importlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from helpers.documented import PAGES, ROOT, commands, mentioned, name, records, stands_alone
from helpers.stand_ins import SHORT, write_data_sets, write_shop
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

from lbdrop.cli import app

ALONE = os.environ | {"OMP_NUM_THREADS": "1"}
LBDROP = typer.main.get_command(app)
PATIENCE = 120
"""Seconds after which a process hangs."""

# Lines of the Makefile's recipes that are left out, by a part of them, and why.
LEFT_OUT = {
    "-m venv": "sets up an environment",
    "-m pip install": "would change the environment that the tests run in",
    "echo ": "tells of the two above",
    "touch ": "marks that they are done",
    "apt-get": "would install a browser where there is none",
    "pyright": "a minute, and make test comes here after it",
    "-m pytest": "the suite that this test belongs to",
}

# ------------------------------------------------------------------------------------------------------------- parsing


def parse_lbdrop(words: list[str], command: Any = LBDROP) -> None:
    """An error unless these words are a verb with options and arguments that it takes, or a bare verb."""
    while words and hasattr(command, "get_command"):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command, words = found, words[1:]
    if hasattr(command, "get_command"):
        assert not set(words) - {name for each in command.params for name in each.opts} - {"--help"}, words
    elif words:
        command.make_context(command.name, list(words))


def parse(words: list[str]) -> None:
    """An error unless this command could be given."""
    program, rest = words[0], words[1:]
    if program == "lbdrop":
        parse_lbdrop(rest)
    elif program == "torchrun":
        asked = get_args_parser().parse_args(rest)
        assert (asked.module, asked.training_script) == (True, "lbdrop")
        parse_lbdrop(asked.training_script_args)
    elif words[:2] == ["python", "-m"] and rest[1].startswith("benchmarks."):
        benchmark = typer.Typer()
        module = importlib.import_module(rest[1])
        module = importlib.import_module(f"{rest[1]}.__main__") if hasattr(module, "__path__") else module
        benchmark.command()(module.main)
        typer.main.get_command(benchmark).make_context(rest[1], rest[2:])
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert rest
        assert set(rest) <= set(targets)
    elif program == "pytest":
        assert rest[:1] == ["-m"] or all((ROOT / path).exists() for path in rest), rest
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        what = re.fullmatch(r"(?:lbdrop|\.)(?:\[([\w,]+)\])?", rest[-1])
        assert rest[:-1] in (["install"], ["install", "-e"])
        assert what
        assert set((what[1] or "dev").split(",")) <= set(extras)
    elif program == "mkdocs":
        assert rest in (["serve"], ["build", "--strict"])
    else:
        pytest.fail(f"{shlex.join(words)}: want a program that this test knows")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_within_sentences_parse(page: Path) -> None:
    for words in mentioned(page):
        parse(words)


@pytest.mark.parametrize(
    "wrong",
    [
        "lbdrop recomend fit likes.csv",
        "lbdrop recommend fit likes.csv --no-such-option 1",
        "lbdrop recommend score --k ten model",
        "torchrun --standalone --nproc-per-node 2 -m lbdrop recommend fit likes.csv --no-such-option",
        "python -m benchmarks.nothing",
        "python -m benchmarks.faults --no-such-option",
        "make nothing",
        "pytest tests/nothing",
        "pip install 'lbdrop[nothing]'",
    ],
)
def test_wrong_command_does_not_parse(wrong: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        parse(shlex.split(wrong))


# ------------------------------------------------------------------------------------------------------------- running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What the pages take as given, small; the checkout's own results stay as they are."""
    write_shop(tmp_path)
    write_data_sets(tmp_path)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    for shorten in SHORT.values():
        shorten(monkeypatch.setattr, tmp_path)
    monkeypatch.chdir(tmp_path)
    before = records()
    yield tmp_path
    assert records() == before


@contextmanager
def served(words: list[str]) -> Iterator[str]:
    """The service as a process of its own, at any free port; its address."""
    call = [sys.executable, "-m", "lbdrop", *words, "--port", "0"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True, env=ALONE) as process:
        late = threading.Timer(PATIENCE, process.kill)
        late.start()
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/", said)
            assert found, said
            yield found[0]
        finally:
            late.cancel()
            process.send_signal(signal.SIGINT)
            process.wait(30)


def asking(words: list[str]) -> argparse.Namespace:
    """A request as curl takes it."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("url")
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-H", dest="header")
    parser.add_argument("-d", dest="body")
    return parser.parse_args(words)


def fetched(url: str, header: str | None = None, body: str | None = None) -> str:
    named = dict([header.split(": ", 1)]) if header else {}
    request = urllib.request.Request(url, body.encode() if body else None, named)
    for _ in range(300):  # the address is said before anybody is let in
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.read().decode()
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
            time.sleep(0.1)
    pytest.fail(f"{url}: nobody answers")


def run_lbdrop(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output, done.exception)


def run_make(words: list[str]) -> None:
    """What make would run, by its own word, but for what is left out above."""
    # By itself, as a reader calls it: these tests run below a make, which would announce folders.
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    made = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, env=alone)
    assert made.returncode == 0, made.stderr
    recipe = [
        line for line in made.stdout.replace("\\\n", " ").splitlines() if not any(part in line for part in LEFT_OUT)
    ]
    assert recipe, words
    for program, *rest in map(shlex.split, recipe):
        if Path(program).name == "lbdrop":
            run_lbdrop(rest)
        else:
            own = Path(sys.executable).with_name(Path(program).name)
            done = subprocess.run([own, *rest], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0, done.stdout + done.stderr


def run(words: list[str], until_the_end: ExitStack, address: str | None) -> str | None:
    """Run a command of a page; the address of the service, once one is up."""
    match words:
        case ["lbdrop", "recommend", "serve", *_]:
            address = until_the_end.enter_context(served(words[1:]))
            assert "<title>" in fetched(address)
            with pytest.raises(ConnectionRefusedError):  # it listens to no address of this machine but that one
                socket.create_connection(("127.0.0.2", int(address.strip("/").rpartition(":")[2])), timeout=30)
        case ["lbdrop", *rest]:
            run_lbdrop(rest)
        case ["curl", *rest]:
            assert address is not None, "the page asks a service that it has not started"
            asked = asking(rest)
            url = asked.url.replace("localhost:8000/", address)
            assert json.loads(fetched(url, asked.header, asked.body))["results"]
        case ["make", *rest]:
            run_make(rest)
        case _:
            pytest.fail(f"{shlex.join(words)}: want a program that this test can run")
    return address


@pytest.mark.process
@pytest.mark.parametrize("page", [pytest.param(page, id=name(page)) for page in PAGES if commands(page)])
def test_page_commands_run_in_order(page: Path, folder: Path) -> None:
    address = None
    with ExitStack() as until_the_end:
        for words in commands(page):
            if not stands_alone(words):
                address = run(words, until_the_end, address)


@pytest.mark.parametrize("wrong", ["rm -rf data", "lbdrop report experiments/toy/results", "make nothing"])
def test_line_that_cannot_run_fails(wrong: str, folder: Path) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)), ExitStack() as until_the_end:
        run(shlex.split(wrong), until_the_end, None)
