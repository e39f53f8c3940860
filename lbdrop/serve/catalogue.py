"""The ids and titles of a model's items, and a search in the titles by SQLite's full-text index.

FTS5 comes with Python. Its index of prefixes answers in milliseconds at a million titles, reads rows in the order in which they
were written, which is that of likes, and lets other threads run meanwhile.
"""

import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl

from lbdrop.errors import DropoutError

__all__ = ["Catalogue", "index_by_text", "json_ids", "words_of"]

MAX_EXACT = 2**53
"""From here on JavaScript rounds integers."""
ALONE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff\U00020000-\U0003ffff"
"""Scripts that put no spaces between words."""
WORD = re.compile(rf"[{ALONE}]|[^\W_{ALONE}]+")
FIRST = "\ue000"
"""Before the first word of a title, in the index."""
INDEXED_WORDS, CANDIDATES = 4, 5_000
"""The longest words of a query are looked up, and the others looked for in so many of the most liked titles found."""


def index_by_text(ids: Iterable[object]) -> dict[str, int]:
    """The index of each id, by the id's text: in JSON, as in a URL, 7 and "7" are the same."""
    return {str(each): index for index, each in enumerate(ids)}


def json_ids(ids: pl.Series) -> list[int | str]:
    """Ids for JSON; integers of 2⁵³ or more become text, which requests may use as well."""
    return [each if isinstance(each, str) or abs(each) < MAX_EXACT else str(each) for each in ids]


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
        self.by_likes = np.argsort(-likes, kind="stable").tolist()
        self.texts = [" ".join(words_of(self.titles[index])) for index in self.by_likes]
        """What is searched, by likes."""
        self.exact = {text: place for place, text in reversed([*enumerate(self.texts)])}
        self.table = _full_text_index(self.texts)

    def __len__(self) -> int:
        return len(self.ids)

    def search(self, query: str, limit: int) -> Sequence[int]:
        """Items with a word that begins so for every word of the query, the most liked first.

        Before them come the title that is the query, and those that begin with it. Case, accents and punctuation make no
        difference; an empty query finds the most liked items.
        """
        words = words_of(query)
        if not words:
            return self.by_likes[:limit]
        text = " ".join(words)
        places = dict.fromkeys(place for place in (self.exact.get(text),) if place is not None)
        places |= dict.fromkeys(self._places(words, limit, begins=text))
        if len(places) < limit:
            places |= dict.fromkeys(self._places(words, limit))
        return [self.by_likes[place] for place in [*places][:limit]]

    def _places(self, words: Sequence[str], limit: int, begins: str | None = None) -> Iterator[int]:
        """Places by likes of titles with all words; ``begins`` are those that begin with it."""
        # The longest words are the rarest; a word that begins another says nothing more.
        rare = sorted(set(words), key=len, reverse=True)
        rare = [each for at, each in enumerate(rare) if not any(other.startswith(each) for other in rare[:at])]
        terms = ([FIRST + words[0]] if begins else []) + rare[:INDEXED_WORDS]
        found = self.table.execute(
            "SELECT rowid FROM titles WHERE titles MATCH ? ORDER BY rowid LIMIT ?",
            (" AND ".join(f'"{term}"*' for term in terms), CANDIDATES),
        )
        for (place,) in found:
            spaced = f" {self.texts[place]}"
            if spaced.startswith(f" {begins}") if begins else all(f" {word}" in spaced for word in rare):
                yield place
                limit -= 1
                if not limit:
                    return


def words_of(text: str) -> list[str]:
    """The words of a text in lower case without accents; every sign of a script without spaces is one.

    >>> words_of("Café-NOIR (1999)"), words_of("七人の侍"), words_of("!!!")
    (['cafe', 'noir', '1999'], ['七', '人', 'の', '侍'], ['\ue121\ue121\ue121'])
    """
    if not text.isascii():
        text = "".join(
            each for each in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(each)
        )
    text = text.lower()
    # A title of signs alone, as the band !!!, is one word of letters that nobody else uses.
    signs = "".join(chr(0xE100 + ord(each)) if each < "\x80" else each for each in "".join(text.split()))
    return WORD.findall(text) or [signs.encode(errors="ignore").decode()] * bool(signs)


def _full_text_index(texts: Sequence[str]) -> sqlite3.Connection:
    """SQLite's full-text index of prefixes; rows are in the order of likes, so that a search can end at the first few."""
    table = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    try:
        table.execute(
            "CREATE VIRTUAL TABLE titles USING fts5"
            "(text, content='', detail=none, columnsize=0, prefix='1 2 3 4 5', tokenize='ascii')"
        )
    except sqlite3.OperationalError as error:
        raise DropoutError(f"sqlite3: want one with FTS5, got one without ({error}); install another Python") from error
    table.execute("BEGIN")
    rows = ((place, f"{text} {FIRST}{text.partition(' ')[0]}") for place, text in enumerate(texts))
    table.executemany("INSERT INTO titles(rowid, text) VALUES (?, ?)", rows)
    table.execute("COMMIT")
    table.execute("INSERT INTO titles(titles) VALUES ('optimize')")
    return table
