"""Any request gets an answer or an error below 500."""

import json
from typing import Any
from urllib.parse import quote

from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PATHS = ["/recommend", "/explain", "/similar"]
FIELDS = [
    "users",
    "histories",
    "user",
    "history",
    "items",
    "k",
    "filter_viewed",
    "items_to_recommend",
    "items_to_exclude",
    "diversity",
    "reasons",
    "ignore_unknown",
]
JSON = {"Content-Type": "application/json"}
fuzz = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ids = st.sampled_from([0, 1, "2", 299, 300, -1, 10**30, "astronomy-00001", "baking-00002", "nothing", "", "\x00", "é"])
likely = st.one_of(
    ids, st.lists(ids, max_size=5), st.lists(st.lists(ids, max_size=4), max_size=3), st.booleans(), anything
)
numbers = st.sampled_from([0, 1, 2, 1000, 1001, -1, 2**63, True, None, 1.5, "1"])
bodies = st.dictionaries(st.sampled_from(FIELDS), likely | numbers, max_size=5)
sensible = st.fixed_dictionaries(
    {},
    optional={
        "users": st.lists(st.integers(0, 310), max_size=3),
        "histories": st.lists(st.lists(ids, max_size=4), max_size=3),
        "user": st.integers(0, 310),
        "history": st.lists(ids, max_size=4),
        "items": st.lists(ids, max_size=3),
        "k": st.integers(-1, 100),
        "items_to_recommend": st.lists(ids, max_size=3),
        "items_to_exclude": st.lists(ids, max_size=3),
        "diversity": st.floats(-0.1, 1.1),
        "reasons": st.integers(-1, 21),
        "ignore_unknown": st.booleans(),
    },
)


def check(response: Any) -> None:
    assert response.status_code == 200 or 400 <= response.status_code < 500, response.text
    if response.status_code != 200:
        assert list(response.json()) == ["error"]
        assert isinstance(response.json()["error"], str)


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()  # with NaN and lone surrogates, which a client's library might refuse


@fuzz
@given(path=st.sampled_from(PATHS), body=bodies | anything | sensible)
def test_service_answers_any_json(client: TestClient, path: str, body: Any) -> None:
    check(client.post(path, content=encoded(body), headers=JSON))


@fuzz
@given(path=st.sampled_from(PATHS), body=sensible)
def test_service_answers_nearly_right_requests(client: TestClient, path: str, body: Any) -> None:
    check(client.post(path, content=encoded(body), headers=JSON))


@fuzz
@given(
    path=st.sampled_from(PATHS),
    content=st.binary(max_size=200),
    kind=st.sampled_from([*JSON.values(), "text/plain", ""]),
)
def test_service_answers_any_bytes(client: TestClient, path: str, content: bytes, kind: str) -> None:
    check(client.post(path, content=content, headers={"Content-Type": kind}))


@fuzz
@given(query=st.text(max_size=250), limit=st.integers(-5, 200) | st.text(max_size=5))
def test_service_answers_any_search(client: TestClient, query: str, limit: Any) -> None:
    check(client.get("/items", params={"query": query.encode("utf-8", "replace"), "limit": limit}))


@fuzz
@given(method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]), path=st.text(max_size=30))
def test_service_answers_any_path(client: TestClient, method: str, path: str) -> None:
    response = client.request(method, "/" + quote(path, errors="replace"), headers=JSON)
    assert response.status_code < 500
