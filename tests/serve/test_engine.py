"""Many questions, one pass: each answer is what the library says to that question alone."""

import numpy as np
import pytest

from lbdrop.recommend import Recommender
from lbdrop.recommend.shop import Shop
from lbdrop.serve.engine import Answer, Engine, Question, Similar


def history(model: Recommender, user: int) -> np.ndarray:
    assert model.interactions_ is not None
    rows = model.interactions_.rows
    return np.sort(rows.indices[rows.indptr[user] : rows.indptr[user + 1]]).astype(np.int64)


def names(model: Recommender, answer: Answer) -> list[str]:
    return model.items_.gather(answer.items).to_list()


@pytest.fixture(scope="module")
def engine(fitted: Recommender) -> Engine:
    return Engine(fitted)


def test_every_question_of_a_batch_has_its_own_length_filter_and_choice(engine: Engine, fitted: Recommender) -> None:
    allowed = np.arange(0, 80, 3)
    ways = [
        {"k": 5},
        {"k": 12, "filter_viewed": False},
        {"k": 7, "items_to_recommend": fitted.items_.gather(allowed).to_list()},
        {"k": 500},
    ]
    asked = [
        Question(history(fitted, 0), 5),
        Question(history(fitted, 1), 12, filter_viewed=False),
        Question(history(fitted, 2), 7, allowed=allowed),
        Question(history(fitted, 3), 500),
    ]
    for user, (way, answer) in enumerate(zip(ways, engine(asked), strict=True)):
        own = fitted.recommend([user], **way)
        assert names(fitted, answer) == own["item_id"].to_list()
        np.testing.assert_allclose(answer.scores, own["score"], atol=2e-5)
        np.testing.assert_allclose(answer.spread or [], own["uncertainty"], atol=2e-5)


def test_reasons_are_the_librarys_explanations(engine: Engine, fitted: Recommender) -> None:
    (answer,) = engine([Question(history(fitted, 4), 3, reasons=True)])
    assert answer.effects is not None
    for place, item in enumerate(names(fitted, answer)):
        own = fitted.explain(4, item).sort("item_id")
        mine = dict(zip(fitted.items_.gather(history(fitted, 4)), answer.effects[:, place], strict=True))
        np.testing.assert_allclose([mine[each] for each in own["item_id"]], own["effect"], atol=5e-5)


@pytest.mark.parametrize("method", ["sivae-lbd", "ease"])
def test_the_reason_of_a_single_like_is_the_librarys_too(method: str, shop: Shop) -> None:
    options = {} if method == "ease" else {"epochs": 1, "patience": None, "progress": False}
    model = Recommender(method, device="cpu", **options).fit(shop.interactions)
    (answer,) = Engine(model)([Question(np.array([5]), about=np.array([7]), reasons=True)])
    assert answer.effects is not None
    own = model.explain([model.items_[5]], model.items_[7])
    np.testing.assert_allclose(answer.effects[:, 0], own["effect"], atol=5e-5)


def test_who_has_nothing_gets_what_most_people_like(engine: Engine, fitted: Recommender) -> None:
    nobody, somebody = engine([Question(np.empty(0, np.int64), 80), Question(history(fitted, 0), 80)])
    likes = fitted.likes_ + 1
    np.testing.assert_allclose(nobody.scores, np.log(np.sort(likes)[::-1] / likes.sum()), rtol=1e-5)
    assert np.isnan(nobody.spread or []).all()
    assert not np.isnan(somebody.spread or [np.nan]).any()


def test_named_items_are_answered_in_the_order_they_were_named(engine: Engine, fitted: Recommender) -> None:
    about = np.array([9, 2, 40])
    (answer,) = engine([Question(history(fitted, 0), about=about)])
    scores = dict(zip(*engine([Question(history(fitted, 0), 80, filter_viewed=False)])[0][:2], strict=True))
    assert answer.items == [9, 2, 40]
    np.testing.assert_allclose(answer.scores, [scores[each] for each in answer.items])


def test_similar_items_are_the_librarys(engine: Engine, fitted: Recommender) -> None:
    for item, answer in zip((3, 17, 60), engine([Similar(3, 4), Similar(17, 9), Similar(60, 79)]), strict=True):
        own = fitted.similar_items([fitted.items_[item]], k=len(answer.items))
        assert names(fitted, answer) == own["similar_item_id"].to_list()
        np.testing.assert_allclose(answer.scores, own["score"], atol=1e-6)


def test_answers_do_not_depend_on_who_else_asks(engine: Engine, fitted: Recommender) -> None:
    asked = [
        Question(history(fitted, 0), 5, reasons=True),
        Similar(7, 5),
        Question(history(fitted, 1), 9),
        Question(np.empty(0, np.int64), 9),
        Similar(8, 3),
        Question(history(fitted, 2), about=np.array([1, 2]), reasons=True),
    ]
    alone = [engine([each])[0] for each in asked]
    for one, other in zip(alone, engine(asked), strict=True):
        assert (one.items, one.scores) == (other.items, other.scores)
        np.testing.assert_array_equal(np.array(one.spread, float), np.array(other.spread, float))
        np.testing.assert_equal(one.effects, other.effects)
