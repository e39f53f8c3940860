"""Every method behind the same interface, for known and new users, saved, loaded and fitted again."""

from pathlib import Path

import polars as pl
import pytest
import torch
from helpers.checkerboard import FAMILIES, GROUPS, SIZE, checkerboard, fitted, group_of, slim_in_one_thread

from lbdrop.recommend import Recommender


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "popularity"])
def test_known_users_get_the_rest_of_their_group(family: str, models: dict[str, Recommender]) -> None:
    best = models[family].recommend(range(30), k=3)
    assert len(best) == 90
    assert all(group_of(item) == user % GROUPS for user, item in best.select("user_id", "item_id").rows())


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "popularity"])
def test_new_users_get_the_rest_of_their_group_by_their_history(family: str, models: dict[str, Recommender]) -> None:
    histories = pl.DataFrame(
        {"user_id": ["new"] * 4 + ["other"] * 3, "item_id": ["b00", "b03", "b07", "b11", "c01", "c02", "c03"]}
    )
    best = models[family].recommend(histories, k=5)
    assert {(user, group_of(item)) for user, item in best.select("user_id", "item_id").rows()} == {
        ("new", 1),
        ("other", 2),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_viewed_items_are_recommended_only_without_the_filter(family: str, models: dict[str, Recommender]) -> None:
    model = models[family]
    own = set(checkerboard().filter(pl.col("user_id") == 4)["item_id"])
    assert not own & set(model.recommend([4], k=GROUPS * SIZE)["item_id"])
    assert own <= set(model.recommend([4], k=GROUPS * SIZE, filter_viewed=False)["item_id"])


@pytest.mark.parametrize("family", FAMILIES)
def test_items_to_recommend_limit_the_recommendations(family: str, models: dict[str, Recommender]) -> None:
    chosen = ["a01", "b02", "c03", "c04", "unheard of"]
    best = models[family].recommend([0, 1], k=10, filter_viewed=False, items_to_recommend=chosen)
    assert set(best["item_id"]) == set(chosen[:4])
    assert len(best) == 8


@pytest.mark.parametrize("family", FAMILIES)
def test_excluded_items_are_never_recommended(family: str, models: dict[str, Recommender]) -> None:
    model, banned = models[family], ["a01", "a02", "b07", "unheard of"]
    every = model.recommend([0], k=99)
    found = model.recommend([0], k=99, items_to_exclude=pl.DataFrame({"item_id": banned}))
    assert set(found["item_id"]) == set(every["item_id"]) - set(banned)
    chosen = model.recommend([0], k=9, filter_viewed=False, items_to_recommend=["a01", "c05"], items_to_exclude=banned)
    assert chosen["item_id"].to_list() == ["c05"]


@pytest.mark.parametrize("family", FAMILIES)
def test_recommendations_are_sorted_ranked_and_at_most_the_catalogue(
    family: str, models: dict[str, Recommender]
) -> None:
    best = models[family].recommend([7, 5], k=1000)
    assert best["user_id"].unique(maintain_order=True).to_list() == [7, 5]
    for _, rows in best.group_by("user_id"):
        assert rows["rank"].to_list() == list(range(1, GROUPS * SIZE - 9 + 1))
        assert rows["score"].is_sorted(descending=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_loaded_model_equals_the_saved_one(family: str, models: dict[str, Recommender], tmp_path: Path) -> None:
    model = models[family]
    model.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    histories = pl.DataFrame({"user_id": [1, 1, 2], "item_id": ["a00", "b01", "c05"]})
    for users in (None, histories):
        assert loaded.recommend(users, k=7).equals(model.recommend(users, k=7))
    assert loaded.settings_ == model.settings_
    assert loaded.history_ == model.history_
    assert repr(loaded) == repr(model)
    assert loaded.explain(3, "a01").equals(model.explain(3, "a01"))
    new = checkerboard(150).filter(pl.col("user_id") >= 120)
    assert loaded.evaluate(new).record() == model.evaluate(new).record()
    assert all(path.suffix in (".json", ".parquet", ".safetensors") for path in (tmp_path / "model").iterdir())


@pytest.mark.parametrize("family", FAMILIES)
def test_same_seed_gives_the_same_model(family: str, models: dict[str, Recommender]) -> None:
    state = torch.get_rng_state()
    again = fitted(**FAMILIES[family])
    assert torch.equal(torch.get_rng_state(), state)
    before = models[family].recommend(k=5)
    assert again.recommend(k=5).equals(before)
    with slim_in_one_thread():
        again.fit(checkerboard())
    assert again.recommend(k=5).equals(before)


def test_another_seed_gives_another_model(learned: Recommender) -> None:
    other = fitted(**FAMILIES["learned"], seed=1)
    assert not other.recommend(k=5).equals(learned.recommend(k=5))


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "popularity"])
def test_similar_items_are_of_the_same_group(family: str) -> None:
    longer = {"epochs": 10, "validation": 0} if "epochs" in FAMILIES[family] and family != "experts" else {}
    found = fitted(**FAMILIES[family] | longer).similar_items(["a00", "c05"], k=4)
    assert found.columns == ["item_id", "similar_item_id", "score", "rank"]
    assert len(found) == 8
    assert all(one != other and one[0] == other[0] for one, other, *_ in found.rows())


@pytest.mark.parametrize("family", FAMILIES)
def test_effect_is_the_change_of_the_score_without_the_item(family: str, models: dict[str, Recommender]) -> None:
    model = models[family]
    history, target = ["a00", "a04", "b07"], "a01"

    def score(items: list[str]) -> float:
        frame = pl.DataFrame({"user_id": [0] * len(items), "item_id": items})
        return model.recommend(frame, k=100, filter_viewed=False).filter(item_id=target)["score"].item()

    found = model.explain(history, target)
    assert found["effect"].is_sorted(descending=True)
    for item, effect in found.select("item_id", "effect").rows():
        rest = [other for other in history if other != item]
        assert effect == pytest.approx(score(history) - score(rest), abs=2e-5)
    assert found["share"].sum() == pytest.approx(0.0 if family == "popularity" else 1.0)


def test_items_of_the_same_group_support_a_recommendation(learned: Recommender) -> None:
    found = learned.explain(pl.DataFrame({"item_id": ["a00", "a04", "b07"]}), "a01")
    assert found["item_id"].to_list()[-1] == "b07"
    assert found["effect"][-1] < 0 < found["effect"][0]


def test_effects_of_ease_are_its_weights(models: dict[str, Recommender]) -> None:
    model = models["ease"]
    found = model.explain(["a00", "b07"], "a01")
    numbers = {item: number for number, item in enumerate(model.items_)}
    weights = model.model_.state["weights"]  # type: ignore[union-attr]
    for item, effect in found.select("item_id", "effect").rows():
        assert effect == pytest.approx(float(weights[numbers[item], numbers["a01"]]), abs=1e-6)
