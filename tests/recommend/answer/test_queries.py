"""Users and items of a query in every form; anything else is an error of one line."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from lbdrop.errors import DropoutError
from lbdrop.recommend import Recommender
from lbdrop.recommend.data.shop import generate_shop

SHOP = generate_shop(users=120, items=30, groups=3).interactions


@pytest.fixture(scope="module")
def ease() -> Recommender:
    return Recommender("ease").fit(SHOP)


def test_users_with_ids_of_another_type_are_new(ease: Recommender) -> None:
    new = ease.evaluate(SHOP.with_columns(pl.col("user_id") + 1000)).mean
    text = SHOP.with_columns(user_id="u" + pl.col("user_id").cast(pl.String).str.zfill(4))  # in the same order
    assert ease.evaluate(text).mean == new
    assert ease.evaluate(text.with_columns(pl.col("user_id").cast(pl.Categorical))).mean == new


def test_items_may_be_a_dataframe_of_any_library(ease: Recommender) -> None:
    some = ease.items_[:4].to_list()
    expected = ease.recommend([0], k=9, filter_viewed=False, items_to_recommend=some)
    assert set(expected["item_id"]) == set(some)
    frame = pl.DataFrame({"name": ["x"] * 4, "item_id": some})
    for chosen in (frame, frame.lazy(), pd.DataFrame({"name": ["x"] * 4, "item_id": some}), np.array(some)):
        assert ease.recommend([0], k=9, filter_viewed=False, items_to_recommend=chosen).equals(expected)
    assert ease.similar_items(frame, k=2).equals(ease.similar_items(some, k=2))


def test_lazy_history_is_explained_like_any_other(ease: Recommender) -> None:
    has, item = ease.items_[1:4], ease.items_[0]
    expected = ease.explain(has.to_list(), item)
    assert ease.explain(pl.LazyFrame({"item_id": has}), item).equals(expected)
    whole = pl.LazyFrame({"user_id": ["new"] * 3, "item_id": has})
    assert ease.explain(whole, item).equals(expected)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda m: m.recommend(3.0), "users: want an id, or a list of ids of one type, got 3.0"),
        (lambda m: m.recommend(np.float64(3)), "users: want an id"),
        (lambda m: m.recommend([3.0]), "users: want whole numbers or text as ids, got Float64"),
        (lambda m: m.recommend([3, "x"]), "users: want an id, or a list of ids of one type"),
        (lambda m: m.recommend([[3]]), "users: want whole numbers or text as ids, got List"),
        (lambda m: m.recommend([0], items_to_recommend=3.0), "items_to_recommend: want an id"),
        (lambda m: m.recommend([0], items_to_recommend=[2.5]), "items_to_recommend: want whole numbers or text"),
        (lambda m: m.recommend([0], items_to_recommend=pl.DataFrame({"item": ["a"]})), "want the column 'item_id'"),
        (lambda m: m.explain(3.0, m.items_[0]), "history: want an id"),
        (lambda m: m.explain(0, 3.0), "item: want an id"),
        (lambda m: m.explain(0, m.items_[:2]), "item: want one, got 2"),
        (lambda m: m.explain(pl.LazyFrame({"item": ["a"]}), m.items_[0]), "history: want the column 'item_id'"),
        (lambda m: m.similar_items(None), "items: want an id"),
    ],
)
def test_wrong_ids_are_errors_of_one_line(ask: Any, words: str, ease: Recommender) -> None:
    with pytest.raises(DropoutError, match=words) as error:
        ask(ease)
    assert "\n" not in str(error.value)
