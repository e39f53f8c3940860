"""The command line: one verb per file, each a thin shell over a function that can be imported.

A command's file is imported when the command is run, so that ``lbdrop --help`` waits for no torch.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_command

from lbdrop.cli.common import Commands
from lbdrop.cli.laboratory import laboratory

__all__ = ["app"]


class Verb(NamedTuple):
    """Where a command is, and what ``lbdrop --help`` says of it."""

    module: str
    attribute: str
    help: str
    laboratory: bool = False


VERBS = {
    "demo": Verb(
        "commands.demo",
        "demo",
        "Compare learned with fixed dropout, in a small network on digits and in a recommender on a generated shop.",
        True,
    ),
    "report": Verb("commands.report", "report", "Show runs side by side on one page that works offline.", True),
    "rates": Verb("lbdrop.cli.rates", "rates", "Show the learned drop rates of a saved model."),
    "doctor": Verb("lbdrop.cli.doctor", "doctor", "Say what is installed, and what is missing for which extra."),
    "recommend": Verb("lbdrop.cli.recommend", "app", "Fit a recommender, score users, or serve it."),
    "data": Verb("lbdrop.cli.data", "app", "Prepare data sets for the recommender."),
    "reproduce": Verb("commands.reproduce", "app", "Run an experiment of the paper again.", True),
}


class Verbs(Commands):
    """The commands, each imported when it is used."""

    listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = VERBS.get(cmd_name)
        if verb is None or self.listing:
            return verb and TyperCommand(cmd_name, help=verb.help)
        found = getattr(laboratory(verb.module) if verb.laboratory else import_module(verb.module), verb.attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(pretty_exceptions_show_locals=False, add_completion=False)
            single.command(cmd_name)(found)
            found = single
        command = get_command(found)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._listed():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        with self._listed():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listed(self) -> Iterator[None]:
        self.listing = True
        try:
            yield
        finally:
            self.listing = False


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Learned Bernoulli dropout for PyTorch. Begin with lbdrop demo; TAB completes after lbdrop --install-completion.",
)


def _say_version(value: bool) -> None:
    if value:
        from lbdrop import __version__

        typer.echo(f"lbdrop {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which.")]


@app.callback()
def lbdrop(version: Version = False) -> None:
    """Learned Bernoulli dropout for PyTorch."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):  # another stream, or one whose file was replaced beneath it
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue] — ? for a sign it lacks
