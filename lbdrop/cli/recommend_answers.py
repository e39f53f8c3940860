"""``lbdrop recommend recommend``, ``explain``, ``similar`` and ``methods``: answers on the screen, with titles."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from lbdrop.cli.common import one_line, recommender_class, table
from lbdrop.cli.tables import as_fitted
from lbdrop.errors import DropoutError

if TYPE_CHECKING:
    from lbdrop.recommend.recommender import Recommender

__all__ = ["explain", "methods", "recommend", "similar"]

Model = Annotated[Path, typer.Argument(help="Folder of a fitted model.")]
K = Annotated[int, typer.Option(min=1, help="Items to show.")]
Likes = Annotated[
    list[str] | None, typer.Option("--like", help="An item that a new person likes, by id; may be repeated.")
]
Titles = Annotated[Path | None, typer.Option(help="CSV or Parquet with item_id and title, to be shown beside ids.")]


def recommend(
    model: Model,
    user: Annotated[list[str] | None, typer.Argument(help="Ids of users of the fitted data.")] = None,
    like: Likes = None,
    k: K = 10,
    exclude: Annotated[list[str] | None, typer.Option(help="An item not to recommend, by id; may be repeated.")] = None,
    diversity: Annotated[
        float, typer.Option(min=0, max=1, help="From 0, the best scores, to 1, the items least alike.")
    ] = 0.0,
    titles: Titles = None,
) -> None:
    """Show the best items for some users, or for a new person who likes these items.

    Examples:

        lbdrop recommend recommend model 17 --titles items.csv

        lbdrop recommend recommend model --like tea-00001 --like tea-00007 --k 5
    """
    _check_who(user, like, "ids of users")
    fitted, named = _loaded(model), _titles(titles)
    who = _history(fitted, like) if like else _ids(fitted, user or [], "users")
    excluded = _ids(fitted, exclude, "items") if exclude else None
    found = fitted.recommend(who, k, items_to_exclude=excluded, diversity=diversity)
    _show(found.drop("user_id") if like else found, named)


def explain(
    model: Model,
    item: Annotated[str, typer.Argument(help="The item to explain, by id.")],
    user: Annotated[str | None, typer.Option(help="The id of a user of the fitted data.")] = None,
    like: Likes = None,
    titles: Titles = None,
) -> None:
    """Show which items of a user, or of a new person, speak for an item: how far its score falls without each.

    Example:

        lbdrop recommend explain model tea-00003 --user 17 --titles items.csv
    """
    _check_who(user, like, "--user")
    fitted, named = _loaded(model), _titles(titles)
    who = _history(fitted, like) if like else _ids(fitted, [str(user)], "users")[0]
    _show(fitted.explain(who, _ids(fitted, [item], "items")[0]), named)


def similar(
    model: Model,
    item: Annotated[list[str], typer.Argument(help="Ids of items.")],
    k: Annotated[int, typer.Option(min=1, help="Similar items to show for each.")] = 10,
    titles: Titles = None,
) -> None:
    """Show the items most like these.

    Example:

        lbdrop recommend similar model tea-00001 --k 5
    """
    fitted, named = _loaded(model), _titles(titles)
    _show(fitted.similar_items(_ids(fitted, item, "items"), k), named)


def methods() -> None:
    """List the methods that --method takes.

    Example:

        lbdrop recommend methods
    """
    recommender_class()
    from lbdrop.recommend.linear.methods import LINEAR
    from lbdrop.recommend.model.settings import METHODS

    shown = table("method", "dropout", "what it is")
    shown.add_row("auto", "learned", "The default: experts, or blend where a network does not help validation users.")
    shown.add_row("experts", "learned", "A linear model (blend) and a network as a product of experts.")
    for name, s in METHODS.items():
        kind = f"{'VAE' if s.variational else 'denoising autoencoder'}, {s.encoder} encoder, {s.prior} prior"
        per = f", a rate per {s.per}" if s.learns_rates else ""
        shown.add_row(name, s.dropout + per, kind if s.variational else kind.rpartition(",")[0])
    for name, method in LINEAR.items():
        summary = (method.__doc__ or "").partition("\n")[0]
        shown.add_row(name, "none" if name not in ("edlae", "blend") else "learned, by held-out users", summary)
    Console(highlight=False).print(shown)


# ------------------------------------------------------------------------------------------------------------- pieces


def _loaded(folder: Path) -> "Recommender":
    fitted = recommender_class().load(folder)
    fitted.library = "polars"  # whatever it was fitted with
    return fitted


def _titles(path: Path | None) -> dict[str, str]:
    from lbdrop.recommend.data.table_files import read_titles

    return {} if path is None else read_titles(path)


def _check_who(users: object, like: list[str] | None, instead: str) -> None:
    if bool(users) == bool(like):
        raise DropoutError(f"users: want {instead}, or --like for a new person, got {'both' if like else 'neither'}")


def _ids(fitted: "Recommender", ids: list[str], name: str) -> Any:
    """Ids of the command line as the model has them."""
    import polars as pl

    known = fitted.interactions_
    kind = fitted.items_.dtype if name == "items" else None if known is None else known.users.dtype
    return as_fitted(pl.Series("item_id" if name == "items" else "user_id", ids), kind)


def _history(fitted: "Recommender", items: list[str]) -> Any:
    """A dataframe of one new person; an error for items that the model does not know."""
    import polars as pl

    ids = _ids(fitted, items, "items")
    fitted.fitted_ids().item_indices(ids)
    return pl.DataFrame({"user_id": ["new"] * len(ids), "item_id": ids})


def _show(found: Any, titles: dict[str, str]) -> None:
    """A table of ids, with a column of titles after each column of items where there are titles."""
    shown = table()
    items = [name for name in found.columns if name.endswith("item_id") and titles]
    for name in found.columns:
        shown.add_column(name, justify="right" if found[name].dtype.is_numeric() and "id" not in name else "left")
        if name in items:
            shown.add_column(name.replace("item_id", "title"))
    for row in found.iter_rows(named=True):
        cells = []
        for name, value in row.items():
            cells.append(f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value))
            if name in items:
                cells.append(titles.get(str(value), ""))
        shown.add_row(*(Text(one_line(cell)) for cell in cells))  # ids and titles come from files: no markup
    Console(highlight=False).print(shown)
