"""The items of a model as people know them: ids, titles, and a search among titles."""

import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lbdrop.errors import DropoutError

__all__ = ["Catalogue", "by_text", "in_json", "read_titles"]

EXACT = 2**53
"""From here on JavaScript cannot tell whole numbers apart."""
KINDS = (".csv", ".parquet")


def by_text(ids: Iterable[object]) -> dict[str, int]:
    """The number of each id, by its text: in JSON as in an address 7 and "7" are the same."""
    return {str(each): number for number, each in enumerate(ids)}


def in_json(ids: pl.Series) -> list[int | str]:
    """Ids as JSON holds them; whole numbers of 2⁵³ or more as text, which is understood as well."""
    return [each if isinstance(each, str) or abs(each) < EXACT else str(each) for each in ids]


def read_titles(path: Path) -> dict[str, str]:
    """The title of each id, both as text, from a CSV or Parquet file with ``item_id`` and ``title``."""
    if path.suffix not in KINDS:
        raise DropoutError(f"{path}: want a file of titles that ends in {' or '.join(KINDS)}, got {path.name}")
    if not path.is_file():
        raise DropoutError(f"{path}: want a file of titles, got {'a folder' if path.is_dir() else 'nothing there'}")
    try:
        table = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DropoutError(f"{path}: cannot be read as a table: {reason}") from error
    if missing := {"item_id", "title"} - set(table.columns):
        raise DropoutError(f"{path}: want the columns item_id and title, got {table.columns} without {sorted(missing)}")
    there = table.select(pl.col("item_id", "title").cast(pl.String)).drop_nulls()
    return dict(there.iter_rows())


class Catalogue:
    """Items by number.

    Args:
        ids: of each item.
        likes: how many users have it.
        titles: by the text of an id; an item without one goes by its id.
    """

    def __init__(self, ids: pl.Series, likes: np.ndarray, titles: dict[str, str] | None = None):
        self.ids, self.numbers = in_json(ids), by_text(ids)
        self.titles = [(titles or {}).get(text) or text for text in self.numbers]
        self.titled = sum(text in titles for text in self.numbers) if titles else 0
        """Items with a title of their own."""
        self.likes = likes.astype(int).tolist()
        self.plain = [plain(title) for title in self.titles]
        self.popular = np.argsort(-likes, kind="stable").tolist()

    def __len__(self) -> int:
        return len(self.ids)

    def search(self, query: str, limit: int) -> Sequence[int]:
        """Items whose title has every word of the query, titles that begin with it first, then by likes.

        Upper case and accents make no difference; an empty query finds the most liked.
        """
        text = plain(query)
        words = text.split()
        found = self.popular
        for word in words:
            found = [number for number in found if word in self.plain[number]]
        # Sorting keeps the order among equals: within a kind of match the most liked stay first.
        found = sorted(found, key=lambda number: _distance(self.plain[number], text, words)) if words else found
        return found[:limit]


def plain(text: str) -> str:
    """Without case, accents and doubled spaces.

    >>> plain("Café  NOIR")
    'cafe noir'
    """
    letters = unicodedata.normalize("NFKD", text.casefold())
    return " ".join("".join(each for each in letters if not unicodedata.combining(each)).split())


def _distance(title: str, query: str, words: Sequence[str]) -> int:
    """0 where the title is the query, 1 where it begins with it, 2 where every word begins a word, 3 otherwise."""
    if title.startswith(query):
        return int(title != query)
    spaced = " " + title
    return 2 if all(" " + word in spaced for word in words) else 3
