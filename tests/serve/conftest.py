"""One small fitted shop for all tests of the service."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from lbdrop.recommend import Recommender
from lbdrop.recommend.data.shop import Shop, generate_shop
from lbdrop.serve import create_app


@pytest.fixture(scope="session")
def shop() -> Shop:
    return generate_shop(users=300, items=80, groups=4, likes=8)


@pytest.fixture(scope="session")
def fitted(shop: Shop) -> Recommender:
    return Recommender(epochs=4, patience=None, progress=False, device="cpu").fit(shop.interactions)


@pytest.fixture(scope="session")
def titles(shop: Shop) -> dict[str, str]:
    return dict(shop.items.select("item_id", "title").iter_rows())


@pytest.fixture(scope="session")
def client(fitted: Recommender, titles: dict[str, str]) -> Iterator[TestClient]:
    with TestClient(create_app(fitted, titles), raise_server_exceptions=False) as client:
        yield client
