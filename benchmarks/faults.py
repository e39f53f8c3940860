"""Faults on purpose: commands are killed, interrupted or short of disk, called again, and end as if nothing had been.

Each attempt is a process of its own that runs the real command and meets one fault:

    moment      SIGKILL at a random moment of the time that an undisturbed run takes
    operation   SIGKILL right before a random one of its file operations: a file opened, renamed, exchanged, linked, removed …
    Ctrl-C      SIGINT at a random moment: exit code not 0, no traceback
    full disk   no file may grow beyond a random size: exit code 1 and one line

The commands are ``fit``, ``score``, ``data prepare`` and ``report``, and ``save`` of a model. After every fault the output
must be the old one or the new one, byte for byte and never half of one; of a report, which is many files, each of them. A file
of the user's beside it must be what it was. After a few faults the command is called undisturbed: its output must be that of a
run that never stopped, to the last bit, and nothing may be left beside it. Attempts are forked from one process that has
imported everything and computed nothing.

Run: ``python -m benchmarks.faults --kills 500``; the test suite does so with 8.
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import click
import torch
import typer
from typer.testing import CliRunner

from lbdrop.cli import app
from lbdrop.io.records import provenance, write_json
from lbdrop.recommend.answer import history_parts, score_files

__all__ = ["main"]

IN_A_ROW = 3
"""Faults of one piece of work, until it may finish."""
FILE_OPERATIONS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "shutil.rmtree")
SECONDS = 120
"""An attempt that takes longer hangs."""
COMMANDS = typer.main.get_command(app)
CLOCK = {"provenance", "seal", "date", "commit", "hardware", "seconds", "validation_seconds"}
"""What of a JSON differs between runs."""
MINE = "thesis.tex"
"""A file of the user's beside the output."""


class Save(click.Command):
    """``save MODEL PLACE``, which is no command of lbdrop, as one."""

    def main(self, args: Any = None, *_: Any, **__: Any) -> Any:
        from lbdrop.recommend.recommender import Recommender

        Recommender.load(args[1]).save(args[2])
        raise SystemExit(0)


def main(
    kills: Annotated[int, typer.Option(min=1, help="SIGKILLs of each command.")] = 200,
    others: Annotated[
        int | None, typer.Option(min=0, help="Ctrl-Cs and full disks of each; a fifth of the kills.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws moments, operations and sizes.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The JSON to write.")] = None,
) -> None:
    """Count faults survived."""
    os.environ["POLARS_MAX_THREADS"] = "1"  # a fork has one thread; and sums run in one order
    torch.set_num_threads(1)
    import lightning.fabric  # noqa: F401  # once, rather than in every attempt

    import experiments.report.compose
    import experiments.toy.chapter  # noqa: F401

    for words in (
        ["recommend", "similar", "no model", "no item"],
        ["data", "prepare", "own", "none"],
        ["report", "none"],
    ):
        CliRunner().invoke(app, words)  # and what the command line itself imports
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found = {}
        for verb, kinds in commands(folder).items():
            rest = 0 if verb == "save" else kills // 5 if others is None else others  # it says nothing of other faults
            found[verb] = campaign(kinds, folder / "work", kills, rest, draw)
            print(f"{verb}: {json.dumps(found[verb])}", flush=True)
    result = {"settings": {"kills": kills, "seed": seed}, **found, "provenance": provenance()}
    print(f"JSON: {write_json(out or Path(__file__).parent / 'results' / 'faults.json', result)}")


# ------------------------------------------------------------------------------------------------------------ commands


@dataclass
class Command:
    """A command with its output; and, from an undisturbed run, what comes out, how long and how many operations it takes."""

    words: list[str]
    output: str
    at_once: bool = True
    """Whether the whole output is replaced at once, or each of its files."""
    expected: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    operations: int = 0
    largest: int = 0


def commands(folder: Path) -> dict[str, list[Command]]:
    """The commands of both verbs, tried once each; plain Python writes their data, for polars must not run before a fork."""
    history_parts.ROWS_PER_PART, history_parts.ROWS_PER_BATCH, score_files.ROWS_IN_MEMORY = 500, 400, 100
    numbers = random.Random(1)
    for name, users in (("likes", range(160)), ("new", range(1000, 1150))):
        rows = [f"{user},item-{(user % 4) * 10 + numbers.randrange(14)}" for user in users for _ in range(9)]
        (folder / f"{name}.csv").write_text("\n".join(["user_id,item_id", *rows]) + "\n")
    fit = ["recommend", "fit", str(folder / "likes.csv"), "--epochs", "4", "--validation", "40"]
    score = ["recommend", "score", str(folder / "model"), "--k", "5"]
    made = {
        "fit": [Command([*fit, "--set", "batch=40", "--out"], "model")],
        "score": [
            Command([*score, "--out"], "scores"),
            Command([*score[:3], str(folder / "new.csv"), *score[3:], "--out"], "scores.parquet"),
        ],
    }
    _expect(Command([*fit, "--seed", "7", "--out"], "model"), folder / "older")  # stands there before some of the work
    record = Path(__file__).parent.parent / "experiments" / "toy" / "results" / "toy.json"
    made |= {
        "prepare": [Command(["data", "prepare", "own", str(folder / "likes.csv"), "--out"], "data")],
        "report": [Command(["report", str(record), "--out"], "page", at_once=False)],
        "save": [Command(["save", str(folder / "model")], "copy")],
    }
    for kinds in made.values():
        for command in kinds:
            _expect(command, folder / "undisturbed")
            shutil.copytree(folder / "undisturbed", folder, dirs_exist_ok=True)  # the model that score reads
    return made


def _expect(command: Command, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    counted = place.with_name("counted")
    start = time.perf_counter()
    ended = attempt(command, place, at_operation=sys.maxsize, counted=counted)
    command.seconds = time.perf_counter() - start
    assert ended == 0, f"undisturbed: {place.with_name('said').read_text()}"
    command.operations = int(counted.read_text())
    command.expected = content(place / command.output)
    command.largest = max(each.stat().st_size for each in place.rglob("*") if each.is_file())


def content(path: Path) -> dict[str, Any]:
    """Names and bytes of an output; of JSON what does not depend on the clock."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    # What is below a name that ends so is removed by the next run.
    whole = (each for each in files if not any(name.endswith(".part") for name in each.parts))
    return {
        each.name: _clockless(json.loads(each.read_text())) if each.suffix == ".json" else each.read_bytes()
        for each in whole
    }


def _clockless(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_clockless(each) for each in tree]
    return (
        {name: _clockless(each) for name, each in tree.items() if name not in CLOCK} if isinstance(tree, dict) else tree
    )


# ------------------------------------------------------------------------------------------------------------ attempts


def attempt(
    command: Command,
    place: Path,
    *,
    after: float | None = None,
    send: int = signal.SIGKILL,
    at_operation: int | None = None,
    counted: Path | None = None,
    limit: int | None = None,
) -> int:
    """Run the command in a fork; its exit status, negative if a signal ended it."""
    hear, speak = os.pipe()  # unlike a file, it has room for the words about a full disk
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the fork is where it may be interrupted
    child = os.fork()
    if not child:
        _run(command, place, speak, at_operation, counted, limit)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.close(speak)
    try:
        return _ended(command, child, after, send)
    finally:
        place.with_name("said").write_bytes(os.read(hear, 1 << 16))
        os.close(hear)


def _ended(command: Command, child: int, after: float | None, send: int) -> int:
    if after is not None:
        time.sleep(after)
        os.kill(child, send)  # a child that has ended is still there to be waited for
    started = time.perf_counter()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.perf_counter() - started > SECONDS:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"{command.words}: still at work after {SECONDS} s")
        time.sleep(0.002)


def _run(
    command: Command, place: Path, speak: int, at_operation: int | None, counted: Path | None, limit: int | None
) -> None:
    """In the fork: the real command, whose words the other end of a pipe hears; does not return."""
    code = 1
    try:
        for stream in (1, 2):
            os.dup2(speak, stream)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        count = _operations(place, at_operation, counted) if at_operation is not None else None
        try:
            (Save("save") if command.words[0] == "save" else COMMANDS).main(
                [*command.words, str(place / command.output)]
            )
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        if counted is not None and count is not None:
            counted.write_text(str(count()))
    except KeyboardInterrupt:  # before the command began, or when it had ended
        pass
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _operations(place: Path, fatal: int, note: Path | None) -> Callable[[], int]:
    """Count what is done to files below ``place``, and end this process right before operation number ``fatal``."""
    done, below = 0, str(place)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal done
        exchange = event == "ctypes.dlsym" and arguments[1] == "renameat2"
        if exchange or (event in FILE_OPERATIONS and str(arguments[0]).startswith(below)):
            done += 1
            if done == fatal:
                Path(f"{below}.fatal").write_text("exchange" if exchange else event.rpartition(".")[2])
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: done


# ------------------------------------------------------------------------------------------------------------ campaign


def campaign(kinds: list[Command], place: Path, kills: int, others: int, draw: random.Random) -> dict[str, Any]:
    """Faults in random order until there were enough of each; counts by kind, and what was checked."""
    wanted = Counter({"moment": -(-kills // 2), "operation": kills // 2, "Ctrl-C": others, "full disk": others})
    met, operations, checked = Counter(), Counter(), Counter()
    while +wanted:
        command = draw.choice(kinds)
        _fresh(place)
        before = None
        if command.output == "model" and draw.random() < 0.5:
            shutil.copytree(place.with_name("older") / "model", place / "model")
            before = content(place / "model")
        ended = ""
        for before_it in range(IN_A_ROW):
            if not +wanted:
                break
            fault = draw.choice(sorted((+wanted).elements()))
            # What is left to do takes less and less time.
            ended = _meet(fault, command, place, draw, 1 / (1 + before_it))
            there = content(place / command.output) if (place / command.output).exists() else None
            right = (there or None) in (before, command.expected)
            if not command.at_once:
                right = all(command.expected.get(name) == data for name, data in (there or {}).items())
            assert right, f"{command.words} after {fault}: neither the old output nor the new"
            assert (place / MINE).read_text() == MINE, f"{command.words} after {fault}: the user's file is another"
            checked["outputs after a fault, whole"] += 1
            kept = [*place.glob("*.unfinished/epoch-?????"), *place.glob("*.unfinished/*/parts/part-?????.parquet")]
            checked["states left by a fault"] += bool(kept)
            if ended is None:
                break  # it came too late: the command has finished
            wanted[fault] -= 1
            met[fault] += 1
            operations[ended] += 1
        else:
            checked["works with several faults in a row"] += 1
        start = time.perf_counter()
        ended = attempt(command, place)
        command.seconds = max(0.9 * command.seconds, time.perf_counter() - start)  # the machine has other work at times
        assert ended == 0, (
            f"{command.words} after {dict(met)}: exit code {ended}, {place.with_name('said').read_text()}"
        )
        assert content(place / command.output) == command.expected, f"{command.words}: another result"
        left = sorted(each.name for each in (*place.iterdir(), *place.rglob("*.part")))
        assert left == sorted((command.output, MINE)), f"{command.words}: left {left}"
        checked["results the same to the last bit"] += 1
    operations.pop("", None)
    return {"faults": dict(met), "operations killed at": dict(operations), "checked": dict(checked)}


def _meet(fault: str, command: Command, place: Path, draw: random.Random, share: float) -> str | None:
    """One attempt with a fault: the operation it was killed at, or nothing to say; None where it finished before.

    ``share`` is the part of the undisturbed run within which the fault is drawn.
    """
    fatal = place.with_name(f"{place.name}.fatal")
    fatal.unlink(missing_ok=True)
    after = draw.uniform(0, command.seconds * share)
    if fault == "moment":
        return "" if attempt(command, place, after=after) == -signal.SIGKILL else None
    if fault == "operation":
        ended = attempt(command, place, at_operation=draw.randint(1, max(round(command.operations * share), 1)))
        return fatal.read_text() if ended == -signal.SIGKILL else None
    if fault == "Ctrl-C":
        ended = attempt(command, place, after=after, send=signal.SIGINT)
    else:
        ended = attempt(command, place, limit=draw.randint(0, command.largest - 1))
    said = place.with_name("said").read_text()
    if ended == 0:
        return None
    # Click answers with 1 where Ctrl-C comes before the command has begun.
    assert ended in ((1, 130) if fault == "Ctrl-C" else (1,)), (
        f"{command.words} after {fault}: exit code {ended}, {said}"
    )
    assert "Traceback" not in said, said
    assert fault == "Ctrl-C" or "cannot write to" in said, said
    return ""


def _fresh(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / MINE).write_text(MINE)


if __name__ == "__main__":
    typer.run(main)
