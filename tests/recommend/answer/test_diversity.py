"""A diverse list has less alike items in place of the next best ones, and without diversity nothing changes."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from helpers.checkerboard import group_of

from lbdrop.recommend import Recommender
from lbdrop.recommend.answer.diversity import diverse_items, pairwise
from lbdrop.recommend.linear.closed_form import EASE

# Mostly of one group, and something of another.
TASTE = pl.DataFrame({"user_id": [1] * 6, "item_id": ["a00", "a01", "a02", "a03", "a04", "b05"]})


def groups(model: Recommender, diversity: float) -> list[int]:
    return [group_of(item) for item in model.recommend(TASTE, k=4, diversity=diversity)["item_id"]]


@pytest.mark.parametrize("family", ["ease", "wmf", "default"])
def test_diverse_list_has_the_second_group_too(family: str, models: dict[str, Recommender]) -> None:
    model = models[family]
    assert groups(model, 0.0) == [0] * 4
    assert groups(model, 0.6)[0] == 0
    assert 1 in groups(model, 0.6)


def test_diverse_list_is_the_one_of_the_formula() -> None:
    model = EASE()
    torch.manual_seed(0)
    model.state = {"weights": torch.rand(8, 8)}
    scores, k, d = torch.rand(5, 8), 4, 0.5
    seen = torch.rand(5, 8) < 0.2
    found = diverse_items(model, scores, seen, k, d, 8)
    for user in range(5):
        free = [item for item in range(8) if not seen[user, item]]
        alike = torch.zeros(8, 8)
        alike[np.ix_(free, free)] = pairwise(model, torch.tensor(free)[None], 8)[0]
        low, high = scores[user, free].min(), scores[user, free].max()
        chosen: list[int] = []
        for _ in range(k):
            value = {
                item: (1 - d) * (scores[user, item] - low) / (high - low)
                - d * max((alike[item, other] for other in chosen), default=torch.tensor(0.0))
                for item in free
                if item not in chosen
            }
            chosen.append(max(value, key=lambda item: value[item]))
        assert found[user].tolist() == chosen


def test_users_with_few_items_left_get_these(models: dict[str, Recommender]) -> None:
    found = models["ease"].recommend(TASTE, k=9, items_to_recommend=["b05", "b06", "c01"], diversity=0.9)
    assert found["item_id"].to_list() == ["b06", "c01"]
    assert found["rank"].to_list() == [1, 2]


def test_diverse_lists_go_to_files_too(models: dict[str, Recommender], tmp_path: Path) -> None:
    model = models["ease"]
    model.score_to(tmp_path / "scores.parquet", TASTE, k=4, diversity=0.6)
    assert pl.read_parquet(tmp_path / "scores.parquet").equals(model.recommend(TASTE, k=4, diversity=0.6))
