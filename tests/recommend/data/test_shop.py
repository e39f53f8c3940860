"""Likes of the generated shop follow its probabilities, and no ranking beats its oracle."""

import numpy as np
import polars as pl
import pytest
import torch

from lbdrop.errors import DropoutError
from lbdrop.metrics.ranking import mean_over_users, ndcg_at_k, recall_at_k, top_items
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.shop import GROUPS, Shop, generate_shop
from lbdrop.recommend.data.splits import HeldOut, Split, split_users


@pytest.fixture(scope="module")
def shop() -> Shop:
    return generate_shop(users=1500, items=240, seed=3)


@pytest.fixture(scope="module")
def split(shop: Shop) -> Split:
    return split_users(Interactions.from_frame(shop.interactions, min_user_items=5), 400)


def quality(scores: np.ndarray, users: HeldOut) -> tuple[float, float]:
    seen, wanted = (torch.tensor(part.toarray() > 0) for part in users[:2])
    ranked = top_items(torch.tensor(scores), seen, 100)
    return float(mean_over_users(recall_at_k(ranked, wanted, 20)).mean), float(
        mean_over_users(ndcg_at_k(ranked, wanted, 100)).mean
    )


def test_same_seed_gives_the_same_shop(shop: Shop) -> None:
    again, other = generate_shop(1500, 240, 3), generate_shop(1500, 240, 4)
    assert again.interactions.equals(shop.interactions)
    assert not other.interactions.equals(shop.interactions)


def test_ids_are_sorted_titles_unique_and_no_item_liked_twice(shop: Shop) -> None:
    assert shop.items["item_id"].is_sorted()
    assert shop.items["title"].n_unique() == len(shop.items) == 240
    assert set(shop.items["group"]) == set(GROUPS)
    assert not shop.interactions.is_duplicated().any()
    assert generate_shop(3, 12 * 6 * 24 * 2).items["title"].n_unique() == 12 * 6 * 24 * 2


def test_probabilities_are_the_mixture_of_tastes_and_popularity(shop: Shop) -> None:
    assert np.allclose(shop.probabilities.sum(1), 1)
    counts = shop.tastes.group_by("user_id").len()["len"]
    assert len(counts) == 1500
    assert set(counts) == {1, 2, 3}
    group = shop.items["group"]
    for user in (0, 7):
        tastes = dict(shop.tastes.filter(pl.col("user_id") == user).select("group", "share").iter_rows())
        for name in GROUPS:
            of_group = shop.probabilities[user][(group == name).to_numpy()].sum()
            assert 0.9 * tastes.get(name, 0) <= of_group <= 0.9 * tastes.get(name, 0) + 0.1


def test_likes_follow_the_probabilities() -> None:
    # One like a user: the share of users who like an item is the mean of its probabilities.
    shop = generate_shop(users=20_000, items=24, likes=1, seed=1)
    shares = Interactions.from_frame(shop.interactions).rows.mean(0)
    expected = shop.probabilities.mean(0)
    error = np.sqrt((shop.probabilities * (1 - shop.probabilities)).sum(0)) / 20_000
    assert len(shop.interactions) == 20_000
    assert (np.abs(shares - expected) < 4.5 * error).all()


def test_best_items_have_the_largest_probabilities(shop: Shop) -> None:
    best = shop.best_items(5, 3)
    assert best["probability"].to_list() == sorted(shop.probabilities[5].tolist(), reverse=True)[:3]
    numbers = [shop.items["item_id"].to_list().index(name) for name in best["item_id"]]
    assert shop.probabilities[5, numbers].tolist() == best["probability"].to_list()


def test_oracle_beats_popularity_and_a_recommender_comes_close(shop: Shop, split: Split) -> None:
    oracle = quality(shop.scores(split.test.users, split.train.items), split.test)
    popular = quality(np.tile(split.train.rows.sum(0), (400, 1)), split.test)
    # EASE: a ridge regression of each item on all others, which knows nothing of groups.
    gram = (split.train.rows.T @ split.train.rows).toarray() + 50 * np.eye(len(split.train.items))
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    learned = quality(split.test.fold_in @ weights, split.test)
    for best, found, dull in zip(oracle, learned, popular, strict=True):
        assert best > 2 * dull
        assert 0.85 * best < found < best


def test_no_other_ranking_beats_the_oracle(shop: Shop, split: Split) -> None:
    truth = shop.scores(split.test.users, split.train.items)
    best = quality(truth, split.test)
    shuffled = truth * np.random.default_rng(0).gamma(2, size=truth.shape)
    assert all(a > b for a, b in zip(best, quality(shuffled, split.test), strict=True))


@pytest.mark.parametrize(
    "wrong", [{"users": 0}, {"groups": 13}, {"items": 12}, {"likes": 0}, {"noise": 1.5}, {"skew": -1.0}]
)
def test_impossible_shop_is_an_error(wrong: dict[str, float]) -> None:
    with pytest.raises(DropoutError, match="shop: want"):
        generate_shop(**wrong)  # pyright: ignore


def test_smallest_shop_has_one_group_and_two_items() -> None:
    shop = generate_shop(users=4, items=2, groups=1, noise=0.0)
    assert shop.interactions["user_id"].to_list() == [0, 1, 2, 3]  # half of the items is one
