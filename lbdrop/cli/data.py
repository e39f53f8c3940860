"""``lbdrop data prepare``: files of a known data set, or one's own → likes as a recommender wants them, counted."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lbdrop.cli.common import Commands, check_writable, say, table, writing
from lbdrop.cli.laboratory import laboratory
from lbdrop.errors import DropoutError, needs_extra

__all__ = ["RESEARCH_SETS", "app"]

RESEARCH_SETS = ("ml-20m", "netflix", "msd", "ml-1m")
"""The data sets of the literature, whose readers are in a checkout."""
OFFICIAL, OWN_FILES = "Official data sets", "Your own files"

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Prepare data sets for the recommender.")


class Rules(NamedTuple):
    """What one's own files have, and an official data set has its protocol for."""

    at_least: float | None = None
    min_user_items: int = 0
    min_item_users: int = 0
    user: str = "user_id"
    item: str = "item_id"
    weight: str = "weight"

    def refuse(self, name: str) -> None:
        """An error about whatever was given."""
        for option, given, usual in zip(self._fields, self, Rules(), strict=True):
            if given != usual:
                raise DropoutError(
                    f"--{option.replace('_', '-')}: want your own files (lbdrop data prepare own), got {name}, which has its"
                    " protocol"
                )


@app.callback()
def data() -> None:
    """Prepare data sets for the recommender."""


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="ml-20m, ml-1m, netflix or msd; own for your own files.")],
    source: Annotated[
        list[Path],
        typer.Argument(
            help="Folder, archive or file of the official release; or your own CSV, TSV or Parquet: a file, a folder of parts,"
            " a pattern."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the prepared data; a folder NAME is made in it.")] = Path(
        "data/prepared"
    ),
    held_out_users: Annotated[
        int | None, typer.Option(min=1, help="Users for validation, and as many for test; default: the protocol's.")
    ] = None,
    allow_partial: Annotated[
        bool,
        typer.Option("--allow-partial", help="Go on though ratings are missing or too many.", rich_help_panel=OFFICIAL),
    ] = False,
    at_least: Annotated[
        float | None,
        typer.Option(help="The weight from which an interaction is a like, such as 4 of 5.", rich_help_panel=OWN_FILES),
    ] = None,
    min_user_items: Annotated[
        int, typer.Option(min=0, help="Leave out users with fewer items.", rich_help_panel=OWN_FILES)
    ] = 0,
    min_item_users: Annotated[
        int, typer.Option(min=0, help="Leave out items with fewer users, first.", rich_help_panel=OWN_FILES)
    ] = 0,
    user: Annotated[str, typer.Option(help="Name of the column of users.", rich_help_panel=OWN_FILES)] = "user_id",
    item: Annotated[str, typer.Option(help="Name of the column of items.", rich_help_panel=OWN_FILES)] = "item_id",
    weight: Annotated[
        str,
        typer.Option(
            help="Name of the column of weights; 'weight' may be missing, another may not.", rich_help_panel=OWN_FILES
        ),
    ] = "weight",
) -> None:
    """Read a data set's files, keep likes and users by a published protocol or by your rules, and write them compactly.

    Your own files stream: memory holds ids and a part of the rows, however many there are. ``lbdrop recommend fit`` takes the
    folder.

    Examples:

        lbdrop data prepare ml-20m ml-20m.zip

        lbdrop data prepare own 'events/*.parquet' --at-least 4 --min-user-items 5
    """
    with needs_extra("recommend"):
        from lbdrop.recommend.data.prepare_own import OWN, prepare_files
    rules = Rules(at_least, min_user_items, min_item_users, user, item, weight)
    if name not in (OWN, *RESEARCH_SETS):
        raise DropoutError(f"data set: want one of {', '.join(RESEARCH_SETS)}, or own for your own files, got {name!r}")
    if name != OWN:
        rules.refuse(name)
        if len(source) > 1:
            raise DropoutError(f"source: want one folder, archive or file of {name}, got {len(source)}")
    elif allow_partial:
        raise DropoutError("--allow-partial: want an official data set, got own; nobody knows how much is complete")
    prepare_set = None if name == OWN else laboratory("collaborative.data.prepare").prepare
    with writing(out / name):
        check_writable(out / name)
    started, users = time.perf_counter(), held_out_users
    with _bar(name, rows=name == OWN) as progress, writing(out / name):
        if prepare_set is None:
            manifest = prepare_files(source, out, held_out_users=users, progress=progress, **rules._asdict())
        else:
            prepared = prepare_set(
                name, source[0], out, allow_partial=allow_partial, held_out_users=users, progress=progress
            )
            manifest = prepared.manifest
    Console(highlight=False).print(_table(manifest))
    if note := manifest["source"]["note"]:
        say(f"note: {note}")
    say(f"{(out / name).resolve()} written in {time.perf_counter() - started:.1f} s")


@contextmanager
def _bar(name: str, rows: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar over bytes, or over rows."""
    amount = MofNCompleteColumn() if rows else DownloadColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(highlight=False), transient=True) as bar:
        task = bar.add_task(f"reading {name}", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if done == total:
                bar.update(task, description=f"preparing {name}")

        yield progress


def _table(manifest: dict[str, Any]) -> Table:
    published: dict[str, int] = manifest["published"]
    shown = table("", numbers=("found", "published", "") if published else ("found",), title=manifest["title"])
    for name, found in manifest["counts"].items():
        wanted = published.get(name)
        verdict = ("", "") if wanted is None else (f"{wanted:,}", "same" if wanted == found else f"{found - wanted:+,}")
        shown.add_row(name, f"{found:,}", *(verdict if published else ()))
    return shown
