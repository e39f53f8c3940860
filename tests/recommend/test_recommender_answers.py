"""Results come in the caller's library, with uncertainty; errors have one line."""

import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers.checkerboard import GROUPS, SIZE, checkerboard, group_of

from lbdrop.errors import DropoutError
from lbdrop.recommend import Recommender
from lbdrop.recommend.data.rows import Rows


def test_results_are_dataframes_of_the_callers_library() -> None:
    frame = checkerboard()
    panda = pd.DataFrame({name: frame[name].to_numpy() for name in frame.columns})
    model = Recommender("ease").fit(panda)
    for answer in (
        model.recommend([0, 1], k=2),
        model.recommend(panda.head(9), k=2),
        model.similar_items(["a00"]),
        model.explain(0, "a01"),
    ):
        assert isinstance(answer, pd.DataFrame)
    assert isinstance(model.recommend(frame.head(9), k=2), pl.DataFrame)
    assert isinstance(model.recommend(pl.Series([0, 1]), k=2), pl.DataFrame)
    expected = Recommender("ease").fit(frame).recommend([0, 1], k=2)
    found = model.recommend(pd.Series([0, 1]), k=2)
    assert found["item_id"].tolist() == expected["item_id"].to_list()
    assert found["user_id"].tolist() == [0, 0, 1, 1]


def test_uncertainty_is_the_spread_over_masks_and_needs_two(learned: Recommender) -> None:
    best = learned.recommend([0], k=4, samples=6)
    assert best.columns == ["user_id", "item_id", "score", "rank", "uncertainty"]
    assert best["uncertainty"].min() > 0  # type: ignore[operator]
    assert "uncertainty" not in learned.recommend([0], samples=1).columns
    assert "uncertainty" not in learned.recommend([0], samples=0).columns


def test_scores_are_log_probabilities_averaged_over_masks(learned: Recommender) -> None:
    every = learned.recommend([0], k=100, filter_viewed=False)
    assert every["score"].exp().sum() == pytest.approx(1.0, abs=1e-4)
    model, rows = learned.model_, learned.interactions_
    assert rows is not None
    many = learned.recommend([0], k=100, filter_viewed=False, samples=600)
    generator = torch.Generator().manual_seed(1)
    copies = Rows.from_csr(rows.rows).batch([0] * 400)  # each with masks of its own
    expected = model.scores(copies, samples=5, generator=generator).exp().mean(0).log()  # type: ignore[call-arg]
    for item, score in many.select("item_id", "score").rows():
        place = learned.items_.index_of(item)
        assert place is not None
        assert score == pytest.approx(float(expected[place]), abs=0.1)


def test_recommendations_do_not_depend_on_other_users(learned: Recommender) -> None:
    alone = learned.recommend([17], k=5)
    among = learned.recommend(range(120), k=5).filter(user_id=17)
    assert alone["item_id"].equals(among["item_id"])
    for name in ("score", "uncertainty"):
        assert np.allclose(alone[name], among[name], atol=1e-5)


def test_unknown_users_are_an_error_that_asks_for_their_history(learned: Recommender) -> None:
    with pytest.raises(DropoutError, match="1 unknown, the first 999; pass their histories"):
        learned.recommend([3, 999])


@pytest.mark.parametrize("family", ["learned", "ease", "popularity"])
def test_users_without_known_items_get_popular_items(family: str, models: dict[str, Recommender]) -> None:
    model = models[family]
    best = model.recommend(pl.DataFrame({"user_id": ["lost"], "item_id": ["unheard of"]}), k=5)
    assert len(best) == 5
    likes = dict(zip(model.items_, model.likes_, strict=True))
    assert [likes[item] for item in best["item_id"]] == sorted(likes.values(), reverse=True)[:5]
    if family == "learned":
        assert best["uncertainty"].null_count() == 5
        first = best["item_id"][0]
        share = (likes[first] + 1) / sum(count + 1 for count in likes.values())
        assert best["score"][0] == pytest.approx(math.log(share), abs=1e-5)


def test_stars_without_a_threshold_are_warned_of() -> None:
    stars = checkerboard().with_columns(weight=pl.Series([1, 2, 3, 4, 5] * 216))
    with pytest.warns(
        UserWarning, match="looks like ratings from 1 to 5, of which all count as likes; pass at_least=4"
    ):
        Recommender("popularity").fit(stars)
    for silent in (stars.with_columns(pl.col("weight") * 2), stars.with_columns(weight=1.0), stars.drop("weight")):
        Recommender("popularity").fit(silent)
    Recommender("popularity", at_least=4).fit(stars)


def test_weights_decide_what_is_a_like() -> None:
    frame = checkerboard().with_columns(weight=5.0)
    disliked = pl.DataFrame({"user_id": [0] * 3, "item_id": ["b00", "b01", "b02"], "weight": [1.0] * 3})
    model = Recommender("ease", at_least=4).fit(pl.concat([frame, disliked]))
    assert model.recommend([0], k=1000)["item_id"].len() == GROUPS * SIZE - 9
    history = pl.DataFrame({"user_id": [0, 0], "item_id": ["c00", "a00"], "weight": [5.0, 1.0]})
    assert group_of(model.recommend(history, k=1)["item_id"][0]) == 2
    assert group_of(model.recommend(history.drop("weight"), k=1)["item_id"][0]) in (0, 2)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda m: m.recommend([]), "at least one"),
        (lambda m: m.recommend([0], k=0), "k: want at least 1"),
        (lambda m: m.recommend([0], samples=-1), "samples: want 0"),
        (lambda m: m.recommend([0], items_to_recommend=["x", "y"]), "want items of fit, got none among 2"),
        (lambda m: m.recommend([0], items_to_exclude=m.items_), "want an item left to recommend, got all"),
        (lambda m: m.recommend([0], diversity=2), "diversity: want at most 1, got 2"),
        (lambda m: m.recommend(pl.DataFrame({"user_id": [1]})), "item_id"),
        (lambda m: m.similar_items(["x"]), "1 unknown, the first 'x'"),
        (lambda m: m.explain(0, "x"), "1 unknown, the first 'x'"),
        (lambda m: m.explain(["x"], "a00"), "at least one item that the model knows"),
        (lambda m: m.explain(checkerboard().head(12), "a00"), "want that of one user, got 2"),
        (lambda m: m.evaluate(checkerboard()), "want users with items to find, got none among 120"),
    ],
)  # fmt: skip
def test_wrong_queries_are_errors_of_one_line(ask: Any, words: str, learned: Recommender) -> None:
    with pytest.raises(DropoutError, match=words) as error:
        ask(learned)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "nothing"}, "method: want one of experts, auto, dae"),
        ({"dropout": "some"}, "dropout: want one of learned"),
        ({"method": "ease", "dropout": "learned"}, "which has no masks"),
        ({"method": "ease", "hidden": 3}, "ease: no hidden; there are regularisation, dtype"),
        ({"hiden": 3}, "settings: no hiden"),
        ({"hidden": "many"}, "hidden: want a whole number, got 'many'"),
        ({"validation": 1.5}, "validation: want a share below 1"),
    ],
)
def test_wrong_settings_are_errors_before_fit(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(DropoutError, match=words):
        Recommender(**arguments)


def test_recommend_before_fit_is_an_error() -> None:
    with pytest.raises(DropoutError, match="call fit"):
        Recommender("ease").recommend([0])


def test_popularity_has_no_similarity_and_linear_methods_have_no_rates(models: dict[str, Recommender]) -> None:
    with pytest.raises(DropoutError, match="can compare items"):
        models["popularity"].similar_items(["a00"])
    with pytest.raises(DropoutError, match="want a method with dropout"):
        models["ease"].rates()


def test_rates_come_with_likes(learned: Recommender) -> None:
    rates = learned.rates()
    counts = checkerboard().group_by("item_id").len().sort("item_id")
    assert rates["item_id"].equals(counts["item_id"])
    assert rates["likes"].to_list() == counts["len"].to_list()
    keep = learned.model_.keep  # type: ignore[union-attr]
    assert np.allclose(rates["rate"], 1 - keep.numpy())
    assert rates["rate"].n_unique() > 1
