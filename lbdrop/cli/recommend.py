"""``lbdrop recommend``: fit a recommender to a file, evaluate it, score users to Parquet, look up similar items."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lbdrop.cli.common import check_writable, one_line_errors, writing
from lbdrop.errors import DropoutError
from lbdrop.records import write_json

if TYPE_CHECKING:
    from lbdrop.recommend.model import Recommender

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Fit, evaluate and use a recommender on CSV and Parquet files.")

KINDS = {".parquet": "scan_parquet", ".csv": "scan_csv", ".tsv": "scan_csv"}

Data = Annotated[Path, typer.Argument(help="CSV, TSV or Parquet with user_id, item_id and perhaps weight.")]
Model = Annotated[Path, typer.Argument(help="Folder of a fitted model.")]
User = Annotated[str, typer.Option(help="Name of the column of users.")]
Item = Annotated[str, typer.Option(help="Name of the column of items.")]
Weight = Annotated[str, typer.Option(help="Name of the column of weights, if there is one.")]
Samples = Annotated[int | None, typer.Option(min=0, help="Masks to average, 0 for none; the method's unless told.")]


@app.callback()
def recommend() -> None:
    """Fit, evaluate and use a recommender on CSV and Parquet files."""


@app.command()
def fit(
    file: Data,
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("model"),
    method: Annotated[
        str | None, typer.Option(help="sivae-lbd, vae-drop, recvae, ease, wmf, slim, popularity, …")
    ] = None,
    dropout: Annotated[
        str | None, typer.Option(help="Instead of a method: learned (the default), fixed, none, concrete, gaussian.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs at most; the method's unless told.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws weights, order, masks and the validation users.")] = 0,
    at_least: Annotated[
        float | None, typer.Option(help="The weight from which an interaction is a like, such as 4 of 5 stars.")
    ] = None,
    validation: Annotated[
        float, typer.Option(min=0, help="Users held out to stop by: a share below 1, or a number; 0 for none.")
    ] = 0.1,
    patience: Annotated[int, typer.Option(min=1, help="Epochs without a better validation before it stops.")] = 10,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method as NAME=VALUE; may come again.")
    ] = None,
    histories: Annotated[bool, typer.Option(help="Keep users' histories in the model, to know them by id.")] = True,
    user: User = "user_id",
    item: Item = "item_id",
    weight: Weight = "weight",
) -> None:
    """Fit a recommender to a file of interactions and save it.

    Examples:

        lbdrop recommend fit ratings.csv --at-least 4 --out model

        lbdrop recommend fit likes.parquet --method ease --set regularisation=300
    """
    console = Console(highlight=False)
    with one_line_errors():
        kind = _recommender()
        from lbdrop.recommend.saving import check_place

        given: dict[str, Any] = dict(map(_pair, setting or ())) | ({} if epochs is None else {"epochs": epochs})
        model = kind(
            method,
            dropout=dropout,
            at_least=at_least,
            validation=int(validation) if validation >= 1 else float(validation),
            patience=patience,
            seed=seed,
            **given,
        )
        with writing(out):
            check_place(out)
            check_writable(out.parent)
        started = time.perf_counter()
        with _reading(file):
            table = _table(file, {user: "user_id", item: "item_id", weight: "weight"}).collect()
        model.fit(table)
        with writing(out):
            model.save(out, histories=histories)
        console.print(str(model), markup=False, soft_wrap=True)
        if model.history_ is not None:
            console.print(_training(model), markup=False, soft_wrap=True)
        seconds = time.perf_counter() - started
        console.print(f"{out.resolve()} written in {seconds:.1f} s", markup=False, soft_wrap=True)


@app.command()
def evaluate(
    model: Model,
    file: Data,
    out: Annotated[Path | None, typer.Option(help="Write the measures to this JSON file too.")] = None,
    samples: Samples = None,
    user: User = "user_id",
    item: Item = "item_id",
    weight: Weight = "weight",
) -> None:
    """Measure what the model finds of held-out users' items.

    Users the model knows are asked for the items they did not have when it was fitted. Of other users with five items a fifth
    is held out and the rest is their history.

    Example:

        lbdrop recommend evaluate model later.csv
    """
    console = Console(highlight=False)
    with one_line_errors():
        fitted = _recommender().load(model)
        with _reading(file):
            data = _table(file, {user: "user_id", item: "item_id", weight: "weight"}, fitted).collect()
        report = fitted.evaluate(data, samples=samples)
        shown = Table(title=f"{report.users:,} users", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for heading in ("", "mean", "standard error"):
            shown.add_column(heading, justify="right" if heading else "left")
        for name, mean in report.mean.items():
            shown.add_row(name, f"{mean:.4f}", f"{report.error[name]:.4f}")
        shown.add_row("coverage", f"{report.coverage:.4f}", "")
        console.print(shown)
        if out is not None:
            with writing(out.parent):
                write_json(out, report.record())
            console.print(str(out.resolve()), markup=False, soft_wrap=True)


@app.command()
def score(
    model: Model,
    file: Annotated[
        Path | None, typer.Argument(help="Histories of users to score (CSV, TSV, Parquet); all known users without it.")
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Items a user.")] = 20,
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")] = Path("scores.parquet"),
    batch: Annotated[int | None, typer.Option(min=1, help="Users scored at once; memory follows it.")] = None,
    include_viewed: Annotated[bool, typer.Option("--include-viewed", help="Recommend what users have, too.")] = False,
    samples: Samples = None,
    user: User = "user_id",
    item: Item = "item_id",
    weight: Weight = "weight",
) -> None:
    """Write the best items of every user to one Parquet file: user_id, item_id, score, rank and perhaps uncertainty.

    Example:

        lbdrop recommend score model --k 20 --out scores.parquet
    """
    console = Console(highlight=False)
    with one_line_errors():
        fitted = _recommender().load(model)
        users = None
        if file is not None:
            with _reading(file):
                users = _table(file, {user: "user_id", item: "item_id", weight: "weight"}, fitted).collect()
        with writing(out.parent):
            check_writable(out.parent, out.name)
        started = time.perf_counter()
        with writing(out.parent):
            rows = fitted.score_to(out, users, k, filter_viewed=not include_viewed, samples=samples, batch=batch)
        seconds = time.perf_counter() - started
        console.print(f"{out.resolve()}: {rows:,} rows in {seconds:.1f} s", markup=False, soft_wrap=True)


@app.command()
def similar(
    model: Model,
    item: Annotated[list[str], typer.Argument(help="Ids of items.")],
    k: Annotated[int, typer.Option(min=1, help="Similar items to show for each.")] = 10,
) -> None:
    """Show the items most like these.

    Example:

        lbdrop recommend similar model tea-00001 --k 5
    """
    console = Console(highlight=False)
    with one_line_errors():
        fitted = _recommender().load(model)
        import polars as pl

        ids = pl.Series(item).cast(fitted.items_.dtype, strict=False)
        if ids.null_count():
            raise DropoutError(
                f"items: want whole numbers, as the model's ids are, got {item[int(ids.is_null().arg_max() or 0)]!r}"
            )
        found = fitted.similar_items(ids, k)
        shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for heading in ("item", "similar item", "score"):
            shown.add_column(heading, justify="right" if heading == "score" else "left")
        for this, other, value, rank in found.iter_rows():
            shown.add_row(str(this) if rank == 1 else "", str(other), f"{value:.4f}")
        console.print(shown)


# ------------------------------------------------------------------------------------------------------------- pieces


def _recommender() -> "type[Recommender]":
    # Only now: `lbdrop --help` needs neither the time nor the packages.
    try:
        from lbdrop.recommend.model import Recommender
    except ModuleNotFoundError as error:
        raise DropoutError(
            f"{error.name}: package not found; this command wants pip install 'lbdrop[recommend]'"
        ) from error
    return Recommender


def _table(path: Path, names: dict[str, str], fitted: "Recommender | None" = None) -> Any:
    """The columns that matter of a file, lazily, under their usual names and with the model's types of ids."""
    import polars as pl

    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix not in KINDS:
        raise DropoutError(f"{path}: want a file that ends in {', '.join(KINDS)} or .csv.gz, got {path.name}")
    if not path.is_file():
        raise DropoutError(f"{path}: want a file, got {'a folder' if path.is_dir() else 'nothing there'}")
    if suffix == ".parquet":
        table = pl.scan_parquet(path)
    else:
        # Every row decides the types: an id with a letter in the last line makes all of them text.
        table = pl.scan_csv(path, separator="\t" if suffix == ".tsv" else ",", infer_schema_length=None)
    found = table.collect_schema().names()
    wanted = [name for name, usual in names.items() if usual != "weight"]
    if missing := [name for name in wanted if name not in found]:
        raise DropoutError(f"{path}: want the columns {wanted}, got {found} without {missing}; see --user and --item")
    kept = {name: usual for name, usual in names.items() if name in found}
    table = table.select(list(kept)).rename(kept)
    if fitted is None:
        return table
    types = {"item_id": fitted.items_.dtype}
    if fitted.interactions_ is not None:
        types["user_id"] = fitted.interactions_.users.dtype
    return table.with_columns(pl.col(name).cast(kind) for name, kind in types.items())


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What goes wrong with a file is one line that names it."""
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DropoutError(f"{path}: cannot be read as a table: {reason}") from error


def _pair(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise DropoutError(f"--set: want NAME=VALUE, got {text!r}")
    try:
        return name, json.loads({"None": "null", "True": "true", "False": "false"}.get(value, value))
    except ValueError:
        return name, value


def _training(model: "Recommender") -> str:
    history = model.history_
    assert history is not None
    best = history.best_epoch
    if best is None:
        return f"{len(history.epochs)} epochs on all users; none were held out to stop by"
    measures = ", ".join(f"{name} {value:.4f}" for name, value in best["validation"].items())
    return f"best of {len(history.epochs)} epochs on validation users: {history.best}, {measures}"
