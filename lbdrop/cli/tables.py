"""Files of interactions as tables, with ids that stay what they are: 05 is not 5, and what joined a model's once joins again.

Text files do not say what an id is. A column whose every id comes back from a whole number as it was, is of whole numbers,
any other is text; and where a model was fitted, its own kind decides.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lbdrop.errors import DropoutError

if TYPE_CHECKING:  # `lbdrop --help` comes without polars
    import polars as pl

    from lbdrop.recommend.model import Recommender

__all__ = ["as_fitted", "read_table"]

KINDS = (".parquet", ".csv", ".tsv")


def read_table(path: Path, user: str, item: str, weight: str, fitted: "Recommender | None" = None) -> "pl.DataFrame":
    """The columns that matter of a file, under their usual names and with ids as the model has them."""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix not in KINDS:
        raise DropoutError(f"{path}: want a file that ends in {', '.join(KINDS)} or .csv.gz, got {path.name}")
    if not path.is_file():
        raise DropoutError(f"{path}: want a file, got {'a folder' if path.is_dir() else 'nothing there'}")
    with _reading(path):
        table = _scan(path, suffix, (user, item))
        found = table.collect_schema().names()
        if missing := [name for name in (user, item) if name not in found]:
            raise DropoutError(
                f"{path}: want the columns {[user, item]}, got {found} without {missing}; see --user and --item"
            )
        if weight not in ("weight", *found):
            raise DropoutError(f"{path}: want the column {weight!r}, got {found} without it; see --weight")
        names = {user: "user_id", item: "item_id"} | ({weight: "weight"} if weight in found else {})
        rows = table.select(list(names)).rename(names).collect()
    if fitted is None:
        return rows if suffix == ".parquet" else rows.with_columns(_whole(rows["user_id"]), _whole(rows["item_id"]))
    users = None if fitted.interactions_ is None else fitted.interactions_.users.dtype
    return rows.with_columns(as_fitted(rows["user_id"], users), as_fitted(rows["item_id"], fitted.items_.dtype))


def as_fitted(ids: "pl.Series", kind: "pl.DataType | None") -> "pl.Series":
    """Ids of a file or of the command line in the kind that a model has, text or whole numbers; as they look if unknown.

    Text where the model has numbers is of others than it knows. But numbers among that text could be of those: an error.
    """
    import polars as pl

    if ids.dtype.is_integer():
        return ids.cast(pl.String) if kind == pl.String else ids
    if ids.dtype not in (pl.String, pl.Categorical, pl.Enum):
        return ids  # no ids at all, which others tell
    text = ids.cast(pl.String)
    if kind == pl.String:
        return text
    whole = _whole(text)
    if kind is not None and not whole.dtype.is_integer():
        other = text.filter(~_survives(text))
        if len(other) < len(text) - text.null_count():
            raise DropoutError(
                f"{ids.name}: want whole numbers, as the model's ids are, got {len(other):,} others among {len(text):,}, the"
                f" first {other[0]!r}; leave these rows out"
            )
    return whole


def _scan(path: Path, suffix: str, ids: tuple[str, str]) -> "pl.LazyFrame":
    import polars as pl

    if suffix == ".parquet":
        return pl.scan_parquet(path)
    # Of a weight every row decides the type.
    return pl.scan_csv(
        path,
        separator="\t" if suffix == ".tsv" else ",",
        infer_schema_length=None,
        schema_overrides=dict.fromkeys(ids, pl.String),
    )


def _whole(text: "pl.Series") -> "pl.Series":
    """As whole numbers, if every id comes back from there as it was: 7 does, 07 does not."""
    import polars as pl

    return text.cast(pl.Int64) if _survives(text).all() else text


def _survives(text: "pl.Series") -> "pl.Series":
    import polars as pl

    return text.cast(pl.Int64, strict=False).cast(pl.String).eq_missing(text)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What goes wrong with a file is one line that names it."""
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DropoutError(f"{path}: cannot be read as a table: {reason}") from error
