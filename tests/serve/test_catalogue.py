"""Titles are found as people type them, and files of titles are read or refused in one line."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lbdrop.errors import DropoutError
from lbdrop.serve.catalogue import Catalogue, in_json, read_titles

TITLES = ["Green tea", "Greenhouse", "Evergreen tree", "Thé vert", "green", "Black tea"]


def catalogue() -> Catalogue:
    ids = pl.Series([10, 20, 30, 40, 50, 60])
    likes = np.array([5, 9, 100, 1, 2, 7], np.float32)
    return Catalogue(ids, likes, {str(each): title for each, title in zip(ids, TITLES, strict=True)})


def found(query: str, limit: int = 10) -> list[str]:
    items = catalogue()
    return [items.titles[number] for number in items.search(query, limit)]


def test_the_title_itself_comes_first_then_beginnings_then_the_rest_each_by_likes() -> None:
    assert found("green") == ["green", "Greenhouse", "Green tea", "Evergreen tree"]


def test_every_word_must_be_there_in_any_order() -> None:
    assert found("tea gre") == ["Green tea"]
    assert found("tea") == ["Black tea", "Green tea"]


@pytest.mark.parametrize("query", ["the", "THÉ", "  thé   ve "])
def test_case_accents_and_spaces_make_no_difference(query: str) -> None:
    assert found(query) == ["Thé vert"]


def test_an_empty_query_finds_the_most_liked() -> None:
    assert found("", 2) == ["Evergreen tree", "Greenhouse"]


def test_an_item_without_a_title_goes_by_its_id() -> None:
    items = Catalogue(pl.Series(["a", "b", "c"]), np.ones(3, np.float32), {"b": "Bee", "c": ""})
    assert items.titles == ["a", "Bee", "c"]


def test_whole_numbers_that_javascript_cannot_hold_are_text() -> None:
    assert in_json(pl.Series([7, 2**53, -(2**60)])) == [7, str(2**53), str(-(2**60))]


def test_titles_come_from_csv_and_parquet_with_ids_as_they_are_written(tmp_path: Path) -> None:
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
def test_another_file_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DropoutError, match=words) as error:
        read_titles(tmp_path / name)
    assert "\n" not in str(error.value)
