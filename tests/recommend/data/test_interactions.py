"""Dataframes of every library become the same matrix, and errors name column and count."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.interactions import Interactions

ROWS = {"user_id": ["b", "a", "b", "c", "a"], "item_id": [30, 10, 10, 20, 10], "weight": [5.0, 1.0, 4.0, 3.0, 4.0]}


def matrix(interactions: Interactions) -> list[list[float]]:
    return interactions.rows.toarray().tolist()


LIBRARIES = {
    "polars": pl.DataFrame(ROWS),
    "lazy": pl.LazyFrame(ROWS),
    "pandas": pd.DataFrame(ROWS),
    "pandas, objects": pd.DataFrame(ROWS).astype({"user_id": object, "item_id": "Int32"}),
    "pandas, categories": pd.DataFrame(ROWS).astype({"user_id": "category"}),
    "polars, categories": pl.DataFrame(ROWS, schema_overrides={"user_id": pl.Categorical}),
    "polars, enum": pl.DataFrame(ROWS, schema_overrides={"user_id": pl.Enum(["c", "z", "b", "a"])}),
    "more columns": pl.DataFrame(ROWS | {"datetime": ["2020"] * 5, "colour": [None] * 5}),
}


@pytest.mark.parametrize("frame", LIBRARIES.values(), ids=LIBRARIES.keys())
def test_dataframes_of_every_library_give_the_same_matrix(frame: Any) -> None:
    made = Interactions.from_frame(frame)
    assert made.users.to_list() == ["a", "b", "c"]
    assert made.items.to_list() == [10, 20, 30]
    assert matrix(made) == [[5, 0, 0], [4, 0, 5], [0, 3, 0]]
    assert made.rows.dtype == np.float32
    assert made.rows.has_canonical_format
    assert made.unknown == 0


def test_duplicates_without_weights_are_one_like() -> None:
    made = Interactions.from_frame(pl.DataFrame(ROWS).drop("weight"))
    assert matrix(made) == [[1, 0, 0], [1, 0, 1], [0, 1, 0]]
    assert matrix(Interactions.from_frame(pl.DataFrame(ROWS), weight=None)) == matrix(made)


def test_at_least_keeps_this_weight_and_more_as_likes() -> None:
    made = Interactions.from_frame(pl.DataFrame(ROWS), at_least=4)
    assert (made.users.to_list(), made.items.to_list()) == (["a", "b"], [10, 30])
    assert matrix(made) == [[1, 0], [1, 1]]
    negative = pl.DataFrame({"user_id": [1, 2], "item_id": [1, 2], "weight": [-1.0, -3.0]})
    assert matrix(Interactions.from_frame(negative, at_least=-2)) == [[1]]


def test_at_least_compares_in_the_precision_of_the_weights() -> None:
    frame = pl.DataFrame({"user_id": [1, 1], "item_id": [1, 2], "weight": [0.1, 0.1 + 1e-12]})
    assert Interactions.from_frame(frame, at_least=0.1 + 1e-12).items.to_list() == [2]


def test_columns_may_have_other_names() -> None:
    frame = pd.DataFrame({"customer": [2, 1], "article": ["x", "y"], "count": [3, 1]})
    made = Interactions.from_frame(frame, user="customer", item="article", weight="count")
    assert matrix(made) == [[0, 1], [3, 0]]
    assert made.to_frame().columns == ["user_id", "item_id", "weight"]


def test_filters_run_once_and_items_first() -> None:
    # Item 3 has one user and leaves; so user "c" keeps one item and leaves; item 2 then has one user, and stays.
    frame = pl.DataFrame({"user_id": list("aabbcc"), "item_id": [1, 2, 1, 4, 2, 3]})
    made = Interactions.from_frame(
        pl.concat([frame, pl.DataFrame({"user_id": ["d", "d"], "item_id": [4, 1]})]), min_item_users=2, min_user_items=2
    )
    assert made.users.to_list() == ["a", "b", "d"]
    assert made.items.to_list() == [1, 2, 4]
    assert matrix(made) == [[1, 1, 0], [1, 0, 1], [1, 0, 1]]


def test_item_without_users_leaves_the_catalogue() -> None:
    made = Interactions.from_frame(pl.DataFrame({"user_id": [1, 1, 2], "item_id": [5, 6, 7]}), min_user_items=2)
    assert made.items.to_list() == [5, 6]


def test_encode_counts_unknown_items() -> None:
    known = Interactions.from_frame(pl.DataFrame({"user_id": [1, 2, 2], "item_id": ["x", "y", "z"]}))
    others = pd.DataFrame(
        {"user_id": [9, 7, 7, 8, 9], "item_id": ["new", "z", "x", "new", "new"], "weight": [1, 2, 2, 1, 1]}
    )
    made = known.encode(others)
    assert made.users.to_list() == [7, 8, 9]
    assert made.items is known.items
    assert matrix(made) == [[2, 0, 2], [0, 0, 0], [0, 0, 0]]
    assert made.unknown == 3
    assert matrix(known.encode(others, at_least=3)) == [[0, 0, 0]] * 3
    assert matrix(known.encode(others, at_least=2)) == [[1, 0, 1], [0, 0, 0], [0, 0, 0]]


def test_ids_of_another_integer_type_are_found() -> None:
    known = Interactions.from_frame(
        pl.DataFrame({"user_id": [1, 2], "item_id": [3, 4]}, schema_overrides={"item_id": pl.Int8})
    )
    made = known.encode(pl.DataFrame({"user_id": [1, 1, 1], "item_id": [4, 3000, 3]}))
    assert (matrix(made), made.unknown) == ([[1, 1]], 1)


def test_empty_histories_encode_to_no_rows() -> None:
    known = Interactions.from_frame(pl.DataFrame(ROWS))
    assert known.encode(pl.DataFrame(ROWS).clear()).rows.shape == (0, 3)
    assert known.encode(pd.DataFrame(ROWS).iloc[:0]).rows.shape == (0, 3)


def test_ids_of_another_type_than_the_vocabulary_are_an_error() -> None:
    with pytest.raises(DropoutError, match="item_id: want ids of type Int64, .* got String; cast"):
        Interactions.from_frame(pl.DataFrame(ROWS)).encode(pl.DataFrame({"user_id": [1], "item_id": ["10"]}))


def test_one_user_and_one_item_give_a_matrix_of_one_entry() -> None:
    made = Interactions.from_frame(pl.DataFrame({"user_id": [4], "item_id": ["only"]}))
    assert matrix(made) == [[1]]
    assert repr(made) == "Interactions(1 users × 1 items, 1 entries)"


def test_weight_of_zero_gives_an_empty_row() -> None:
    frame = pl.DataFrame({"user_id": [1, 2], "item_id": [1, 1], "weight": [0, 2]})
    made = Interactions.from_frame(frame)
    assert (matrix(made), made.rows.nnz) == ([[0], [2]], 1)
    assert Interactions.from_frame(frame, min_user_items=1).users.to_list() == [2]


def test_select_sorts_users_by_id() -> None:
    made = Interactions.from_frame(pl.DataFrame(ROWS))
    chosen = made.select(np.array([2, 0]))
    assert chosen.users.to_list() == ["a", "c"]
    assert matrix(chosen) == [[5, 0, 0], [0, 3, 0]]


BROKEN = {
    "user_id: want no null and no NaN, got 2 in 3 rows": pl.DataFrame({"user_id": [None, 1, None], "item_id": [1, 2, 3]}),
    "item_id: want no null and no NaN, got 1 in 2 rows": pd.DataFrame({"user_id": [1, 2], "item_id": ["x", None]}),
    "user_id: want no null and no NaN, got 1 in 2": pd.DataFrame({"user_id": [1, None], "item_id": ["x", "y"]}),
    "weight: want no null and no NaN, got 1 in 2": pl.DataFrame({"user_id": [1, 2], "item_id": [1, 2], "weight": [1.0, float("nan")]}),
    "weight: want finite numbers, got 1 infinite in 2": pd.DataFrame({"user_id": [1, 2], "item_id": [1, 2], "weight": [1, np.inf]}),
    "weight: want at least 0, got 1 negative in 2": pl.DataFrame({"user_id": [1, 2], "item_id": [1, 2], "weight": [1, -1]}),
    "weight: want at least one above 0": pl.DataFrame({"user_id": [1, 2], "item_id": [1, 2], "weight": [0, 0]}),
    "weight: want numbers below 3.4e38, got 1e": pl.DataFrame({"user_id": [1], "item_id": [1], "weight": [1e300]}),
    "weight: want numbers, got String": pl.DataFrame({"user_id": [1], "item_id": [1], "weight": ["5"]}),
    "user_id: want whole numbers or text as ids, got Float64": pl.DataFrame({"user_id": [1.5], "item_id": [1]}),
    "item_id: want whole numbers or text as ids, got List": pl.DataFrame({"user_id": [1], "item_id": [[1]]}),
    "item_id: want values of one type, got a mix": pd.DataFrame({"user_id": [1, 2], "item_id": ["x", 3]}),
    r"want the columns 'user_id' and 'item_id', got \['user', 'item_id'\] without \['user_id'\]": pl.DataFrame({"user": [1], "item_id": [1]}),
    "want at least one interaction, got none in 0 rows": pl.DataFrame(ROWS).clear(),
    "interaction, got none in 0 rows": pd.DataFrame({"user_id": [], "item_id": []}, dtype="int64"),
    "want each column once": pd.DataFrame([[1, 2, 3]], columns=["user_id", "item_id", "item_id"]),
    "want a dataframe such as polars' or pandas', got list": [1, 2],
}  # fmt: skip


@pytest.mark.parametrize("message", BROKEN)
def test_errors_name_column_and_count(message: str) -> None:
    with pytest.raises(DropoutError, match=message):
        Interactions.from_frame(BROKEN[message])


def test_filters_that_leave_nothing_are_an_error() -> None:
    frame = pl.DataFrame(ROWS)
    with pytest.raises(DropoutError, match="at least one interaction with a weight of at least 6, got none in 5 rows"):
        Interactions.from_frame(frame, at_least=6)
    with pytest.raises(DropoutError, match="at_least: want a column 'weight'"):
        Interactions.from_frame(frame.drop("weight"), at_least=1)
    with pytest.raises(DropoutError, match="weight: want the column 'ratng', got .* without it"):
        Interactions.from_frame(frame, weight="ratng")
    with pytest.raises(DropoutError, match="weight: want the column 'ratng'"):
        Interactions.from_frame(frame).encode(frame, weight="ratng")
    with pytest.raises(DropoutError, match="filters: want users with 9 items .* among 3 users and 3 items"):
        Interactions.from_frame(frame, min_user_items=9)
    with pytest.raises(DropoutError, match="no filters with a fixed vocabulary"):
        Interactions.from_frame(frame, items=pl.Series([10]), min_user_items=1)
    with pytest.raises(DropoutError, match="each id once"):
        Interactions.from_frame(frame, items=pl.Series([10, 10]))
    with pytest.raises(DropoutError, match="rows: want a matrix of 1 users × 2 items"):
        Interactions(csr_array((2, 2), dtype=np.float32), pl.Series([1]), pl.Series([1, 2]))


PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(-3, 4), st.integers(1, 5)), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(PAIRS, st.integers(0, 3), st.integers(0, 3))
def test_any_frame_agrees_with_a_plain_loop(pairs: list[tuple[int, int, int]], few_items: int, few_users: int) -> None:
    likes = {(u, i) for u, i, w in pairs if w >= 3}
    likes = {(u, i) for u, i in likes if sum(j == i for _, j in likes) >= few_users}
    likes = {(u, i) for u, i in likes if sum(v == u for v, _ in likes) >= few_items}
    frame = pl.DataFrame(pairs, schema=["user_id", "item_id", "weight"], orient="row")
    if not likes:
        with pytest.raises(DropoutError):
            Interactions.from_frame(frame, at_least=3, min_user_items=few_items, min_item_users=few_users)
        return
    made = Interactions.from_frame(frame, at_least=3, min_user_items=few_items, min_item_users=few_users)
    assert made.to_frame().rows() == [(u, i, 1.0) for u, i in sorted(likes)]
    back = Interactions.from_frame(made.to_frame())
    assert matrix(back) == matrix(made)
    assert back.users.equals(made.users)
