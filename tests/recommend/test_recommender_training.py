"""Fit stops by validation users and sizes the network by the data; evaluate measures held-out items."""

import numpy as np
import polars as pl
import pytest
import torch
from helpers.checkerboard import FAMILIES, checkerboard

from lbdrop.recommend import Interactions, Recommender, method
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.data.splits import fold_in
from lbdrop.recommend.train.evaluate import evaluate
from lbdrop.recommend.train.validation import hold_out

# ------------------------------------------------------------------------------------------------------------- training


def test_too_few_validation_users_warn_and_all_epochs_are_trained() -> None:
    model = Recommender(dropout="learned", epochs=2, progress=False)
    with pytest.warns(UserWarning, match="want 20 held-out users with five items, got 12 among 12 of 120 users"):
        model.fit(checkerboard())
    assert model.history_ is not None
    assert model.history_.best is None
    assert len(model.history_.epochs) == 2


def test_validation_of_zero_trains_on_all_users_without_a_warning() -> None:
    model = Recommender(dropout="learned", epochs=1, validation=0, progress=False).fit(checkerboard())
    assert model.history_ is not None
    assert model.history_.best is None


def test_validation_users_are_not_trained_on(learned: Recommender) -> None:
    assert learned.history_ is not None
    best = learned.history_.best_epoch
    assert best is not None
    assert best["validation"]["ndcg@100"] == max(e["validation"]["ndcg@100"] for e in learned.history_.epochs)
    model = Recommender(**FAMILIES["learned"], progress=False)
    data = Interactions.from_frame(checkerboard())
    trained, held = hold_out(data, model.options.validation, model.seed)
    assert held is not None
    assert len(held.users) == 20
    assert not set(trained.users) & set(held.users)
    assert len(trained.users) + len(held.users) == 120


def test_small_data_gets_a_small_network_by_default() -> None:
    model = Recommender(dropout="learned", epochs=1, validation=0, latent=30, progress=False).fit(checkerboard())
    assert model.settings_ is not None
    assert (model.settings_.hidden, model.settings_.latent, model.settings_.batch) == (18, 30, 16)
    whole = method("sivae-lbd", hidden=40, epochs=1)
    model = Recommender(whole, validation=0, progress=False).fit(checkerboard())
    assert model.settings_ == whole


def test_catalogue_of_one_item_can_be_fitted() -> None:
    frame = pl.DataFrame({"user_id": [1, 2], "item_id": ["only", "only"]})
    for arguments in (
        {"dropout": "learned", "epochs": 1, "validation": 0},
        {"method": "ease"},
        {"method": "popularity"},
    ):
        model = Recommender(**arguments, progress=False).fit(frame)  # type: ignore[arg-type]
        assert len(model.recommend([1])) == 0
        assert model.recommend([1], filter_viewed=False)["item_id"].to_list() == ["only"]


# ----------------------------------------------------------------------------------------------------------- evaluation


def test_evaluate_holds_out_a_fifth_of_new_users_and_later_items_of_known_users(learned: Recommender) -> None:
    new = checkerboard(150).filter(pl.col("user_id") >= 120)
    report = learned.evaluate(new)
    assert report.users == 30
    assert report.mean["recall@20"] > 0.95
    data = Interactions.from_frame(new, items=learned.items_)
    assert learned.evaluate(data).mean == report.mean
    assert learned.evaluate(fold_in(data, seed=0)).mean == report.mean

    had = set(checkerboard().filter(pl.col("user_id") == 0)["item_id"])
    later = next(item for item in learned.items_ if item[0] == "a" and item not in had)
    old = pl.DataFrame({"user_id": [0, 0, 1], "item_id": [later, next(iter(had)), "c00"]})
    found = learned.evaluate(old, recall=(3,), ndcg=())
    assert found.users == 2
    assert found.per_user["recall@3"].tolist() == [1.0, 0.0]  # the rest of one's group, and something foreign
    assert learned.evaluate(pl.concat([old, new])).users == 32


@pytest.mark.process
def test_learned_model_finds_the_tastes_of_a_generated_shop() -> None:
    shop = generate_shop(users=900, items=180, groups=6, seed=7)
    data = Interactions.from_frame(shop.interactions)
    test = fold_in(data.select(np.arange(750, 900)))
    known = data.select(np.arange(750))
    model = Recommender(dropout="learned", epochs=18, progress=False).fit(known)
    truth = torch.from_numpy(shop.scores(test.users, data.items)).float()
    oracle = evaluate(lambda batch: truth[batch.number], test).mean["ndcg@100"]
    found = model.evaluate(test).mean["ndcg@100"]
    popular = Recommender("popularity").fit(known).evaluate(test).mean["ndcg@100"]
    assert found > 0.88 * oracle
    assert found > 1.5 * popular
