"""Files of interactions as tables, with ids that stay what they are: 05 is not 5, and what joined a model's once joins again.

Text files do not say what an id is. A column whose every id comes back from a whole number as it was, is of whole numbers,
any other is text; and where a model was fitted, its own kind decides.
"""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lbdrop.errors import DropoutError

if TYPE_CHECKING:  # `lbdrop --help` comes without polars
    import polars as pl

    from lbdrop.recommend.data.interactions import Interactions
    from lbdrop.recommend.recommender import Recommender

__all__ = ["Columns", "as_fitted", "read_features", "read_later", "read_training", "scan_table"]


class Columns(NamedTuple):
    """The names of a file's columns."""

    user: str = "user_id"
    item: str = "item_id"
    weight: str = "weight"
    time: str = "datetime"

    def refuse(self, got: str) -> None:
        """An error about names of columns where no table is read."""
        for option, given, usual in zip(self._fields, self, Columns(), strict=True):
            if given != usual:
                raise DropoutError(f"--{option}: want a file of interactions with that column, got {got}; leave it out")


def read_training(
    path: Path, columns: Columns, at_least: float | None, before: str | None
) -> "pl.DataFrame | Interactions":
    """What a model is fitted to: a table, perhaps before a moment, or the folder that ``lbdrop data prepare`` wrote."""
    from lbdrop.recommend.data.prepared import is_prepared, load_prepared

    if not is_prepared(path):
        return _split(path, columns, None, before, "--before")[0]
    if before is not None:
        raise DropoutError(f"--before: want a file with a column of times, got {path}, which is prepared; leave it out")
    if at_least is not None:
        raise DropoutError(
            f"--at-least: want a file of weights, got {path}, which is prepared; see lbdrop data prepare own --at-least"
        )
    columns.refuse(f"{path}, which is prepared")
    return load_prepared(path).interactions


def read_later(path: Path, columns: Columns, fitted: "Recommender", after: str | None) -> "pl.DataFrame":
    """What a model is evaluated on: a table, perhaps from a moment on."""
    return _split(path, columns, fitted, after, "--after")[1]


def _split(
    path: Path, columns: Columns, fitted: "Recommender | None", at: str | None, option: str
) -> "tuple[pl.DataFrame, pl.DataFrame]":
    """The rows before a moment and those after; all of them, twice, without one."""
    import polars as pl

    from lbdrop.recommend.data import table_files
    from lbdrop.recommend.data.parquet_sizes import check_fits
    from lbdrop.recommend.data.polars_panics import panics_as_errors
    from lbdrop.recommend.data.splits import split_by_time

    if at is None and columns.time != Columns().time:
        raise DropoutError(f"--time: want it with {option}, got it alone; leave it out, or say {option}")
    for file in table_files.find_table_files(path):
        check_fits(file)
    rows = scan_table(path, columns, fitted, timed=at is not None)
    with table_files.reading(path), panics_as_errors():
        table = rows.collect()
    if at is None:
        return table, table
    if table["datetime"].dtype == pl.String:
        numbers = table["datetime"].cast(pl.Float64, strict=False)
        table = table.with_columns(datetime=numbers) if not numbers.null_count() else table
    moment: str | float = at
    with suppress(ValueError):
        moment = float(at)
    early, late = split_by_time(table, moment)
    return early.drop("datetime"), late.drop("datetime")


def read_features(path: Path, fitted: "pl.DataFrame | Interactions") -> "pl.DataFrame":
    """A table of items with ids as those of the interactions; a column of a text file is of numbers if all its values are.

    A column ``title`` is left out: it names one item and tells nothing of others.
    """
    import polars as pl

    from lbdrop.recommend.data.interactions import Interactions
    from lbdrop.recommend.data.parquet_sizes import check_fits
    from lbdrop.recommend.data.polars_panics import panics_as_errors
    from lbdrop.recommend.data.table_files import reading

    with reading(path), panics_as_errors():
        check_fits(path)
        if path.suffix == ".parquet":
            table = pl.read_parquet(path)
        else:
            table = pl.read_csv(path, separator="\t" if path.suffix == ".tsv" else ",", infer_schema_length=None,
                                schema_overrides={"item_id": pl.String})  # fmt: skip
    if "item_id" not in table.columns:
        raise DropoutError(f"{path}: want the column item_id, got {table.columns} without it")
    kind = (fitted.items if isinstance(fitted, Interactions) else fitted["item_id"]).dtype
    return table.with_columns(as_fitted(table["item_id"], kind)).drop("title", strict=False)


def scan_table(
    path: Path, columns: Columns, fitted: "Recommender | None" = None, timed: bool = False
) -> "pl.LazyFrame":
    """The columns that matter of a file, under their usual names and with ids as the model has them, read piece by piece."""
    from lbdrop.recommend.data import table_files

    user, item, weight, time = columns
    files = table_files.find_table_files(path)
    with table_files.reading(path):
        table = table_files.scan_table_files(files, (user, item), weight)
        found = table.collect_schema().names()
        if missing := [name for name in (user, item) if name not in found]:
            raise DropoutError(
                f"{path}: want the columns {[user, item]}, got {found} without {missing}; see --user and --item"
            )
        for option, name, wanted in (("weight", weight, weight != "weight"), ("time", time, timed)):
            if wanted and name not in found:
                raise DropoutError(f"{path}: want the column {name!r}, got {found} without it; see --{option}")
        names = {user: "user_id", item: "item_id"} | ({weight: "weight"} if weight in found else {})
        names |= {time: "datetime"} if timed else {}
        rows = table.select(list(names)).rename(names)
        if fitted is None:
            text = files[0].suffix != ".parquet"
            return table_files.ids_as_integers(rows, ("user_id", "item_id")) if text else rows
        users = None if fitted.interactions_ is None else fitted.interactions_.users.dtype
        return _as_fitted(_as_fitted(rows, "user_id", users), "item_id", fitted.items_.dtype)


def as_fitted(ids: "pl.Series", kind: "pl.DataType | None") -> "pl.Series":
    """Ids of a file or of the command line in the kind that a model has, text or whole numbers; as they look if unknown.

    Text where the model has numbers is of others than it knows. But numbers among that text could be of those: an error.
    """
    return _as_fitted(ids.to_frame().lazy(), ids.name, kind).collect()[ids.name]


def _as_fitted(frame: "pl.LazyFrame", name: str, kind: "pl.DataType | None") -> "pl.LazyFrame":
    import polars as pl

    from lbdrop.recommend.data.table_files import survives_as_integer

    found, text = frame.collect_schema()[name], pl.col(name).cast(pl.String)
    if found.is_integer():
        return frame.with_columns(text) if kind == pl.String else frame
    if found not in (pl.String, pl.Categorical, pl.Enum):
        return frame  # no ids at all, which others tell
    if kind == pl.String:
        return frame.with_columns(text)
    other = text.filter(~survives_as_integer(text))
    counted = frame.select(others=other.len(), first=other.first(), rows=text.count()).collect(engine="streaming")
    others, first, rows = counted.row(0)
    if kind is not None and 0 < others < rows:
        raise DropoutError(
            f"{name}: want whole numbers, as the model's ids are, got {others:,} others among {rows:,}, the first {first!r};"
            " leave these rows out"
        )
    return frame.with_columns(text if others else text.cast(pl.Int64))
