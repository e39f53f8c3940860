"""What several files of these tests ask: one fitted model of each family, and numbers in double precision."""

from collections.abc import Iterator

import pytest
import torch
from helpers.checkerboard import FAMILIES, fitted

from lbdrop.recommend import Recommender


@pytest.fixture(scope="session")
def models() -> dict[str, Recommender]:
    """Of every family; tests ask them and leave them as they are."""
    return {name: fitted(**arguments) for name, arguments in FAMILIES.items()}


@pytest.fixture
def learned(models: dict[str, Recommender]) -> Recommender:
    return models["learned"]


@pytest.fixture
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
