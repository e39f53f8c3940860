"""The split of Liang et al. with the same random draws, against a plain computation with pandas and numpy."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.splits import fold_in, split_users


def ratings(users: int, items: int, seed: int, text: bool) -> pd.DataFrame:
    """Ids with gaps, unsorted; users with few items, and items that one user alone has, so that train lacks some."""
    random = np.random.default_rng(seed)
    names = random.permutation(10 * users)[:users]
    rows = [
        (int(name), int(item), int(random.integers(1, 6)))
        for name in names
        for item in [
            *random.choice(items, size=random.integers(3, items // 2), replace=False) ** 2,
            *(10_000 + 3 * name + np.arange(3)),
        ]
    ]
    frame = pd.DataFrame(rows, columns=["user_id", "item_id", "weight"]).sample(frac=1, random_state=seed)
    return frame.assign(user_id=frame.user_id.map("u{:07d}".format)) if text else frame


def published(raw: pd.DataFrame, held_out_users: int, seed: int) -> dict[str, set[tuple[object, int]]]:
    """The protocol as its authors describe it, on frames, with numpy's global random state."""
    before = np.random.get_state()  # noqa: NPY002
    raw = raw[raw.weight >= 4]
    raw = raw[raw.groupby("user_id").item_id.transform("size") >= 5].sort_values(["user_id", "item_id"])
    ids = np.array(sorted(raw.user_id.unique()))
    np.random.seed(seed)  # noqa: NPY002
    ids = ids[np.random.permutation(len(ids))]  # noqa: NPY002
    n = len(ids)
    train = raw[raw.user_id.isin(ids[: n - 2 * held_out_users])]
    parts = {"validation": ids[n - 2 * held_out_users : n - held_out_users], "test": ids[n - held_out_users :]}
    pairs = {"train": set(zip(train.user_id, train.item_id, strict=True))}
    for name, chosen in parts.items():
        part = raw[raw.user_id.isin(chosen) & raw.item_id.isin(train.item_id)]
        shown, hidden = set(), set()
        np.random.seed(seed)  # noqa: NPY002
        for user in sorted(part.user_id.unique()):
            mine = part[part.user_id == user].item_id.tolist()
            out = set()
            if len(mine) >= 5:
                out = set(np.random.choice(len(mine), size=int(0.2 * len(mine)), replace=False).tolist())  # noqa: NPY002
            for place, item in enumerate(mine):
                (hidden if place in out else shown).add((user, item))
        pairs |= {f"{name} fold-in": shown, f"{name} held-out": hidden}
    np.random.set_state(before)  # noqa: NPY002
    return pairs


def entries(rows: object, users: pl.Series, items: pl.Series) -> set[tuple[object, int]]:
    return set(Interactions(rows, users, items).to_frame().select("user_id", "item_id").rows())  # pyright: ignore


@pytest.mark.parametrize(("data_seed", "text", "seed"), [(0, False, 98765), (1, True, 98765), (2, False, 7)])
def test_split_equals_the_published_one(data_seed: int, text: bool, seed: int) -> None:
    raw = ratings(300, 60, data_seed, text)
    state = np.random.get_state()  # noqa: NPY002
    split = split_users(Interactions.from_frame(raw, at_least=4, min_user_items=5), 40, seed)
    assert all(np.array_equal(a, b) for a, b in zip(state, np.random.get_state(), strict=True))  # noqa: NPY002
    wanted = published(raw, 40, seed)
    items = split.train.items
    held = set(split.validation.users) | set(split.test.users)
    assert set(raw[raw.user_id.isin(held) & (raw.weight >= 4)].item_id) - set(
        items
    )  # some items are in no training row
    assert set(split.train.to_frame().select("user_id", "item_id").rows()) == wanted["train"]
    for name, part in (("validation", split.validation), ("test", split.test)):
        assert len(wanted[f"{name} held-out"]) > 20
        assert entries(part.fold_in, part.users, items) == wanted[f"{name} fold-in"]
        assert entries(part.held_out, part.users, items) == wanted[f"{name} held-out"]


def test_split_of_a_seed_never_changes() -> None:
    frame = pl.DataFrame(
        {"user_id": [u for u in range(12) for _ in range(10)], "item_id": [i for _ in range(12) for i in range(10)]}
    )
    split = split_users(Interactions.from_frame(frame), 2)
    # numpy.random.seed(98765): permutation(12)[8:], and choice(10, 2) twice, for validation and for test alike.
    assert (split.validation.users.to_list(), split.test.users.to_list()) == ([0, 6], [3, 5])
    assert split.validation.held_out.toarray().nonzero()[1].tolist() == [7, 8, 1, 3]
    assert split.test.held_out.toarray().nonzero()[1].tolist() == [7, 8, 1, 3]


def test_every_part_has_the_columns_of_train_and_no_user_is_in_two() -> None:
    interactions = Interactions.from_frame(ratings(200, 40, 5, False), min_user_items=5)
    split = split_users(interactions, 30)
    for part in (split.validation, split.test):
        assert part.fold_in.shape == part.held_out.shape == (30, len(split.train.items))
        assert part.users.is_sorted()
        assert not (part.fold_in.multiply(part.held_out)).nnz
    everyone = [*split.train.users, *split.validation.users, *split.test.users]
    assert sorted(everyone) == interactions.users.to_list()
    assert (np.bincount(split.train.rows.indices, minlength=len(split.train.items)) > 0).all()


def test_users_with_fewer_than_five_items_have_none_held_out() -> None:
    counts = [4, 5, 9, 10, 0]
    frame = pl.DataFrame(
        {
            "user_id": [u for u, n in enumerate(counts) for _ in range(n)],
            "item_id": [i for n in counts for i in range(n)],
        }
    )
    made = Interactions.from_frame(frame)
    users = pl.Series(range(5))
    rows = made.rows.copy()
    rows.resize((5, 10))
    held = fold_in(Interactions(rows, users, made.items))
    assert np.diff(held.held_out.indptr).tolist() == [0, 1, 1, 2, 0]
    assert np.diff(held.fold_in.indptr).tolist() == [4, 4, 8, 8, 0]
    assert held.scored == 3


def test_weights_stay_with_their_items() -> None:
    frame = pl.DataFrame({"user_id": [0] * 6, "item_id": range(6), "weight": [1, 2, 3, 4, 5, 6]})
    held = fold_in(Interactions.from_frame(frame))
    assert (held.fold_in + held.held_out).toarray().tolist() == [[1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize("count", [0, 5, 10])
def test_split_without_training_users_is_an_error(count: int) -> None:
    frame = pl.DataFrame({"user_id": range(10), "item_id": [0] * 10})
    with pytest.raises(DropoutError, match="held_out_users: want 1 to 4, so that some of the 10 users"):
        split_users(Interactions.from_frame(frame), count)


def test_training_users_without_items_are_an_error() -> None:
    frame = pl.DataFrame({"user_id": range(3), "item_id": [0] * 3})
    order = np.random.RandomState(98765).permutation(3)
    weights = [0.0 if user == order[0] else 1.0 for user in range(3)]
    with pytest.raises(DropoutError, match="want items among the training users"):
        split_users(Interactions.from_frame(frame.with_columns(weight=pl.Series(weights))), 1)
