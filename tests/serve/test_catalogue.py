"""The search in titles, and the files of titles."""

import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from fastapi.testclient import TestClient

from lbdrop.errors import DropoutError
from lbdrop.recommend import Recommender
from lbdrop.recommend.data.table_files import read_titles
from lbdrop.serve import create_app
from lbdrop.serve.catalogue import Catalogue, json_ids

TITLES = ["Green tea", "Greenhouse", "Evergreen tree", "Thé vert", "green", "Black tea"]


def catalogue() -> Catalogue:
    ids = pl.Series([10, 20, 30, 40, 50, 60])
    likes = np.array([5, 9, 100, 1, 2, 7], np.float32)
    return Catalogue(ids, likes, {str(each): title for each, title in zip(ids, TITLES, strict=True)})


def found(query: str, limit: int = 10) -> list[str]:
    items = catalogue()
    return [items.titles[number] for number in items.search(query, limit)]


def test_search_ranks_exact_titles_then_prefixes_then_likes() -> None:
    assert found("green") == ["green", "Greenhouse", "Green tea"]


def test_search_wants_every_word_in_any_order() -> None:
    assert found("tea gre") == ["Green tea"]
    assert found("tea") == ["Black tea", "Green tea"]


@pytest.mark.parametrize("query", ["the", "THÉ", "  thé   ve "])
def test_search_ignores_case_accents_and_spaces(query: str) -> None:
    assert found(query) == ["Thé vert"]


def test_search_finds_beginnings_of_words_in_any_script() -> None:
    titles = ["Seven Samurai (1954)", "七人の侍", "!!!", "Spider-Man", "Love, love \U0001f600", "Лето", "x" * 300]
    items = Catalogue(pl.Series(range(len(titles))), np.ones(len(titles), np.float32), dict(enumerate_text(titles)))
    wanted = {"195": [0], "侍": [1], "人七": [1], "!!": [2], "man spid": [3], "lov lo": [4], "лет": [5], "amurai": [],
              '"': [], "* OR": [], "(": [], "\ud800": [], "\0": [], "x" * 200: [6]}  # fmt: skip
    assert {query: list(items.search(query, 9)) for query in wanted} == wanted


def enumerate_text(titles: list[str]) -> list[tuple[str, str]]:
    return [(str(each), title) for each, title in enumerate(titles)]


def test_search_equals_its_definition_over_random_titles() -> None:
    draw = np.random.default_rng(0)
    titles = [
        " ".join("".join(draw.choice(list("abc"), draw.integers(1, 4))) for _ in range(draw.integers(1, 5)))
        for _ in range(400)
    ]
    likes = draw.integers(0, 50, 400).astype(np.float32)
    items = Catalogue(pl.Series(range(400)), likes, dict(enumerate_text(titles)))

    def expected(query: str) -> set[int]:
        return {n for n, title in enumerate(titles) if all(f" {word}" in f" {title}" for word in query.split())}

    for query in ("a", "b a", "ab", "abc c", "a b c ab ba", "cc cc", "a aa aaa", "bb c a"):
        places = list(items.search(query, 400))
        assert len(places) == len(set(places))
        assert set(places) == expected(query), query
        rank = [(titles[n] != query, not titles[n].startswith(query)) for n in places]
        assert rank == sorted(rank) or titles[places[0]] == query
        others = [-likes[n] for n in places if not titles[n].startswith(query)]
        assert others == sorted(others)


def test_search_of_many_words_is_refused_and_leaves_the_event_loop(fitted: Recommender) -> None:
    app = create_app(fitted)
    with TestClient(app) as client:
        refused = client.get("/items", params={"query": "a " * 100})
        assert (refused.status_code, "at most 24 words, got 100" in refused.json()["error"]) == (422, True)
        threads = []
        app.state.searcher.compute = lambda asked: [
            threads.append(threading.current_thread().name) or [0] for _ in asked
        ]
        assert client.get("/items", params={"query": "al"}).status_code == 200
        assert threads == ["lbdrop-search"]


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
