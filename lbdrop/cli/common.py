"""What every command needs: errors in one line, and a folder that can be written to before the work begins."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from lbdrop.errors import DropoutError

__all__ = ["check_writable", "one_line_errors", "writing"]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What a user can put right ends in one line on stderr; so does Ctrl-C, with what it says of work that is kept."""
    try:
        yield
    except DropoutError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo(str(error) or "stopped", err=True)
        raise typer.Exit(130) from error


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A failure to write says where, why, and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise DropoutError(f"cannot write to {folder}: {reason}; choose another folder with --out") from error


def check_writable(folder: Path, *names: str) -> None:
    """Raise OSError unless files of these names can be written into ``folder``, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    for name in names:
        if (folder / name).is_dir():
            raise IsADirectoryError(f"{name} is a folder there")
