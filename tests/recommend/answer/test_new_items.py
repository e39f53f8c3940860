"""Items that nobody had are recommended by what they are: to whom the planted structure says, and in every way of asking."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers.checkerboard import FAMILIES, GROUPS, checkerboard, group_of, slim_in_one_thread

from lbdrop.errors import DropoutError
from lbdrop.recommend import Recommender
from lbdrop.recommend.answer.new_items import RIDGES
from lbdrop.recommend.data.item_features import encode, feature_table, make_plan

LIKES = checkerboard()
IDS = [*sorted(LIKES["item_id"].unique()), "a90", "b90", "c90"]
GROUP = [group_of(item) for item in IDS]
KINDS: dict[str, list[Any]] = {
    "category": ["tea", "book", "toy"],
    "text of tags": ["old|tea", "old|book", "old|toy"],
    "tags": [["x", "tea"], ["x"], ["toy", "x"]],
    "number": [1.0, 5.0, 40.0],
    "whole number": [1990, 2000, 2010],
    "embedding": [[1.0, 0.5], [-1.0, 0.5], [0.0, -1.0]],
}


def features(kind: str = "category") -> pl.DataFrame:
    """Three new items, one of each group, and those that users have; what they are says the group."""
    return pl.DataFrame({"item_id": IDS, "what": [KINDS[kind][group] for group in GROUP]})


@pytest.fixture(scope="module")
def ease() -> Recommender:
    return Recommender("ease", regularisation=10.0).fit(LIKES, item_features=features())


def first_new(model: Recommender, users: Any) -> list[int]:
    best = model.recommend(users, k=1, items_to_recommend=["a90", "b90", "c90"])
    return [group_of(item) for item in best["item_id"]]


@pytest.mark.parametrize("kind", KINDS)
def test_new_items_go_to_those_who_like_such_items_whatever_tells(kind: str) -> None:
    model = Recommender("ease", regularisation=10.0).fit(LIKES, item_features=features(kind))
    assert first_new(model, range(30)) == [user % GROUPS for user in range(30)]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("popularity", "ease")])
def test_every_method_recommends_new_items(family: str) -> None:
    with slim_in_one_thread():
        model = Recommender(**FAMILIES[family], progress=False).fit(LIKES, item_features=features())
    best = model.recommend(range(12), k=1, items_to_recommend=["a90", "b90", "c90"])
    assert [group_of(item) for item in best["item_id"]] == [user % GROUPS for user in range(12)]
    if "uncertainty" in best.columns:
        assert best["uncertainty"].null_count() == 12


def test_new_items_compete_with_those_that_users_have(ease: Recommender) -> None:
    every = ease.recommend([0], k=99)
    assert len(every) == len(IDS) - 9
    place = every["item_id"].index_of("a90")
    assert place is not None
    assert {group_of(item) for item in every["item_id"][: place + 1]} == {0}
    with_features = every.filter(~pl.col("item_id").str.ends_with("90"))
    assert (
        with_features.drop("rank")
        .sort("item_id")
        .equals(Recommender("ease", regularisation=10.0).fit(LIKES).recommend([0], k=99).drop("rank").sort("item_id"))
    )


def test_people_without_history_get_new_items_of_popular_kinds() -> None:
    many = pl.concat(
        [LIKES, pl.DataFrame({"user_id": range(500, 560), "item_id": [f"b{n % 12:02d}" for n in range(60)]})]
    )
    model = Recommender("ease").fit(many, item_features=features())
    nobody = pl.DataFrame({"user_id": [1], "item_id": ["unheard of"]})
    assert first_new(model, nobody) == [1]


def test_score_of_a_new_item_is_that_of_its_predicted_vector(ease: Recommender) -> None:
    new = ease.new_items_
    assert new is not None
    weights = ease.model_.state["weights"].double().numpy()  # type: ignore[union-attr]
    onehot = np.eye(GROUPS)[GROUP[:-3]]
    centred = onehot - onehot.mean(0)
    predicted = weights.mean(1) + weights @ centred @ np.linalg.solve(
        centred.T @ centred + new.ridge * np.eye(3), np.eye(3)[0] - onehot.mean(0)
    )
    rows = ease.interactions_.rows  # type: ignore[union-attr]
    score = ease.recommend([0], k=99).filter(item_id="a90")["score"].item()
    assert score == pytest.approx(float((rows @ predicted)[0]), rel=1e-4)


def test_chosen_ridge_is_the_best_for_items_held_out_one_at_a_time() -> None:
    random = np.random.default_rng(0)
    table = pl.DataFrame({"item_id": IDS, "vector": random.normal(size=(len(IDS), 6)).tolist()})
    model = Recommender("ease", regularisation=10.0).fit(LIKES, item_features=table)
    from lbdrop.recommend.answer.new_items import _sample  # the users it looked at
    from lbdrop.recommend.answer.scoring import scoring

    assert model.interactions_ is not None
    assert model.new_items_ is not None
    scores = _sample(model.interactions_, scoring(model.model_, 0, 0), torch.device("cpu"), 0)
    scores = scores - scores.mean(1, keepdims=True)
    x = encode(model.new_items_.plan, table)[:-3]

    def error(ridge: float) -> float:
        total = 0.0
        for item in range(len(x)):
            rest = np.delete(np.arange(len(x)), item)
            # The mean of all items stays; the intercept is refitted, as the leverage 1/n says.
            a = np.c_[x[rest] - x.mean(0), np.ones(len(rest))]
            w = np.linalg.solve(a.T @ a + np.diag([ridge] * 6 + [0.0]), a.T @ scores[:, rest].T)
            total += ((np.r_[x[item] - x.mean(0), 1] @ w - scores[:, item]) ** 2).sum()
        return total

    assert model.new_items_.ridge == min(RIDGES, key=error)


def test_later_items_are_added_without_fitting(ease: Recommender) -> None:
    later = pl.DataFrame({"item_id": ["b91", "a00", "z"], "what": ["book", "toy", "never seen"]})
    model = Recommender("ease", regularisation=10.0).fit(LIKES, item_features=features()).add_items(later)
    assert set(model.catalogue_) - set(model.items_) == {"b91", "z"}
    best = model.recommend([1, 0], k=1, items_to_recommend=["b91", "z"])
    assert best["item_id"].to_list() == ["b91", "z"]
    with pytest.raises(DropoutError, match="want a model fitted with item_features="):
        Recommender("ease").fit(LIKES).add_items(later)


def test_saved_files_and_explanations_have_new_items(ease: Recommender, tmp_path: Path) -> None:
    ease.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    assert loaded.recommend([0, 1], k=40).equals(ease.recommend([0, 1], k=40))
    assert loaded.add_items(features()).recommend([0, 1], k=40).equals(ease.recommend([0, 1], k=40))
    assert "a90" in ease.recommend([0], k=10, diversity=0.5)["item_id"]
    ease.score_to(tmp_path / "scores.parquet", k=40)
    assert pl.read_parquet(tmp_path / "scores.parquet").equals(ease.recommend(k=40))
    why = ease.explain(["a00", "b01"], "a90")
    assert why["item_id"][0] == "a00"
    for name in ("features.safetensors", "new_items.parquet"):
        whole = (tmp_path / "model" / name).read_bytes()
        (tmp_path / "model" / name).write_bytes(whole[:-9])
        with pytest.raises(DropoutError, match="cut off"):
            Recommender.load(tmp_path / "model")
        (tmp_path / "model" / name).write_bytes(whole)


def test_features_come_from_pandas_with_gaps_and_more_columns() -> None:
    table = features().with_columns(
        year=pl.Series([None if n % 5 == 0 else 1990.0 + n for n in range(len(IDS))]), title=pl.Series(IDS) + "!"
    )
    pandas = pd.DataFrame({name: table[name].to_list() for name in table.columns})
    with pytest.warns(UserWarning, match="got none in 'title'; the column is left out"):
        model = Recommender("ease").fit(LIKES, item_features=pandas)
    assert first_new(model, range(9)) == [user % GROUPS for user in range(9)]


def test_numbers_become_nearness_to_quantiles() -> None:
    table = feature_table(pl.DataFrame({"item_id": range(11), "year": [*range(10), None]}))
    found = encode(make_plan(table), table)
    assert found.shape == (11, 11)
    assert np.allclose(found, np.eye(11))
    beyond = pl.DataFrame({"item_id": [1, 2], "year": [4.5, 99.0]})
    assert np.allclose(encode(make_plan(table), beyond)[:, [4, 5, 9]], [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (features().head(4), "want at least 10 items of fit to learn from, got 4 among 4 rows"),
        (features().with_columns(item_id=pl.int_range(39)), "want at least 10 items of fit to learn from, got 0"),
        (pl.concat([features(), features()]), "want each item once, got 39 repeats"),
        (features().select("item_id"), "want a column beside item_id"),
        (features().rename({"item_id": "sku"}), "want the column 'item_id'"),
        (features().with_columns(what=pl.date(2020, 1, 1)), "what: want text, tags, numbers or embeddings, got Date"),
        (
            features().with_columns(what=pl.Series([[1.0] * (1 + n % 2) for n in range(39)])),
            "want embeddings of finite",
        ),
    ],
)
def test_wrong_tables_of_items_are_errors_of_one_line(table: pl.DataFrame, words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DropoutError, match=words) as error:
            Recommender("popularity").fit(LIKES, item_features=table)
    assert "\n" not in str(error.value)


def test_service_recommends_new_items() -> None:
    from fastapi.testclient import TestClient

    from lbdrop.serve import create_app

    model = Recommender("ease", regularisation=10.0).fit(LIKES, item_features=features())
    with TestClient(create_app(model, {"b90": "A new book"})) as client:
        asked = {"histories": [["b00", "b01", "a90"], []], "k": 1, "items_to_recommend": ["a90", "b90", "c90"]}
        first, nobody = client.post("/recommend", json=asked | {"reasons": 1}).json()["results"]
        assert first["items"][0]["title"] == "A new book"
        assert first["items"][0]["reasons"][0]["item_id"] in ("b00", "b01")
        assert first["unknown_items"] == 1
        assert len(nobody["items"]) == 1
        assert "want items that somebody has" in client.post("/similar", json={"items": ["b90"]}).json()["error"]
