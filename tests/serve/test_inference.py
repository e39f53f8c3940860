"""Many queries in one pass: each result equals the one of the library."""

import numpy as np
import pytest

from lbdrop.recommend import Recommender
from lbdrop.recommend.data.shop import Shop
from lbdrop.serve.inference import HistoryQuery, InferenceEngine, Result, SimilarQuery


def history(model: Recommender, user: int) -> np.ndarray:
    assert model.interactions_ is not None
    rows = model.interactions_.rows
    return np.sort(rows.indices[rows.indptr[user] : rows.indptr[user + 1]]).astype(np.int64)


def names(model: Recommender, answer: Result) -> list[str]:
    return model.items_.gather(answer.items).to_list()


@pytest.fixture(scope="module")
def engine(fitted: Recommender) -> InferenceEngine:
    return InferenceEngine(fitted)


def test_each_query_of_a_batch_has_its_own_k_filter_and_allowed_items(
    engine: InferenceEngine, fitted: Recommender
) -> None:
    allowed = np.arange(0, 80, 3)
    ways = [
        {"k": 5},
        {"k": 12, "filter_viewed": False},
        {"k": 7, "items_to_recommend": fitted.items_.gather(allowed).to_list()},
        {"k": 500},
        {"k": 6, "diversity": 0.7},
        {"k": 6, "items_to_exclude": fitted.items_.gather(allowed).to_list()},
    ]
    asked = [
        HistoryQuery(history(fitted, 0), 5),
        HistoryQuery(history(fitted, 1), 12, filter_viewed=False),
        HistoryQuery(history(fitted, 2), 7, allowed=allowed),
        HistoryQuery(history(fitted, 3), 500),
        HistoryQuery(history(fitted, 4), 6, diversity=0.7),
        HistoryQuery(history(fitted, 5), 6, excluded=allowed),
    ]
    for user, (way, answer) in enumerate(zip(ways, engine(asked), strict=True)):
        own = fitted.recommend([user], **way)
        assert names(fitted, answer) == own["item_id"].to_list()
        np.testing.assert_allclose(answer.scores, own["score"], atol=2e-5)
        np.testing.assert_allclose(answer.spread or [], own["uncertainty"], atol=2e-5)


def test_reasons_equal_explain(engine: InferenceEngine, fitted: Recommender) -> None:
    (answer,) = engine([HistoryQuery(history(fitted, 4), 3, reasons=True)])
    assert answer.effects is not None
    for place, item in enumerate(names(fitted, answer)):
        own = fitted.explain(4, item).sort("item_id")
        mine = dict(zip(fitted.items_.gather(history(fitted, 4)), answer.effects[:, place], strict=True))
        np.testing.assert_allclose([mine[each] for each in own["item_id"]], own["effect"], atol=5e-5)


@pytest.mark.parametrize("method", ["sivae-lbd", "ease"])
def test_reasons_of_a_single_like_equal_explain(method: str, shop: Shop) -> None:
    options = {} if method == "ease" else {"epochs": 1, "patience": None, "progress": False}
    model = Recommender(method, device="cpu", **options).fit(shop.interactions)
    (answer,) = InferenceEngine(model)([HistoryQuery(np.array([5]), targets=np.array([7]), reasons=True)])
    assert answer.effects is not None
    own = model.explain([model.items_[5]], model.items_[7])
    np.testing.assert_allclose(answer.effects[:, 0], own["effect"], atol=5e-5)


def test_empty_history_gets_the_most_popular_items(engine: InferenceEngine, fitted: Recommender) -> None:
    nobody, somebody = engine([HistoryQuery(np.empty(0, np.int64), 80), HistoryQuery(history(fitted, 0), 80)])
    likes = fitted.likes_ + 1
    np.testing.assert_allclose(nobody.scores, np.log(np.sort(likes)[::-1] / likes.sum()), rtol=1e-5)
    assert np.isnan(nobody.spread or []).all()
    assert not np.isnan(somebody.spread or [np.nan]).any()


def test_targets_keep_their_order(engine: InferenceEngine, fitted: Recommender) -> None:
    about = np.array([9, 2, 40])
    (answer,) = engine([HistoryQuery(history(fitted, 0), targets=about)])
    scores = dict(zip(*engine([HistoryQuery(history(fitted, 0), 80, filter_viewed=False)])[0][:2], strict=True))
    assert answer.items == [9, 2, 40]
    np.testing.assert_allclose(answer.scores, [scores[each] for each in answer.items])


def test_similar_query_equals_similar_items(engine: InferenceEngine, fitted: Recommender) -> None:
    for item, answer in zip(
        (3, 17, 60), engine([SimilarQuery(3, 4), SimilarQuery(17, 9), SimilarQuery(60, 79)]), strict=True
    ):
        own = fitted.similar_items([fitted.items_[item]], k=len(answer.items))
        assert names(fitted, answer) == own["similar_item_id"].to_list()
        np.testing.assert_allclose(answer.scores, own["score"], atol=1e-5)


def test_results_have_the_same_bits_in_any_batch(engine: InferenceEngine, fitted: Recommender) -> None:
    asked = [
        HistoryQuery(history(fitted, 0), 5, reasons=True),
        SimilarQuery(7, 5),
        HistoryQuery(history(fitted, 1), 9),
        HistoryQuery(np.empty(0, np.int64), 9),
        SimilarQuery(8, 3),
        HistoryQuery(history(fitted, 2), targets=np.array([1, 2]), reasons=True),
    ]
    alone = [engine([each])[0] for each in asked]
    for one, other in zip(alone, engine(asked), strict=True):
        assert (one.items, one.scores) == (other.items, other.scores)
        np.testing.assert_array_equal(np.array(one.spread, float), np.array(other.spread, float))
        np.testing.assert_equal(one.effects, other.effects)
