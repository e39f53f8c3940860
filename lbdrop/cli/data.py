"""``lbdrop data prepare``: official files of a data set → likes as a recommender wants them, with counts to check."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lbdrop.cli.common import check_writable, one_line_errors, writing
from lbdrop.errors import DropoutError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Prepare data sets for the recommender.")


@app.callback()
def data() -> None:
    """Prepare data sets for the recommender."""


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="ml-20m, ml-1m, netflix or msd.")],
    source: Annotated[Path, typer.Argument(help="Folder, archive or file of the official release.")],
    out: Annotated[Path, typer.Option(help="Folder for the prepared data; a folder NAME is made in it.")] = Path(
        "data/prepared"
    ),
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Go on though ratings are missing or too many.")
    ] = False,
    held_out_users: Annotated[
        int | None, typer.Option(min=1, help="Users for validation, and as many for test; the protocol's unless told.")
    ] = None,
) -> None:
    """Read a data set's official files, keep likes and users by the published protocol, and write them compactly.

    Example:

        lbdrop data prepare ml-20m ml-20m.zip
    """
    console = Console(highlight=False)
    with one_line_errors():
        try:
            from lbdrop.recommend.prepared import prepare as run
            from lbdrop.recommend.readers import get_protocol
        except ModuleNotFoundError as error:
            raise DropoutError(
                f"{error.name}: package not found; this command wants pip install 'lbdrop[recommend]'"
            ) from error
        get_protocol(name)
        with writing(out / name):
            check_writable(out / name)
        started = time.perf_counter()
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(f"reading {name}", total=None)

            def progress(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)
                if done == total:
                    bar.update(task, description=f"preparing {name}")

            with writing(out / name):
                prepared = run(
                    name, source, out, allow_partial=allow_partial, held_out_users=held_out_users, progress=progress
                )
        console.print(_table(prepared.manifest))
        if note := prepared.manifest["source"]["note"]:
            console.print(f"note: {note}", markup=False, soft_wrap=True)
        seconds = time.perf_counter() - started
        console.print(f"{(out / name).resolve()} written in {seconds:.1f} s", markup=False, soft_wrap=True)


def _table(manifest: dict[str, Any]) -> Table:
    table = Table(title=manifest["title"], title_justify="left")
    table.add_column("")
    table.add_column("found", justify="right")
    table.add_column("published", justify="right")
    table.add_column("")
    for name, found in manifest["counts"].items():
        published = manifest["published"].get(name)
        verdict = "" if published is None else "same" if published == found else f"{found - published:+,}"
        table.add_row(name, f"{found:,}", "" if published is None else f"{published:,}", verdict)
    return table
