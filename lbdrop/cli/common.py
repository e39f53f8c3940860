"""What every command needs: errors and messages in one line, tables, and a folder that can be written to beforehand."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from lbdrop.errors import DropoutError, needs_extra

if TYPE_CHECKING:
    from lbdrop.recommend.recommender import Recommender

__all__ = [
    "PAGE_MARK", "Commands", "check_writable", "one_line", "one_line_errors", "recommender_class", "say", "table", "writing",
]  # fmt: skip

PAGE_MARK = '<meta name="generator" content="lbdrop">'
"""In each of our pages: only such a one is replaced."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Errors that a user can correct end in one line on stderr; so does Ctrl-C, with what it says of saved work."""
    try:
        yield
    except DropoutError as error:
        typer.echo(one_line(str(error)), err=True)
        raise typer.Exit(1) from error
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # nobody reads on, which is no error
            raise
        typer.echo(one_line(f"{error.filename or 'what is printed'}: {error.strerror or error}"), err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo(one_line(str(error)) or "stopped", err=True)
        raise typer.Exit(130) from error


class Commands(TyperGroup):
    """A group of commands whose errors end in one line."""

    def invoke(self, ctx: Any) -> Any:
        with one_line_errors():
            return super().invoke(ctx)


def one_line(text: str) -> str:
    """Text on one line, without line ends and control characters: it may quote a file."""
    return "".join(each if each.isprintable() else " " for each in text.strip())


def say(text: object) -> None:
    """Print text on one line, as it is: without markup, colours and breaks."""
    Console(highlight=False).print(one_line(str(text)), markup=False, soft_wrap=True)


def table(*words: str, numbers: tuple[str, ...] = (), title: str | None = None) -> Table:
    """An empty table with columns of words, then of numbers."""
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for each in words:
        made.add_column(each, overflow="fold")
    for each in numbers:
        made.add_column(each, justify="right", no_wrap=True)
    return made


@contextmanager
def writing(folder: Path, kept: Path | None = None) -> Iterator[None]:
    """A failure to write says where, why and what to do next; also which work is in ``kept``, if that exists."""
    try:
        yield
    except OSError as error:
        reason, there = error.strerror or error, kept is not None and kept.exists()
        go_on = f"; what is done so far is in {kept}: with room there the same command goes on" if there else ""
        raise DropoutError(f"cannot write to {folder}: {reason}; choose another folder with --out{go_on}") from error


def check_writable(folder: Path, *names: str) -> None:
    """Raise OSError unless files of these names can be written into ``folder``, which is made if need be.

    Files of these names that are there are replaced if one of them says that it is ours: a page, or a record of a run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    there = [folder / name for name in names if (folder / name).is_file()]
    if there and not any(map(_is_ours, there)):
        raise DropoutError(
            f"{folder}: want a place for {names[0]}, got one of another program; choose another with --out"
        )
    with tempfile.TemporaryFile(dir=folder):
        pass
    for name in names:
        if (folder / name).is_dir():
            raise IsADirectoryError(f"{name} is a folder there")


def recommender_class() -> "type[Recommender]":
    """Imported only now: `lbdrop --help` needs neither the time nor the packages."""
    with needs_extra("recommend"):
        from lbdrop.recommend.recommender import Recommender
    return Recommender


def _is_ours(path: Path) -> bool:
    if path.suffix != ".json":
        with path.open("rb") as file:
            return PAGE_MARK.encode() in file.read(4096)
    from lbdrop.io.records import read_json  # which imports torch

    try:
        content = read_json(path)
    except (DropoutError, OSError):
        return False
    return isinstance(content, dict) and "provenance" in content
