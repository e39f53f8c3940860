"""The recommender: every method behind the same verbs, unseen users, explanations, and a folder that brings it back."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

from lbdrop.errors import DropoutError
from lbdrop.recommend import Interactions, Recommender, method
from lbdrop.recommend.evaluate import evaluate
from lbdrop.recommend.protocol import fold_in
from lbdrop.recommend.rows import Rows
from lbdrop.recommend.shop import generate_shop
from lbdrop.recommend.validation import hold_out

NETWORK: dict[str, Any] = {"hidden": 24, "latent": 8, "batch": 20, "lr": 0.01, "epochs": 8, "validation": 20}
FAMILIES: dict[str, dict[str, Any]] = {
    "learned": {"method": "sivae-lbd", **NETWORK},
    "default": {"dropout": "learned", **NETWORK | {"layers": 2, "epochs": 40}},
    "fixed": {"dropout": "fixed", **NETWORK},
    "recvae": {"method": "recvae", **NETWORK | {"layers": 2}},
    "ease": {"method": "ease", "regularisation": 10.0},
    "slim": {"method": "slim"},
    "wmf": {"method": "wmf", "factors": 4, "regularisation": 1.0},
    "popularity": {"method": "popularity"},
}
GROUPS, SIZE = 3, 12


def group_of(item: str) -> int:
    return "abc".index(item[0])


def checkerboard(users: int = 120) -> pl.DataFrame:
    """User u has nine of the twelve items of group u mod 3, and nothing else."""
    random = np.random.default_rng(0)
    rows = [
        (user, f"{'abc'[user % GROUPS]}{item:02d}")
        for user in range(users)
        for item in random.choice(SIZE, 9, replace=False)
    ]
    return pl.DataFrame(rows, schema=["user_id", "item_id"], orient="row")


def fitted(**arguments: Any) -> Recommender:
    return Recommender(**arguments, progress=False).fit(checkerboard())


@pytest.fixture(scope="module", autouse=True)
def _slim_in_one_thread() -> Iterator[None]:
    """With several, irspack's SLIM gives the same weights only to its tolerance: the order of its updates differs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IRSPACK_NUM_THREADS_DEFAULT", "1")
        yield


@pytest.fixture(scope="module")
def models(_slim_in_one_thread: None) -> dict[str, Recommender]:
    return {name: fitted(**arguments) for name, arguments in FAMILIES.items()}


@pytest.fixture(scope="module")
def learned(models: dict[str, Recommender]) -> Recommender:
    return models["learned"]


# ------------------------------------------------------------------------------------------------ what every family does


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "popularity"])
def test_known_users_get_the_rest_of_their_group(family: str, models: dict[str, Recommender]) -> None:
    best = models[family].recommend(range(30), k=3)
    assert len(best) == 90
    assert all(group_of(item) == user % GROUPS for user, item in best.select("user_id", "item_id").rows())


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "popularity"])
def test_unseen_users_get_the_rest_of_their_group_by_their_history(family: str, models: dict[str, Recommender]) -> None:
    histories = pl.DataFrame(
        {"user_id": ["new"] * 4 + ["other"] * 3, "item_id": ["b00", "b03", "b07", "b11", "c01", "c02", "c03"]}
    )
    best = models[family].recommend(histories, k=5)
    assert {(user, group_of(item)) for user, item in best.select("user_id", "item_id").rows()} == {
        ("new", 1),
        ("other", 2),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_user_has_is_recommended_only_if_asked_for(family: str, models: dict[str, Recommender]) -> None:
    model = models[family]
    own = set(checkerboard().filter(pl.col("user_id") == 4)["item_id"])
    assert not own & set(model.recommend([4], k=GROUPS * SIZE)["item_id"])
    assert own <= set(model.recommend([4], k=GROUPS * SIZE, filter_viewed=False)["item_id"])


@pytest.mark.parametrize("family", FAMILIES)
def test_only_chosen_items_are_recommended(family: str, models: dict[str, Recommender]) -> None:
    chosen = ["a01", "b02", "c03", "c04", "unheard of"]
    best = models[family].recommend([0, 1], k=10, filter_viewed=False, items_to_recommend=chosen)
    assert set(best["item_id"]) == set(chosen[:4])
    assert len(best) == 8


@pytest.mark.parametrize("family", FAMILIES)
def test_a_table_is_sorted_ranked_and_no_longer_than_the_catalogue(family: str, models: dict[str, Recommender]) -> None:
    best = models[family].recommend([7, 5], k=1000)
    assert best["user_id"].unique(maintain_order=True).to_list() == [7, 5]
    for _, rows in best.group_by("user_id"):
        assert rows["rank"].to_list() == list(range(1, GROUPS * SIZE - 9 + 1))
        assert rows["score"].is_sorted(descending=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_saving_and_loading_changes_nothing(family: str, models: dict[str, Recommender], tmp_path: Path) -> None:
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
def test_fitting_again_with_the_same_seed_gives_the_same_model(family: str, models: dict[str, Recommender]) -> None:
    state = torch.get_rng_state()
    again = fitted(**FAMILIES[family])
    assert torch.equal(torch.get_rng_state(), state)
    before = models[family].recommend(k=5)
    assert again.recommend(k=5).equals(before)
    assert again.fit(checkerboard()).recommend(k=5).equals(before)


def test_another_seed_gives_another_model(learned: Recommender) -> None:
    other = fitted(**FAMILIES["learned"], seed=1)
    assert not other.recommend(k=5).equals(learned.recommend(k=5))


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "popularity"])
def test_similar_items_are_of_the_same_group(family: str) -> None:
    longer = {"epochs": 25, "validation": 0} if "epochs" in FAMILIES[family] else {}
    found = fitted(**FAMILIES[family] | longer).similar_items(["a00", "c05"], k=4)
    assert found.columns == ["item_id", "similar_item_id", "score", "rank"]
    assert len(found) == 8
    assert all(one != other and one[0] == other[0] for one, other, *_ in found.rows())


@pytest.mark.parametrize("family", FAMILIES)
def test_an_effect_is_the_change_of_the_score_without_that_item(family: str, models: dict[str, Recommender]) -> None:
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


def test_items_of_the_own_group_carry_a_recommendation(learned: Recommender) -> None:
    found = learned.explain(pl.DataFrame({"item_id": ["a00", "a04", "b07"]}), "a01")
    assert found["item_id"].to_list()[-1] == "b07"
    assert found["effect"][-1] < 0 < found["effect"][0]


def test_eases_effects_are_its_weights(models: dict[str, Recommender]) -> None:
    model = models["ease"]
    found = model.explain(["a00", "b07"], "a01")
    numbers = {item: number for number, item in enumerate(model.items_)}
    weights = model.model_.state["weights"]  # type: ignore[union-attr]
    for item, effect in found.select("item_id", "effect").rows():
        assert effect == pytest.approx(float(weights[numbers[item], numbers["a01"]]), abs=1e-6)


# --------------------------------------------------------------------------------------------------- users and tables


def test_tables_come_back_in_the_library_of_the_question() -> None:
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
    many = learned.recommend([0], k=100, filter_viewed=False, samples=2000)
    generator = torch.Generator().manual_seed(1)
    expected = model.scores(Rows.from_csr(rows.rows).batch([0]), samples=2000, generator=generator)[0]  # type: ignore[call-arg]
    for item, score in many.select("item_id", "score").rows():
        place = learned.items_.index_of(item)
        assert place is not None
        assert score == pytest.approx(float(expected[place]), abs=0.1)


def test_a_users_recommendations_do_not_depend_on_who_else_is_asked_about(learned: Recommender) -> None:
    alone = learned.recommend([17], k=5)
    among = learned.recommend(range(120), k=5).filter(user_id=17)
    assert alone["item_id"].equals(among["item_id"])
    for name in ("score", "uncertainty"):
        assert np.allclose(alone[name], among[name], atol=1e-5)


def test_unknown_users_are_told_to_bring_their_history(learned: Recommender) -> None:
    with pytest.raises(DropoutError, match="1 unknown, the first 999; pass their histories"):
        learned.recommend([3, 999])


@pytest.mark.parametrize("family", ["learned", "ease", "popularity"])
def test_users_without_a_known_item_get_what_is_popular(family: str, models: dict[str, Recommender]) -> None:
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
        (lambda m: m.recommend(pl.DataFrame({"user_id": [1]})), "item_id"),
        (lambda m: m.similar_items(["x"]), "1 unknown, the first 'x'"),
        (lambda m: m.explain(0, "x"), "1 unknown, the first 'x'"),
        (lambda m: m.explain(["x"], "a00"), "at least one item that the model knows"),
        (lambda m: m.explain(checkerboard().head(12), "a00"), "want that of one user, got 2"),
        (lambda m: m.evaluate(checkerboard()), "want users with items to find, got none among 120"),
    ],
)  # fmt: skip
def test_wrong_questions_are_answered_in_one_line(ask: Any, words: str, learned: Recommender) -> None:
    with pytest.raises(DropoutError, match=words) as error:
        ask(learned)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "nothing"}, "method: want one of dae"),
        ({"dropout": "some"}, "dropout: want one of learned"),
        ({"method": "ease", "dropout": "learned"}, "which has no masks"),
        ({"method": "ease", "hidden": 3}, "ease: no hidden; there are regularisation, dtype"),
        ({"hiden": 3}, "settings: no hiden"),
        ({"hidden": "many"}, "hidden: want a whole number, got 'many'"),
        ({"validation": 1.5}, "validation: want a share below 1"),
    ],
)
def test_wrong_settings_are_told_at_once(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(DropoutError, match=words):
        Recommender(**arguments)


def test_nothing_can_be_asked_before_fit() -> None:
    with pytest.raises(DropoutError, match="call fit"):
        Recommender("ease").recommend([0])


def test_popularity_knows_no_likeness_and_linear_methods_no_rates(models: dict[str, Recommender]) -> None:
    with pytest.raises(DropoutError, match="knows items apart"):
        models["popularity"].similar_items(["a00"])
    with pytest.raises(DropoutError, match="want a method with masks"):
        models["ease"].rates()


def test_rates_stand_beside_popularity(learned: Recommender) -> None:
    rates = learned.rates()
    counts = checkerboard().group_by("item_id").len().sort("item_id")
    assert rates["item_id"].equals(counts["item_id"])
    assert rates["likes"].to_list() == counts["len"].to_list()
    keep = learned.model_.keep  # type: ignore[union-attr]
    assert np.allclose(rates["rate"], 1 - keep.numpy())
    assert rates["rate"].n_unique() > 1


# ------------------------------------------------------------------------------------------------------------ training


def test_too_few_users_to_stop_by_are_said_and_all_epochs_trained() -> None:
    model = Recommender(epochs=2, progress=False)
    with pytest.warns(UserWarning, match="want 20 held-out users with five items, got 12 among 12 of 120 users"):
        model.fit(checkerboard())
    assert model.history_ is not None
    assert model.history_.best is None
    assert len(model.history_.epochs) == 2


def test_validation_of_nobody_trains_on_everybody_without_a_word() -> None:
    model = Recommender(epochs=1, validation=0, progress=False).fit(checkerboard())
    assert model.history_ is not None
    assert model.history_.best is None


def test_training_stops_by_validation_users_it_never_saw(learned: Recommender) -> None:
    assert learned.history_ is not None
    best = learned.history_.best_epoch
    assert best is not None
    assert best["validation"]["ndcg@100"] == max(e["validation"]["ndcg@100"] for e in learned.history_.epochs)
    model = Recommender(**FAMILIES["learned"], progress=False)
    data = Interactions.from_frame(checkerboard())
    trained, held = hold_out(data, model.validation, model.seed)
    assert held is not None
    assert len(held.users) == 20
    assert not set(trained.users) & set(held.users)
    assert len(trained.users) + len(held.users) == 120


def test_small_data_gets_a_small_network_unless_told() -> None:
    model = Recommender(epochs=1, validation=0, latent=30, progress=False).fit(checkerboard())
    assert model.settings_ is not None
    assert (model.settings_.hidden, model.settings_.latent, model.settings_.batch) == (18, 30, 16)
    whole = method("sivae-lbd", hidden=40, epochs=1)
    model = Recommender(whole, validation=0, progress=False).fit(checkerboard())
    assert model.settings_ == whole


def test_a_catalogue_of_one_item_can_be_fitted_and_asked() -> None:
    frame = pl.DataFrame({"user_id": [1, 2], "item_id": ["only", "only"]})
    for arguments in ({"epochs": 1, "validation": 0}, {"method": "ease"}, {"method": "popularity"}):
        model = Recommender(**arguments, progress=False).fit(frame)  # type: ignore[arg-type]
        assert len(model.recommend([1])) == 0
        assert model.recommend([1], filter_viewed=False)["item_id"].to_list() == ["only"]


# ---------------------------------------------------------------------------------------------------------- evaluation


def test_new_users_are_measured_by_a_fifth_and_known_users_by_what_they_lacked(learned: Recommender) -> None:
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


def test_the_learned_model_finds_a_generated_shops_tastes() -> None:
    shop = generate_shop(users=1200, items=180, groups=6, seed=7)
    data = Interactions.from_frame(shop.interactions)
    test = fold_in(data.select(np.arange(1000, 1200)))
    known = data.select(np.arange(1000))
    model = Recommender(dropout="learned", epochs=25, progress=False).fit(known)
    truth = torch.from_numpy(shop.scores(test.users, data.items)).float()
    oracle = evaluate(lambda batch: truth[batch.number], test).mean["ndcg@100"]
    found = model.evaluate(test).mean["ndcg@100"]
    popular = Recommender("popularity").fit(known).evaluate(test).mean["ndcg@100"]
    assert found > 0.88 * oracle
    assert found > 1.5 * popular


# ------------------------------------------------------------------------------------------------- files and streaming


def test_scores_of_everybody_go_to_one_file_whatever_the_batches(
    learned: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbdrop.recommend.streaming.ROWS", 100)  # six parts
    path = tmp_path / "new" / "scores.parquet"
    assert learned.score_to(path, k=5, batch=7) == 600
    found, expected = pl.read_parquet(path), learned.recommend(k=5)
    assert found.select("user_id", "item_id", "rank").equals(expected.select("user_id", "item_id", "rank"))
    assert np.allclose(found["score"], expected["score"], atol=1e-5)
    assert [each.name for each in path.parent.iterdir()] == ["scores.parquet"]


def test_a_stream_that_breaks_leaves_the_old_file_whole(
    learned: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scores.parquet"
    learned.score_to(path, [0], k=2)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(OSError, match="no space"):
        learned.score_to(path, k=5)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["scores.parquet"]


def test_without_histories_nobody_is_known_but_histories_are_answered(learned: Recommender, tmp_path: Path) -> None:
    learned.save(tmp_path / "model", histories=False)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "items.parquet",
        "model.json",
        "weights.safetensors",
    ]
    loaded = Recommender.load(tmp_path / "model")
    with pytest.raises(DropoutError, match="saved without"):
        loaded.recommend([0])
    history = checkerboard().head(9)
    assert loaded.recommend(history, k=3).equals(learned.recommend(history, k=3))


def test_every_method_can_be_saved_and_loaded_after_an_epoch(tmp_path: Path) -> None:
    small: dict[str, Any] = {"hidden": 8, "latent": 4, "epochs": 1, "validation": 0, "progress": False}
    for name, more in {"vae-iaf": {"flow_hidden": 8}, "vae-vamp-drop": {}, "cdae": {}, "dae": {}, "sivae-gaussian": {},
                       "h-vamp": {}}.items():  # fmt: skip
        model = Recommender(name, **small, **more).fit(checkerboard())
        model.save(tmp_path / name)
        assert Recommender.load(tmp_path / name).recommend([0, 1], k=3).equals(model.recommend([0, 1], k=3)), name


def test_a_model_is_replaced_whole_and_other_folders_are_left_alone(
    models: dict[str, Recommender], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models["ease"].save(tmp_path / "model")
    models["popularity"].save(tmp_path / "model")
    assert "popularity" in repr(Recommender.load(tmp_path / "model"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(DropoutError, match="got something else"):
        models["ease"].save(tmp_path / "mine")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(OSError, match="no space"):
        models["ease"].save(tmp_path / "model")
    assert "popularity" in repr(Recommender.load(tmp_path / "model"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "model"]


def edit(folder: Path, change: Any) -> None:
    header = json.loads((folder / "model.json").read_text())
    change(header)
    (folder / "model.json").write_text(json.dumps(header))


def reshaped(folder: Path) -> None:
    tensors = load_file(folder / "weights.safetensors")
    tensors["decoder.out.bias"] = tensors["decoder.out.bias"][:-1].clone()
    save_file(tensors, folder / "weights.safetensors")


def renamed(folder: Path) -> None:
    tensors = load_file(folder / "weights.safetensors")
    tensors["stranger"] = tensors.pop("decoder.out.bias")
    save_file(tensors, folder / "weights.safetensors")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda f: shutil.rmtree(f), "got no model.json there"),
        (lambda f: (f / "weights.safetensors").unlink(), "got no weights.safetensors there"),
        (lambda f: (f / "items.parquet").unlink(), "got no items.parquet there"),
        (lambda f: (f / "users.parquet").unlink(), "got no users.parquet there"),
        (lambda f: (f / "histories.safetensors").write_bytes(b"half"), "histories.safetensors: cannot be read"),
        (lambda f: (f / "weights.safetensors").write_bytes(b"half"), "weights.safetensors: cannot be read"),
        (lambda f: (f / "items.parquet").write_bytes(b"half"), "items.parquet: cannot be read"),
        (lambda f: (f / "model.json").write_text("{"), "model.json: want JSON"),
        (lambda f: (f / "model.json").write_text("[]"), "want format 1, got 'list'"),
        (lambda f: edit(f, lambda h: h.update(format=2)), "want format 1, got 2"),
        (lambda f: edit(f, lambda h: h.pop("seed")), "want seed as it was saved"),
        (lambda f: edit(f, lambda h: h.update(items=7)), "36 items where model.json says 7"),
        (lambda f: edit(f, lambda h: h["settings"].update(hidden="x")), "model.json: hidden: want a whole number"),
        (lambda f: edit(f, lambda h: h["settings"].update(hidden=48)), "want .* of shape .*48"),
        (lambda f: edit(f, lambda h: h["settings"].update(hidden=10**12)), "want .* of shape .*1000000000000|overflowed"),
        (lambda f: edit(f, lambda h: h["settings"].update(dropout="all")), "dropout: want one of none"),
        (lambda f: edit(f, lambda h: h["settings"].update(magic=1)), "model.json: settings: no magic"),
        (lambda f: edit(f, lambda h: h["history"].update(magic=1)), "model.json: .*magic"),
        (lambda f: edit(f, lambda h: h.update(method="ease")), "model.json: ease: no"),
        (reshaped, "want decoder.out.bias of shape \\(36,\\), got \\(35,\\)"),
        (renamed, "want the tensor decoder.out.bias, got none"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_one_line_that_names_what_is_wrong(
    harm: Any, words: str, learned: Recommender, tmp_path: Path
) -> None:
    learned.save(tmp_path / "model")
    harm(tmp_path / "model")
    with pytest.raises(DropoutError, match=words) as error:
        Recommender.load(tmp_path / "model")
    assert "\n" not in str(error.value)
