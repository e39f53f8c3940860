"""The ids and titles of a model's items, and a search in the titles."""

import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lbdrop.errors import DropoutError, first_line

__all__ = ["Catalogue", "index_by_text", "json_ids", "read_titles"]

MAX_EXACT = 2**53
"""From here on JavaScript rounds integers."""
SUFFIXES = (".csv", ".parquet")


def index_by_text(ids: Iterable[object]) -> dict[str, int]:
    """The index of each id, by the id's text: in JSON, as in a URL, 7 and "7" are the same."""
    return {str(each): index for index, each in enumerate(ids)}


def json_ids(ids: pl.Series) -> list[int | str]:
    """Ids for JSON; integers of 2⁵³ or more become text, which requests may use as well."""
    return [each if isinstance(each, str) or abs(each) < MAX_EXACT else str(each) for each in ids]


def read_titles(path: Path) -> dict[str, str]:
    """The title of each id, both as text, from a CSV or Parquet file with ``item_id`` and ``title``."""
    if path.suffix not in SUFFIXES:
        raise DropoutError(f"{path}: want a file of titles that ends in {' or '.join(SUFFIXES)}, got {path.name}")
    if not path.is_file():
        raise DropoutError(f"{path}: want a file of titles, got {'a folder' if path.is_dir() else 'nothing there'}")
    try:
        table = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DropoutError(f"{path}: cannot be read as a table: {first_line(error)}") from error
    if missing := {"item_id", "title"} - set(table.columns):
        raise DropoutError(f"{path}: want the columns item_id and title, got {table.columns} without {sorted(missing)}")
    rows = table.select(pl.col("item_id", "title").cast(pl.String)).drop_nulls()
    return dict(rows.iter_rows())


class Catalogue:
    """Items by their index in the model.

    Args:
        ids: of each item.
        likes: how many users have it.
        titles: by the text of an id; an item without a title is shown by its id.
    """

    def __init__(self, ids: pl.Series, likes: np.ndarray, titles: dict[str, str] | None = None):
        self.ids, self.index = json_ids(ids), index_by_text(ids)
        self.titles = [(titles or {}).get(text) or text for text in self.index]
        self.titled_items = sum(text in titles for text in self.index) if titles else 0
        """Items with a title of their own."""
        self.likes = likes.astype(int).tolist()
        self.search_texts = [normalised(title) for title in self.titles]
        self.by_likes = np.argsort(-likes, kind="stable").tolist()

    def __len__(self) -> int:
        return len(self.ids)

    def search(self, query: str, limit: int) -> Sequence[int]:
        """Items whose title has every word of the query; titles that begin with the query come first, then by likes.

        Case and accents make no difference; an empty query finds the most liked items.
        """
        text = normalised(query)
        words = text.split()
        found = self.by_likes
        for word in words:
            found = [index for index in found if word in self.search_texts[index]]
        # The sort is stable: items of the same distance stay sorted by likes.
        found = sorted(found, key=lambda index: _distance(self.search_texts[index], text, words)) if words else found
        return found[:limit]


def normalised(text: str) -> str:
    """Lower case, without accents and repeated spaces.

    >>> normalised("Café  NOIR")
    'cafe noir'
    """
    letters = unicodedata.normalize("NFKD", text.casefold())
    return " ".join("".join(each for each in letters if not unicodedata.combining(each)).split())


def _distance(title: str, query: str, words: Sequence[str]) -> int:
    """0 if the title is the query, 1 if it begins with it, 2 if every query word begins a title word, 3 otherwise."""
    if title.startswith(query):
        return int(title != query)
    spaced = " " + title
    return 2 if all(" " + word in spaced for word in words) else 3
