"""Shared by several files: a fitted model of each family, and double precision."""

from collections.abc import Iterator

import pytest
import torch
from helpers.checkerboard import FAMILIES, fitted

from lbdrop.recommend import Recommender


class FittedOnce(dict[str, Recommender]):
    """A model of each family, fitted when a test first uses it."""

    def __missing__(self, family: str) -> Recommender:
        self[family] = fitted(**FAMILIES[family])
        return self[family]


@pytest.fixture(scope="session")
def models() -> dict[str, Recommender]:
    """Models that tests share and do not change."""
    return FittedOnce()


@pytest.fixture
def learned(models: dict[str, Recommender]) -> Recommender:
    return models["learned"]


@pytest.fixture
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
