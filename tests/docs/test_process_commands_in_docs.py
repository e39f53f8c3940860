"""The commands on the pages that start processes or a cluster: each distinct line runs once, in a folder outside the checkout.

Words stay as they are on the page, but for those in ``TWO_MACHINES``. Benchmarks get further words that make them small.
Schedules are cut short by :mod:`stand_ins`. Most of the time goes into starting processes, so lines that differ only in what
they run in two processes share these, lines for a cluster share one, and a benchmark that starts processes runs in this one.
pytest's own lines are not run again: the test asks only that the suite has what they name.
"""

import argparse
import ast
import importlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
import typer
from helpers.documented import PAGES, ROOT, commands, records, stands_alone
from helpers.stand_ins import SHORT, write_data_sets, write_hook, write_shop
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

from experiments.collaborative.data.prepare import prepare
from lbdrop.recommend import Recommender

pytestmark = pytest.mark.process

LINES = sorted({shlex.join(words) for page in PAGES for words in commands(page) if stands_alone(words)})
BENCHMARK = "python -m benchmarks."
PATIENCE = 240
"""Seconds after which a process hangs."""

# What is replaced on the lines for two machines: by what, and why.
TWO_MACHINES = {
    "--nnodes 2": ("--nnodes 2 --local-addr localhost", "where tests run, a machine's own name may lead nowhere"),
    "first-machine:29500": ("localhost:{port}", "both are this machine"),
    "--nproc-per-node 8": ("--nproc-per-node 1", "sixteen processes would wait for its cores"),
    "/shared/": ("{folder}/", "what both see"),
}

# The further words that make a benchmark small.
SMALL = {
    "big_data": "--rows 4000 --users 100 --items 200 --catalogue 300 --hidden 4 --batch 20 --steps 2",
    "fuzz": "--examples 5",
    "processes": "--ranks 1 --users 40 --items 60 --per-user 5 --batch 20 --epochs 1",
    "threads": "--threads 2 --calls 8 --seeds 4",
    "scoring": "--users 200 --items 30 --part 100 --k 5 --nodes 1 --rows 1000",
}

# Benchmarks that another test runs small, with what they found: once is enough.
ELSEWHERE = {
    "faults": "tests/recommend/test_crashes.py::test_commands_survive_kills_bit_for_bit",
    "tampering": "tests/benchmarks/test_tampering.py::"
    "test_tampered_folders_are_refused_in_one_line_within_time_and_memory",
    "service": "tests/benchmarks/test_service_benchmark.py::"
    "test_small_run_loses_no_answer_and_records_rates_waits_and_memory",
}

# The words of several lines, each behind a torchrun of its own on the page.
IN_TURN = """
import shlex, sys
from lbdrop.cli import app
for line in sys.argv[1:]:
    assert not app(shlex.split(line), standalone_mode=False), line
"""

# Two machines, which share the start of Python.
TWO_MACHINES_AT_ONCE = """
import os, sys
from torch.distributed import run
other = os.fork()
run.main(sys.argv[1:])
assert not other or os.waitpid(other, 0)[1] == 0
"""

# A cluster on this machine; "auto" asks the variable first, so that no other test's cluster is found.
ON_A_CLUSTER = """
import contextlib, os, shlex, sys
import typer
from benchmarks import scoring
from lbdrop.cli import app
programs, lines = {"lbdrop": app, "scoring": typer.Typer()}, [shlex.split(line) for line in sys.argv[1:]]
programs["scoring"].command()(scoring.main)
with scoring.cluster_of(1) as address:
    os.environ["RAY_ADDRESS"] = address
    scoring.cluster_of = lambda nodes: contextlib.nullcontext(address)
    for program, *words in lines:
        assert not programs[program](words, standalone_mode=False), words
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder to work in; the checkout's own results stay as they are."""
    before = records()
    yield tmp_path
    assert records() == before


def start(words: list[str], folder: Path, path: str = str(ROOT)) -> subprocess.Popen[str]:
    """Python with these words, in the folder."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "PYTHONPATH": path}
    call = [sys.executable, *words]
    return subprocess.Popen(
        call, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def end(process: subprocess.Popen[str]) -> str:
    """What the process printed until it ended without an error; whatever it started is gone then."""
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun then ends the processes that it has started
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-5000:]
    return said


# ----------------------------------------------------------------------------------------------------------- how it runs


def in_two_processes(lines: list[str], folder: Path) -> None:
    """Two machines of one process each run every line; that ``--standalone`` starts them too, a benchmark here shows."""
    write_shop(folder)
    write_data_sets(folder)
    with pytest.MonkeyPatch.context() as patch:
        SHORT["netflix"](patch.setattr, folder)
        prepare("netflix", folder / "netflix-prize.tar.gz", folder / "data" / "prepared")
    (folder / "in_turn.py").write_text(IN_TURN)
    path = write_hook(folder, "fit", "cifar10", "netflix")
    across, *here = sorted(lines)
    assert all(parsed(line).standalone and parsed(line).nproc_per_node == "2" for line in here)
    with socket.socket() as held:  # bound here, so that nobody else is given the port; who asks for it may listen there
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("localhost", 0))
        for written, (replacement, _) in TWO_MACHINES.items():
            assert written in across
            across = across.replace(written, replacement.format(port=held.getsockname()[1], folder=folder))
        start_of_all, _, _ = across.partition(" -m lbdrop ")
        works = [line.partition(" -m lbdrop ")[2] for line in (across, *here)]
        words = [*shlex.split(start_of_all)[1:], "in_turn.py", *works]
        said = end(start(["-c", TWO_MACHINES_AT_ONCE, *words], folder, path))
    fits = [work for work in works if " fit " in f" {work} "]
    assert " ".join(said.split()).count("model written in") == len(fits)  # by the first process of both alone
    records = [json.loads(path.read_text()) for path in folder.glob("experiments/*/results/*.json")]
    assert len(records) == sum(work.startswith("reproduce ") for work in works)
    assert all(record["settings"]["epochs"] == 1 for record in records)
    assert len(Recommender.load(folder / "model").recommend([0, 1], k=3)) == 6


def parsed(line: str) -> argparse.Namespace:
    """A line as torchrun reads it."""
    return get_args_parser().parse_args(shlex.split(line)[1:])


def on_a_cluster(lines: list[str], folder: Path) -> None:
    write_shop(folder)
    Recommender("ease", progress=False).fit(pl.read_csv(folder / "likes.csv")).save(folder / "model")
    score, benchmark = lines
    small = f"{benchmark.removeprefix(BENCHMARK)} {SMALL['scoring']} --out record.json"
    end(start(["-c", ON_A_CLUSTER, score, small], folder))
    asked, scored = pl.read_parquet(folder / "histories.parquet"), pl.read_parquet(folder / "scores")
    assert scored["user_id"].unique().sort().equals(asked["user_id"].unique().sort())
    assert json.loads((folder / "record.json").read_text())["the same rows"]


def in_small(lines: list[str], folder: Path) -> None:
    (words,) = map(shlex.split, lines)
    name = words[2].removeprefix("benchmarks.")
    further = [*shlex.split(SMALL[name]), "--out", str(folder / "record.json")]
    if name == "fuzz":  # what it reads is fixed when it is imported
        end(start([*words[1:], *further], folder, write_hook(folder, "fuzz")))
    else:
        benchmark = typer.Typer()
        benchmark.command()(importlib.import_module(words[2]).main)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(ROOT))
            patch.setenv("POLARS_MAX_THREADS", "1")
            done = CliRunner().invoke(benchmark, [*words[3:], *further])
        assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads((folder / "record.json").read_text())


def elsewhere(lines: list[str], folder: Path) -> None:
    for line in lines:
        file, _, test = ELSEWHERE[line.split()[2].removeprefix("benchmarks.")].partition("::")
        assert test in claims_of(ROOT / file)
        assert line.split()[2] in (ROOT / file).read_text()


def beside_these(lines: list[str], folder: Path) -> None:
    for named in (ROOT / word for line in lines for word in shlex.split(line)[1:]):
        assert named.is_relative_to(ROOT / "tests")  # all of which the suite runs
        assert any(map(claims_of, named.glob("test_*.py") if named.is_dir() else [named])), named


def claims_of(file: Path) -> list[str]:
    found = [each.name for each in ast.parse(file.read_text()).body if isinstance(each, ast.FunctionDef)]
    return [name for name in found if name.startswith("test_")]


# By how lines begin; all that begin so run together.
HOW: dict[tuple[str, ...], Callable[[list[str], Path], None]] = {
    ("torchrun --nnodes 2 ", "torchrun --standalone "): in_two_processes,
    ("lbdrop recommend score ", f"{BENCHMARK}scoring"): on_a_cluster,
    **{(BENCHMARK + name,): in_small for name in SMALL if name != "scoring"},
    tuple(BENCHMARK + name for name in ELSEWHERE): elsewhere,
    ("pytest ",): beside_these,
}


@pytest.mark.parametrize("begin", HOW, ids=", ".join)
def test_lines_run_in_processes(begin: tuple[str, ...], folder: Path) -> None:
    HOW[begin]([line for line in LINES if line.startswith(begin)], folder)


def test_every_line_has_one_way_to_run() -> None:
    for line in LINES:
        assert sum(line.startswith(begin) for begin in HOW) == 1, f"{line}: want a line that begins as one of {[*HOW]}"
    for begin in (begin for group in HOW for begin in group):
        assert any(line.startswith(begin) for line in LINES), begin


def test_uncut_schedule_ends_the_process(folder: Path) -> None:
    process = start(["-c", "print('hours')"], folder, write_hook(folder, "no such experiment"))
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "KeyError" in said
    assert "hours" not in said
