"""Every verb explains itself: a help text with an example that its own parser accepts, and completion in the shell."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lbdrop.cli import app

ROOT = typer.main.get_command(app)


def verbs(command: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that lead to it."""
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from verbs(command.get_command(context, name), (*path, name))
    else:
        yield path, command


VERBS = dict(verbs())


def examples(command: Any) -> list[str]:
    return re.findall(r"^\s+(lbdrop .*)$", command.help or "", re.MULTILINE)


def test_walk_finds_every_command():
    assert {("demo",), ("report",), ("rates",), ("doctor",), ("recommend", "fit"), ("reproduce", "toy")} <= VERBS.keys()


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_command_has_an_example_that_its_parser_accepts(path: tuple[str, ...]):
    command = VERBS[path]
    found = examples(command)
    assert found, f"lbdrop {' '.join(path)} --help has no example"
    for example in found:
        words = shlex.split(example)
        assert tuple(words[1 : 1 + len(path)]) == path, example
        command.make_context(path[-1], words[1 + len(path) :])  # an unknown option or a missing argument raises


def test_unknown_option_in_an_example_is_found():
    with pytest.raises(Exception, match="No such option: --no-such-option"):
        VERBS["report",].make_context("report", ["records", "--no-such-option"])


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_options_and_arguments_have_help(path: tuple[str, ...]):
    for parameter in VERBS[path].params:
        assert getattr(parameter, "help", None), f"lbdrop {' '.join(path)}: {parameter.name}"


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_help_is_shown_with_its_example_on_a_line_of_its_own(path: tuple[str, ...]):
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "160", "TERM": "dumb"})
    assert shown.exit_code == 0
    for example in examples(VERBS[path]):
        assert example in shown.output


# ---------------------------------------------------------------------------------------------------------- completion


def completed(words: str) -> list[str]:
    environment = os.environ | {
        "_LBDROP_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split())),
    }
    code = "import sys; sys.argv[0] = 'lbdrop'; from lbdrop.cli import app; app(prog_name='lbdrop')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("lbdrop ", {"demo", "report", "rates", "doctor", "recommend", "reproduce"}),
        ("lbdrop recommend ", {"fit", "score", "similar"}),
    ],
)
def test_bash_completes_commands(words: str, wanted: set[str]):
    assert wanted <= set(completed(words))


def test_completion_can_be_installed():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).output
    assert "--install-completion" in shown
    assert "--show-completion" in shown
