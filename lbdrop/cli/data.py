"""``lbdrop data prepare``: files of a known data set, or one's own → likes as a recommender wants them, counted."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lbdrop.cli.common import check_writable, one_line, one_line_errors, writing
from lbdrop.cli.laboratory import laboratory
from lbdrop.errors import DropoutError, needs_extra

__all__ = ["RESEARCH_SETS", "app"]

RESEARCH_SETS = ("ml-20m", "netflix", "msd", "ml-1m")
"""The data sets of the literature, whose readers are in a checkout."""
OFFICIAL, OWN_FILES = "Official data sets", "Your own files"

app = typer.Typer(no_args_is_help=True, help="Prepare data sets for the recommender.")


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
    console = Console(highlight=False)
    with one_line_errors():
        with needs_extra("recommend"):
            from lbdrop.recommend.data.prepare_own import OWN, prepare_files
        rules = {"at_least": at_least, "min_user_items": min_user_items, "min_item_users": min_item_users, "user": user,
                 "item": item, "weight": weight}  # fmt: skip
        if name == OWN and allow_partial:
            raise DropoutError("--allow-partial: want an official data set, got own; nobody knows how much is complete")
        if name not in (OWN, *RESEARCH_SETS):
            raise DropoutError(
                f"data set: want one of {', '.join(RESEARCH_SETS)}, or own for your own files, got {name!r}"
            )
        if name != OWN:
            _check_official(name, source, rules)
        prepare_set = None if name == OWN else laboratory("collaborative.data.prepare").prepare
        with writing(out / name):
            check_writable(out / name)
        started = time.perf_counter()
        with _bar(console, name, rows=name == OWN) as progress, writing(out / name):
            if prepare_set is None:
                manifest = prepare_files(source, out, held_out_users=held_out_users, progress=progress, **rules)
            else:
                manifest = prepare_set(
                    name, source[0], out, allow_partial=allow_partial, held_out_users=held_out_users, progress=progress
                ).manifest
        console.print(_table(manifest))
        if note := manifest["source"]["note"]:
            console.print(one_line(f"note: {note}"), markup=False, soft_wrap=True)
        seconds = time.perf_counter() - started
        console.print(one_line(f"{(out / name).resolve()} written in {seconds:.1f} s"), markup=False, soft_wrap=True)


def _check_official(name: str, source: list[Path], rules: dict[str, Any]) -> None:
    if len(source) > 1:
        raise DropoutError(f"source: want one folder, archive or file of {name}, got {len(source)}")
    usual = {"at_least": None, "min_user_items": 0, "min_item_users": 0, "user": "user_id", "item": "item_id",
             "weight": "weight"}  # fmt: skip
    for option, value in rules.items():
        if value != usual[option]:
            flag = option.replace("_", "-")
            raise DropoutError(
                f"--{flag}: want your own files (lbdrop data prepare own), got {name}, which has its protocol"
            )


@contextmanager
def _bar(console: Console, name: str, rows: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar over bytes, or over rows."""
    amount = MofNCompleteColumn() if rows else DownloadColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"reading {name}", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if done == total:
                bar.update(task, description=f"preparing {name}")

        yield progress


def _table(manifest: dict[str, Any]) -> Table:
    table = Table(title=manifest["title"], title_justify="left")
    table.add_column("")
    table.add_column("found", justify="right")
    if not manifest["published"]:
        for name, found in manifest["counts"].items():
            table.add_row(name, f"{found:,}")
        return table
    table.add_column("published", justify="right")
    table.add_column("")
    for name, found in manifest["counts"].items():
        published = manifest["published"].get(name)
        verdict = "" if published is None else "same" if published == found else f"{found - published:+,}"
        table.add_row(name, f"{found:,}", "" if published is None else f"{published:,}", verdict)
    return table
