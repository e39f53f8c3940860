"""Every command on the pages runs as it is written there, on small generated files; those that cannot are parsed."""

import argparse
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

from lbdrop.cli import app
from lbdrop.recommend.shop import generate_shop

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = ("", "bash", "console", "sh")
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}
LBDROP = typer.main.get_command(app)

# What cannot run here, by how it begins, and why. It is parsed instead: programs, verbs, options, files and targets exist.
PARSED = {
    "make": "sets up an environment and runs this suite, or the demo for a minute; tests/test_demo.py has a short one",
    "pip install": "would change the environment that the tests run in",
    "pytest": "these tests run beside this one",
    "mkdocs": "tests/test_site.py builds the site",
    "python -m benchmarks.": "minutes, and alone on the machine; tests/benchmarks and others run them small",
    "torchrun --nnodes 2": "two machines; tests/distributed has two processes",
    "torchrun --standalone --nproc-per-node 2 -m lbdrop reproduce": "data sets that are not here, and a GPU",
    "lbdrop recommend score model histories.parquet --out scores --engine ray --address auto": "a cluster that is up;"
    " tests/recommend/test_cluster.py starts one",
    "lbdrop reproduce": "hours, or data sets that are not here; tests/experiments runs each recipe small",
    "lbdrop data prepare netflix": "the official files; tests/recommend/test_readers.py has small ones",
    "lbdrop data prepare ml-1m": "the official files; tests/recommend/test_readers.py has small ones",
    "lbdrop report experiments/cifar10/results --data": "CIFAR-10 itself; tests/report has a small one",
}


def blocks(page: Path) -> Iterator[str]:
    """The shell blocks of a page."""
    for info, block in re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        if info.strip() in SHELL:
            yield block


def commands(page: Path) -> list[list[str]]:
    """The commands of a page as words, programs by their bare names, comments left out."""
    lines = [line for block in blocks(page) for line in block.replace("\\\n", " ").splitlines()]
    split = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [[Path(words[0]).name, *words[1:]] for words in split if words]


def mentioned(page: Path) -> list[list[str]]:
    """Commands in the text itself, unless they are only sketched."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]
    begin = ("lbdrop ", "python -m ", "make ", "pip install ", "torchrun ", "pytest ", "mkdocs ")
    return [shlex.split(span) for span in spans if span.startswith(begin) and not re.search(r"[|…]|\.\.\.", span)]


def reason(words: list[str]) -> str | None:
    line = " ".join(words)
    return next((why for start, why in PARSED.items() if line.startswith(start)), None)


# ------------------------------------------------------------------------------------------------------------- parsing


def parse_lbdrop(words: list[str], command: Any = LBDROP) -> None:
    """An error unless these words are a verb with options and arguments that it takes, or a bare verb."""
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands"):
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
        benchmark.command()(importlib.import_module(rest[1]).main)
        typer.main.get_command(benchmark).make_context(rest[1], rest[2:])
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert rest
        assert set(rest) <= set(targets)
    elif program == "pytest":
        assert all((ROOT / path).exists() for path in rest), rest
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        what = re.fullmatch(r"(?:lbdrop|\.)(?:\[([\w,]+)\])?", rest[-1])
        assert rest[:-1] in (["install"], ["install", "-e"])
        assert what
        assert set((what[1] or "dev").split(",")) <= set(extras)
    elif program == "mkdocs":
        assert rest in (["serve"], ["build", "--strict"])
    elif program == "curl":
        asking(rest)
    else:
        pytest.fail(f"{shlex.join(words)}: want a program that this test knows")


def asking(words: list[str]) -> argparse.Namespace:
    """A request as curl takes it."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("url")
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-H", dest="header")
    parser.add_argument("-d", dest="body")
    return parser.parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_could_be_given(page: Path) -> None:
    for words in commands(page) + mentioned(page):
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
def test_a_command_that_could_not_be_given_would_be_found(wrong: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        parse(shlex.split(wrong))


def test_nothing_is_excused_that_no_page_asks_for() -> None:
    lines = [" ".join(words) for page in PAGES for words in commands(page)]
    idle = {start for start in PARSED if not any(line.startswith(start) for line in lines)}
    assert idle <= {"pip install", "mkdocs"}  # pages may come to need these


# ------------------------------------------------------------------------------------------------------------- running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the pages take as given, small."""
    shop = generate_shop(users=220, items=24, groups=2)
    # Shuffled, there is little to learn, and a fit soon stops.
    likes = shop.interactions.with_columns(pl.col("item_id").shuffle(seed=1)).unique(maintain_order=True)
    stars = likes.with_columns(weight=pl.lit(5))
    likes.write_csv(tmp_path / "likes.csv")
    likes.write_csv(tmp_path / "train.csv")
    likes.write_parquet(tmp_path / "likes.parquet")
    stars.write_csv(tmp_path / "ratings.csv")
    likes.with_columns(user_id=likes["user_id"] + 1_000).write_csv(tmp_path / "newcomers.csv")
    shop.items.write_csv(tmp_path / "items.csv")
    for made in ("events", "lbdrop-demo"):
        (tmp_path / made).mkdir()
    for part in range(2):
        stars.filter(pl.col("user_id") % 2 == part).write_parquet(tmp_path / "events" / f"{part}.parquet")
    likes.write_csv(tmp_path / "lbdrop-demo" / "likes.csv")
    shop.items.write_csv(tmp_path / "lbdrop-demo" / "items.csv")
    for kept in ("experiments", "benchmarks"):
        (tmp_path / kept).symlink_to(ROOT / kept)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def served(words: list[str]) -> Iterator[str]:
    """The service as a process of its own, at any free port; its address."""
    call = [sys.executable, "-m", "lbdrop", *words, "--port", "0"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True, env=ALONE) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/", said)
            assert found, said
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


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


def run(words: list[str]) -> None:
    if words[0] == "torchrun":
        call = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
        done = subprocess.run(call, capture_output=True, text=True, env=ALONE)
        assert done.returncode == 0, done.stderr[-3000:]
        return
    assert words[0] == "lbdrop", words
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, (words, done.output)


RUN = [page for page in PAGES if any(reason(words) is None for words in commands(page))]


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run_one_after_the_other(page: Path, folder: Path) -> None:
    address = None
    with ExitStack() as until_the_end:
        for words in commands(page):
            if reason(words) is not None:
                continue
            if words[:3] == ["lbdrop", "recommend", "serve"]:
                address = until_the_end.enter_context(served(words[1:]))
                assert "<title>" in fetched(address)
            elif words[0] == "curl":
                assert address is not None, "the page asks a service that it has not started"
                asked = asking(words[1:])
                url = asked.url.replace("localhost:8000/", address)
                assert json.loads(fetched(url, asked.header, asked.body))["results"]
            else:
                run(words)


def test_no_page_with_commands_of_the_recommender_is_left_out() -> None:
    names = {page.relative_to(ROOT / "docs").as_posix() for page in RUN if page != ROOT / "README.md"}
    assert {"recommender.md", "scaling.md", "service.md", "tutorials/recommender.md"} <= names
