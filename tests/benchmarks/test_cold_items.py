"""Movies taken out of training are ranked by their genres and years, and the rules beside them are what they say."""

from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.cold_items import compared, movies, rules


def write(path: Path) -> Path:
    """Three genres, and users who each like one of them; the genre 2 has the most users."""
    random = np.random.default_rng(0)
    pairs = [
        (user, item * 3 + genre)
        for user in range(1300)
        for genre in (0 if user < 200 else 1 if user < 500 else 2,)
        for item in random.choice(20, 9, replace=False)
    ]
    user, item = np.array(pairs).T
    np.savez(
        path, user=user, item=item.astype(np.int32), rating=np.full(len(user), 5.0),
        genres=np.array(["Drama", "Comedy Old", "War"] * 20), year=np.array(["1990", "", "2001"] * 20),
    )  # fmt: skip
    return path


def test_features_find_the_genre_that_a_user_likes(tmp_path: Path) -> None:
    found = compared(*movies(write(tmp_path / "small.npz")), "ease", 0)
    measured = {name: each["ndcg@100"][0] for name, each in found["contestants"].items()}
    assert found["cold_items"] == 12
    # Which movies of the genre a user has is chance.
    assert abs(measured["item features"] - measured["the user's genres"]) < 0.05
    assert measured["item features"] > measured["popularity of genres"] + 0.1
    assert measured["popularity of genres"] > measured["chance"]
    assert found["contestants"]["chance"]["ndcg@100 minus item features"][0] < 0


def test_rule_of_popularity_is_the_mean_likes_of_the_genres() -> None:
    train = pl.DataFrame({"user_id": [0, 1, 1, 2], "item_id": [0, 0, 1, 2]})
    items = pl.DataFrame({"item_id": range(5), "genres": [["a"], ["a", "b"], ["b"], ["a"], ["a", "b"]]})
    found = rules(train, items, pl.Series([3, 4]), np.array([0, 1, 2]), np.random.default_rng(0))
    assert found["popularity of genres"].tolist() == [[1.5, 1.25]] * 3
    assert found["the user's genres"].tolist() == [[1.0, 1.0], [1.0, 1.5], [0.0, 1.0]]
