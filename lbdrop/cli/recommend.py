"""``lbdrop recommend``: fit a recommender to a file, evaluate it, score users to Parquet, answer on the screen."""

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from lbdrop.cli.common import Commands, check_writable, recommender_class, say, table, writing
from lbdrop.cli.recommend_answers import explain, methods, similar
from lbdrop.cli.recommend_answers import recommend as recommend_items
from lbdrop.cli.serve import serve
from lbdrop.cli.tables import Columns, read_features, read_later, read_training, scan_table
from lbdrop.errors import DropoutError
from lbdrop.io.records import provenance, write_json

if TYPE_CHECKING:
    from lbdrop.recommend.recommender import Recommender

__all__ = ["app"]

app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Fit, evaluate and use a recommender on CSV and Parquet files."
)

OPTIONS = ("method", "dropout", "at_least", "validation", "patience", "seed")
"""What Recommender takes beside settings of the method, each with an option here."""

Data = Annotated[Path, typer.Argument(help="CSV, TSV or Parquet with user_id, item_id and perhaps weight.")]
Training = Annotated[
    Path,
    typer.Argument(
        help="CSV, TSV or Parquet with user_id, item_id and perhaps weight; or a folder of lbdrop data prepare."
    ),
]
Model = Annotated[Path, typer.Argument(help="Folder of a fitted model.")]
User = Annotated[str, typer.Option(help="Name of the column of users.")]
Item = Annotated[str, typer.Option(help="Name of the column of items.")]
Weight = Annotated[str, typer.Option(help="Name of the column of weights; 'weight' may be missing, another may not.")]
Time = Annotated[str, typer.Option("--time", help="Name of the column of dates, times or numbers.")]
Samples = Annotated[int | None, typer.Option(min=0, help="Masks to average, 0 for none; default: the method's.")]


@app.callback()
def recommend() -> None:
    """Fit, evaluate and use a recommender on CSV and Parquet files."""


@app.command()
def fit(
    file: Training,
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("model"),
    method: Annotated[
        str | None, typer.Option(help="sivae-lbd, vae-drop, recvae, ease, wmf, slim, popularity, …")
    ] = None,
    dropout: Annotated[
        str | None,
        typer.Option(
            help="A network with learned, fixed, no, concrete or gaussian dropout; with a method, in place of its own."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs at most; default: the method's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws weights, order, masks and the validation users.")] = 0,
    at_least: Annotated[
        float | None, typer.Option(help="The weight from which an interaction is a like, such as 4 of 5 stars.")
    ] = None,
    validation: Annotated[
        float, typer.Option(min=0, help="Users held out to stop by: a share below 1, or a number; 0 for none.")
    ] = 0.1,
    patience: Annotated[int, typer.Option(min=1, help="Epochs without a better validation before it stops.")] = 10,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method as NAME=VALUE; may be repeated.")
    ] = None,
    item_features: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet with item_id and what items are, so that new items of it are recommended too; a column title"
            " is left aside."
        ),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(help="Fit to rows before this moment: a date, a number as in --time, or a share as .8."),
    ] = None,
    time_column: Time = "datetime",
    histories: Annotated[bool, typer.Option(help="Keep users' histories in the model, to know them by id.")] = True,
    user: User = "user_id",
    item: Item = "item_id",
    weight: Weight = "weight",
) -> None:
    """Fit a recommender to a file of interactions and save it.

    The state after each epoch is kept in MODEL.unfinished until the model is saved: the same command, after a crash or Ctrl-C,
    goes on from there.

    Examples:

        lbdrop recommend fit ratings.csv --at-least 4 --out model

        lbdrop recommend fit likes.parquet --method ease --set regularisation=300

        lbdrop recommend fit likes.csv --item-features items.csv --out model

        lbdrop recommend fit data/prepared/own --out model
    """
    kind = recommender_class()
    from lbdrop.guards.processes import is_first
    from lbdrop.io.files import locked, real, remove
    from lbdrop.recommend.answer.score_files import unfinished
    from lbdrop.recommend.saving import check_target
    from lbdrop.recommend.train.checkpoints import WORK

    given: dict[str, Any] = _settings(setting or []) | ({} if epochs is None else {"epochs": epochs})
    held_out = int(validation) if validation >= 1 and validation.is_integer() else validation
    model = kind(method, dropout=dropout, at_least=at_least, validation=held_out, patience=patience, seed=seed, **given)
    with writing(out):
        check_target(out)
        check_writable(real(out).parent)
    started = time.perf_counter()
    rows = read_training(file, Columns(user, item, weight, time_column), at_least, before)
    features = None if item_features is None else read_features(item_features, rows)
    state = unfinished(out)
    with writing(out, state), locked(state, WORK) if is_first() else nullcontext():
        model.fit(rows, item_features=features, checkpoints=state)
        if not is_first():
            return  # of several processes one saves the model and talks
        model.save(out, histories=histories)
        remove(state, WORK)
    say(model)
    if model.history_ is not None:
        say(_training(model))
    say(f"{out.resolve()} written in {time.perf_counter() - started:.1f} s")


@app.command()
def evaluate(
    model: Model,
    file: Data,
    out: Annotated[Path | None, typer.Option(help="Write the measures to this JSON file too.")] = None,
    samples: Samples = None,
    after: Annotated[
        str | None, typer.Option(help="Look for rows from this moment on: what was given to fit as --before.")
    ] = None,
    time_column: Time = "datetime",
    user: User = "user_id",
    item: Item = "item_id",
    weight: Weight = "weight",
) -> None:
    """Measure what the model finds of held-out users' items.

    Users the model knows are asked for the items they did not have when it was fitted. Of other users with five items a fifth
    is held out and the rest is their history.

    Example:

        lbdrop recommend evaluate model later.csv

        lbdrop recommend evaluate model ratings.csv --after 2003-02-01 --time day
    """
    if out is not None:
        with writing(out.parent):
            check_writable(out.parent, out.name)
    fitted = recommender_class().load(model)
    data = read_later(file, Columns(user, item, weight, time_column), fitted, after)
    report = fitted.evaluate(data, samples=samples)
    shown = table("", numbers=("mean", "standard error"), title=f"{report.users:,} users")
    for name, mean in report.mean.items():
        shown.add_row(name, f"{mean:.4f}", f"{report.error[name]:.4f}" if report.users > 1 else "")
    shown.add_row("coverage", f"{report.coverage:.4f}", "")
    Console(highlight=False).print(shown)
    say(", ".join(f"{name}: {count:,}" for name, count in report.kinds.items()))
    if out is not None:
        with writing(out.parent):
            write_json(out, report.record() | {"provenance": provenance()})
        say(out.resolve())


@app.command()
def score(
    model: Model,
    file: Annotated[
        Path | None, typer.Argument(help="Histories of users to score (CSV, TSV, Parquet); all known users without it.")
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Items a user.")] = 20,
    out: Annotated[
        Path, typer.Option(help="One file if its name ends in .parquet, a folder of such files otherwise.")
    ] = Path("scores.parquet"),
    batch: Annotated[int | None, typer.Option(min=1, help="Users scored at once; memory follows it.")] = None,
    include_viewed: Annotated[bool, typer.Option("--include-viewed", help="Recommend what users have, too.")] = False,
    samples: Samples = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray for the machines of a cluster, which all see OUT.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="Address of the Ray cluster; default: the one that Ray finds, or else this machine."),
    ] = None,
    user: User = "user_id",
    item: Item = "item_id",
    weight: Weight = "weight",
) -> None:
    """Write the best items of every user to Parquet: user_id, item_id, score, rank and perhaps uncertainty.

    Users are scored a part at a time, with no more memory than a part needs. What is done is kept in OUT.unfinished until all
    is: the same command, after a crash or Ctrl-C, goes on from there.

    Examples:

        lbdrop recommend score model --k 20 --out scores.parquet

        lbdrop recommend score model histories.parquet --out scores --engine ray --address auto
    """
    fitted = recommender_class().load(model)
    from lbdrop.io.files import real
    from lbdrop.recommend.answer.score_files import check_target, unfinished

    columns = Columns(user, item, weight)
    if file is None:
        columns.refuse("none, so that all known users are scored")
    users = None if file is None else scan_table(file, columns, fitted)
    if file is not None and file.resolve().is_relative_to(out.resolve()):
        raise DropoutError(f"--out: want another place than that of the histories, got {out}; they would be replaced")
    with writing(out.parent):
        check_target(out)
        check_writable(real(out).parent)
    started = time.perf_counter()
    viewed, where = not include_viewed, {"engine": engine, "address": address}
    with writing(out.parent, unfinished(out)):
        rows = fitted.score_to(out, users, k, filter_viewed=viewed, samples=samples, batch=batch, **where)
    say(f"{out.resolve()}: {rows:,} rows in {time.perf_counter() - started:.1f} s")


for command in (recommend_items, explain, similar, methods, serve):
    app.command()(command)


# ------------------------------------------------------------------------------------------------------------- pieces


def _settings(texts: list[str]) -> dict[str, Any]:
    """NAME=VALUE as what Python would make of it; what has an option of its own is told so."""
    given = dict(map(_pair, texts))
    for name in given:
        if name in OPTIONS:
            raise DropoutError(f"--set: want a setting of the method, got {name}; see --{name.replace('_', '-')}")
    return given


def _pair(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise DropoutError(f"--set: want NAME=VALUE, got {text!r}")
    try:
        return name, json.loads({"None": "null", "True": "true", "False": "false"}.get(value, value))
    except (ValueError, RecursionError):
        return name, value


def _training(model: "Recommender") -> str:
    history = model.history_
    assert history is not None
    best = history.best_epoch
    if best is None:
        return f"{len(history.epochs)} epochs on all users; none were held out to stop by"
    measures = ", ".join(f"{name} {value:.4f}" for name, value in best["validation"].items())
    return f"best of {len(history.epochs)} epochs on validation users: {history.best}, {measures}"
