"""The search in titles, and the files of titles."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lbdrop.errors import DropoutError
from lbdrop.serve.catalogue import Catalogue, json_ids, read_titles

TITLES = ["Green tea", "Greenhouse", "Evergreen tree", "Thé vert", "green", "Black tea"]


def catalogue() -> Catalogue:
    ids = pl.Series([10, 20, 30, 40, 50, 60])
    likes = np.array([5, 9, 100, 1, 2, 7], np.float32)
    return Catalogue(ids, likes, {str(each): title for each, title in zip(ids, TITLES, strict=True)})


def found(query: str, limit: int = 10) -> list[str]:
    items = catalogue()
    return [items.titles[number] for number in items.search(query, limit)]


def test_search_ranks_exact_titles_then_prefixes_then_likes() -> None:
    assert found("green") == ["green", "Greenhouse", "Green tea", "Evergreen tree"]


def test_search_wants_every_word_in_any_order() -> None:
    assert found("tea gre") == ["Green tea"]
    assert found("tea") == ["Black tea", "Green tea"]


@pytest.mark.parametrize("query", ["the", "THÉ", "  thé   ve "])
def test_search_ignores_case_accents_and_spaces(query: str) -> None:
    assert found(query) == ["Thé vert"]


def test_empty_search_finds_the_most_liked_items() -> None:
    assert found("", 2) == ["Evergreen tree", "Greenhouse"]


def test_item_without_a_title_is_shown_by_its_id() -> None:
    items = Catalogue(pl.Series(["a", "b", "c"]), np.ones(3, np.float32), {"b": "Bee", "c": ""})
    assert items.titles == ["a", "Bee", "c"]


def test_ids_that_javascript_would_round_become_text() -> None:
    assert json_ids(pl.Series([7, 2**53, -(2**60)])) == [7, str(2**53), str(-(2**60))]


def test_titles_of_csv_and_parquet_keep_the_ids(tmp_path: Path) -> None:
    table = pl.DataFrame({"item_id": ["05", "6"], "title": ["five, <b>", "six"], "group": ["x", "y"]})
    table.write_csv(tmp_path / "t.csv")
    table.write_parquet(tmp_path / "t.parquet")
    assert read_titles(tmp_path / "t.csv") == read_titles(tmp_path / "t.parquet") == {"05": "five, <b>", "6": "six"}
    pl.DataFrame({"item_id": [5, 6], "title": ["five", None]}).write_parquet(tmp_path / "n.parquet")
    assert read_titles(tmp_path / "n.parquet") == {"5": "five"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.txt", b"", "ends in .csv or .parquet"),
        ("none.csv", None, "nothing there"),
        ("t.parquet", b"no parquet", "cannot be read"),
        ("t.csv", b"", "cannot be read"),
        ("t.csv", b"item_id,name\n1,a\n", "without"),
    ],
)
def test_wrong_file_of_titles_is_an_error_of_one_line(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DropoutError, match=words) as error:
        read_titles(tmp_path / name)
    assert "\n" not in str(error.value)
