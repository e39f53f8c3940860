"""``Recommender()`` with nothing set: what it chooses, says, refuses and saves."""

import warnings
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch

from lbdrop.errors import DropoutError
from lbdrop.recommend import Recommender
from lbdrop.recommend.data.shop import Shop, generate_shop
from lbdrop.recommend.linear.closed_form import EDLAE
from lbdrop.recommend.model.product import Product


@pytest.fixture(scope="module")
def shop() -> Shop:
    return generate_shop(users=300, items=60, groups=4)


@pytest.fixture(scope="module")
def together(shop: Shop) -> Recommender:
    return Recommender("experts", epochs=4, progress=False).fit(shop.interactions)


def test_default_is_a_linear_model_with_or_without_a_network(shop: Shop) -> None:
    model = Recommender(progress=False).fit(shop.interactions)
    assert isinstance(model.model_, Product | EDLAE)
    assert model.choice.method == ("experts" if isinstance(model.model_, Product) else "blend")
    assert model.reason_ is not None
    assert "NDCG@100" in model.reason_


def test_second_fit_chooses_anew(shop: Shop) -> None:
    model = Recommender(progress=False, budget=1e-3).fit(shop.interactions)
    assert model.choice.method == "blend"
    model.options = replace(model.options, budget=None)
    assert "no time" not in (model.fit(shop.interactions).reason_ or "")


def test_choice_is_said_in_one_line(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    Recommender(budget=1e-3).fit(shop.interactions)
    assert capsys.readouterr().err.strip().splitlines() == [
        "blend: the linear model alone: 0.001 s are no time for a network"
    ]


def test_without_validation_users_the_linear_model_is_used(shop: Shop) -> None:
    model = Recommender(validation=0, progress=False).fit(shop.interactions)
    assert model.choice.method == "edlae"
    assert "no validation users" in (model.reason_ or "")


def test_tiny_data_get_the_linear_model() -> None:
    frame = pl.DataFrame({"user_id": [1, 1, 2, 2, 3], "item_id": ["a", "b", "a", "c", "b"]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Recommender(progress=False).fit(frame)
    assert model.choice.method == "edlae"
    assert len(model.recommend([1], k=1)) == 1


def test_settings_of_the_network_mean_that_one_is_wanted(together: Recommender) -> None:
    assert Recommender(epochs=4).choice.method == Recommender("auto", epochs=4).choice.method == "experts"
    assert together.settings_ is not None
    assert together.settings_.epochs == 4


@pytest.mark.parametrize("method", ["edlae", "vae", "ease", "sivae-lbd"])
def test_one_word_overrides_the_choice(method: str) -> None:
    assert Recommender(method).choice.method == method


def test_budget_is_refused_where_it_would_do_nothing() -> None:
    with pytest.raises(DropoutError, match="budget: want it without method"):
        Recommender("ease", budget=3)
    with pytest.raises(DropoutError, match="budget: want more than 0"):
        Recommender(budget=0)


def test_experts_without_validation_users_are_refused(shop: Shop) -> None:
    with pytest.raises(DropoutError, match="experts: want validation users"):
        Recommender("experts", validation=0, progress=False).fit(shop.interactions)


def test_saved_product_gives_the_same_bits(together: Recommender, tmp_path: Path) -> None:
    together.save(tmp_path / "model")
    again = Recommender.load(tmp_path / "model", device="cpu")
    assert again.choice.method == "experts"
    assert again.recommend([0, 1], k=5).equals(together.recommend([0, 1], k=5))
    assert again.explain(0, together.items_[3]).equals(together.explain(0, together.items_[3]))


@pytest.mark.parametrize("method", ["edlae", "blend"])
def test_saved_model_of_a_large_catalogue_gives_the_same_bits(method: str, shop: Shop, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Recommender(method, max_items=10, progress=False).fit(shop.interactions)
    assert isinstance(model.model_, EDLAE)
    assert model.model_.state["targets"].dtype == torch.int64
    model.save(tmp_path / "model")
    again = Recommender.load(tmp_path / "model", device="cpu")
    assert again.recommend([0], k=5).equals(model.recommend([0], k=5))
    assert again.similar_items([model.items_[3]], k=3).equals(model.similar_items([model.items_[3]], k=3))


def test_parquet_scores_are_those_of_recommend(together: Recommender, tmp_path: Path) -> None:
    together.score_to(tmp_path / "scores.parquet", k=4)
    assert pl.read_parquet(tmp_path / "scores.parquet").equals(together.recommend(k=4))


def test_product_says_its_uncertainty_rates_neighbours_and_reasons(together: Recommender) -> None:
    best = together.recommend([0], k=3)
    assert (best["uncertainty"] > 0).all()
    assert together.rates().columns == ["item_id", "rate_linear", "rate_network", "likes"]
    assert len(together.similar_items([together.items_[0]], k=4)) == 4
    why = together.explain(0, best["item_id"][0])
    assert why.columns == ["item_id", "effect", "share", "through_linear", "through_network"]
    assert (why["effect"] - why["through_linear"] - why["through_network"]).abs().max() < 1e-9  # pyright: ignore[reportOperatorIssue]
