"""Over HTTP: the answers of the library, and errors that say what to send."""

import asyncio
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from lbdrop.recommend import Recommender
from lbdrop.serve import Limits, create_app, schemas
from lbdrop.serve.middleware import Gate


def history(model: Recommender, user: int) -> list[str]:
    assert model.interactions_ is not None
    rows = model.interactions_.rows
    return model.items_.gather(rows.indices[rows.indptr[user] : rows.indptr[user + 1]]).to_list()


def ask(client: TestClient, path: str, body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_known_users_get_the_items_of_recommend(client: TestClient, fitted: Recommender) -> None:
    answer = ask(client, "/recommend", {"users": [5, "9"], "k": 4})
    schemas.Recommended.model_validate(answer)
    own = fitted.recommend([5, 9], k=4)
    found = [item for result in answer["results"] for item in result["items"]]
    assert [result["user_id"] for result in answer["results"]] == [5, 9]
    assert [(item["item_id"], item["rank"]) for item in found] == own.select("item_id", "rank").rows()
    np.testing.assert_allclose([item["score"] for item in found], own["score"], atol=2e-5)
    np.testing.assert_allclose([item["uncertainty"] for item in found], own["uncertainty"], atol=2e-5)


def test_history_gets_the_answer_of_the_user_who_has_it(client: TestClient, fitted: Recommender) -> None:
    known = ask(client, "/recommend", {"users": [3], "k": 6, "reasons": 2})["results"][0]
    new = ask(client, "/recommend", {"histories": [history(fitted, 3)], "k": 6, "reasons": 2})["results"][0]
    assert new["items"] == known["items"]
    assert (new["user_id"], known["user_id"]) == (None, 3)
    assert all(len(item["reasons"]) == 2 for item in new["items"])


def test_empty_and_unknown_histories_get_popular_items_without_uncertainty(
    client: TestClient, fitted: Recommender
) -> None:
    body = {"histories": [[], ["no such item"]], "k": 3, "ignore_unknown": True}
    nothing, unknown = ask(client, "/recommend", body)["results"]
    assert nothing["items"] == unknown["items"]
    assert (nothing["unknown_items"], unknown["unknown_items"]) == (0, 1)
    assert [item["uncertainty"] for item in nothing["items"]] == [None] * 3
    likes = dict(zip(fitted.items_, fitted.likes_, strict=True))
    assert sorted(fitted.likes_)[-3:] == sorted(likes[item["item_id"]] for item in nothing["items"])


def test_viewed_items_and_items_to_recommend_follow_the_request(client: TestClient, fitted: Recommender) -> None:
    mine = history(fitted, 2)
    body = {"users": [2], "items_to_recommend": mine, "k": 100}
    assert ask(client, "/recommend", body)["results"][0]["items"] == []
    all_of_mine = ask(client, "/recommend", body | {"filter_viewed": False})["results"][0]["items"]
    assert {item["item_id"] for item in all_of_mine} == set(mine)


def test_excluded_and_diverse_items_follow_the_request(client: TestClient, fitted: Recommender) -> None:
    plain = [item["item_id"] for item in ask(client, "/recommend", {"users": [2], "k": 5})["results"][0]["items"]]
    body = {"users": [2], "k": 5, "items_to_exclude": plain[:2], "diversity": 0.8}
    found = [item["item_id"] for item in ask(client, "/recommend", body)["results"][0]["items"]]
    own = fitted.recommend([2], k=5, items_to_exclude=plain[:2], diversity=0.8)
    assert found == own["item_id"].to_list()
    assert not {*plain[:2]} & {*found}


def test_explanations_equal_explain(client: TestClient, fitted: Recommender) -> None:
    target = fitted.recommend([7], k=1)["item_id"][0]
    own = fitted.explain(7, target)
    for who in ({"user": 7}, {"history": history(fitted, 7)}):
        answer = ask(client, "/explain", who | {"items": [target]})
        schemas.Explanation.model_validate(answer)
        reasons = {each["item_id"]: each for each in answer["results"][0]["reasons"]}
        assert set(reasons) == set(own["item_id"])
        np.testing.assert_allclose([reasons[each]["effect"] for each in own["item_id"]], own["effect"], atol=5e-5)
        np.testing.assert_allclose([reasons[each]["share"] for each in own["item_id"]], own["share"], atol=1e-3)
        effects = [each["effect"] for each in answer["results"][0]["reasons"]]
        assert effects == sorted(effects, reverse=True)


def test_similar_items_equal_similar_items_of_the_library(client: TestClient, fitted: Recommender) -> None:
    item = fitted.items_[11]
    answer = ask(client, "/similar", {"items": [item], "k": 5})
    schemas.Alike.model_validate(answer)
    own = fitted.similar_items([item], k=5)
    assert [each["item_id"] for each in answer["results"][0]["similar"]] == own["similar_item_id"].to_list()


def test_items_are_searched_by_title(client: TestClient, titles: dict[str, str]) -> None:
    answer = client.get("/items", params={"query": "alder", "limit": 3}).json()
    schemas.Items.model_validate(answer)
    assert len(answer["items"]) == 3
    assert all(titles[item["item_id"]] == item["title"] and "Alder" in item["title"] for item in answer["items"])


def test_model_facts_describe_the_model(client: TestClient) -> None:
    facts = client.get("/model").json()
    schemas.ModelFacts.model_validate(facts)
    assert (facts["method"], facts["items"], facts["users"], facts["titles"]) == ("experts", 80, 300, 80)
    assert (facts["samples"], facts["log_probability"], facts["similar"]) == (10, True, True)


def test_openapi_describes_every_path_and_its_errors(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"]
    assert set(described) == {"/recommend", "/explain", "/similar", "/items", "/model", "/health", "/ready"}
    assert set(described["/recommend"]["post"]["responses"]) >= {"200", "400", "404", "413", "415", "422", "503"}
    assert client.get("/docs").status_code == 404


WRONG = [
    ("/recommend", {}, 422, "want users or histories, got neither"),
    ("/recommend", {"users": [1], "histories": [[]]}, 422, "got both"),
    ("/recommend", {"users": []}, 422, "users: want at least 1"),
    ("/recommend", {"users": list(range(101))}, 422, "users: want at most 100, got 101"),
    ("/recommend", {"users": [1.5]}, 422, "users[0]: want an id, a whole number or text, got 1.5"),
    ("/recommend", {"users": [None]}, 422, "users[0]: want an id, a whole number or text, got null"),
    ("/recommend", {"users": [True]}, 422, "got true"),
    ("/recommend", {"users": 1}, 422, "users: want a list, got 1"),
    ("/recommend", {"users": [99_999]}, 404, "got 99999; send their histories instead"),
    ("/recommend", {"users": ["05"]}, 404, 'got "05"'),
    ("/recommend", {"users": [2**70]}, 422, "users[0]: want less than"),
    ("/recommend", {"histories": [["no such item"]]}, 404, 'got "no such item"; find them with /items'),
    ("/recommend", {"histories": [["x" * 501]]}, 422, "at most 500 characters"),
    ("/recommend", {"histories": [["x"] * 10_001]}, 422, "want at most 10000"),
    ("/recommend", {"users": [1], "k": 0}, 422, "k: want at least 1, got 0"),
    ("/recommend", {"users": [1], "k": 1001}, 422, "k: want at most 1000, got 1001"),
    ("/recommend", {"users": [1], "k": "5"}, 422, 'k: want a whole number, got "5"'),
    ("/recommend", {"users": [1], "k": 2.5}, 422, "k: want a whole number, got 2.5"),
    ("/recommend", {"users": [1], "filter_viewed": 1}, 422, "filter_viewed: want true or false, got 1"),
    ("/recommend", {"users": [1], "limit": 5}, 422, "limit: want one of users, histories, k,"),
    ("/recommend", {"users": [1], "items_to_recommend": ["x"]}, 404, "items_to_recommend: want items of the model"),
    ("/recommend", {"users": [1], "items_to_recommend": ["x"], "ignore_unknown": True}, 404, "got none of them"),
    ("/recommend", {"users": [1], "items_to_exclude": ["x"]}, 404, "items_to_exclude: want items of the model"),
    ("/recommend", {"users": [1], "items_to_recommend": ["astronomy-00001"], "items_to_exclude": ["astronomy-00001"]}, 422, "want an item left"),
    ("/recommend", {"users": [1], "diversity": 1.5}, 422, "diversity: want at most 1"),
    ("/recommend", {"users": list(range(100)), "reasons": 3}, 422, "reasons: want histories of at most 500 items"),
    ("/recommend", {"users": [1], "k": 101, "reasons": 1}, 422, "k: want at most 100 with reasons, got 101"),
    ("/recommend", [], 422, "body: want a JSON object, got a list of 0"),
    ("/explain", {"user": 1}, 422, "items: want a value, got nothing"),
    ("/explain", {"user": 1, "items": []}, 422, "items: want at least 1"),
    ("/explain", {"items": ["astronomy-00001"]}, 422, "want user or history, got neither"),
    ("/explain", {"user": 1, "items": ["x"]}, 404, "items: want items of the model"),
    ("/explain", {"history": ["x"], "items": ["astronomy-00001"], "ignore_unknown": True}, 422, "history: want an item that the model knows"),
    ("/similar", {"items": ["x"]}, 404, 'got "x"'),
    ("/similar", {"items": ["astronomy-00001"], "k": -1}, 422, "k: want at least 1, got -1"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "words"), WRONG)
def test_wrong_request_gets_one_message_with_the_next_step(
    client: TestClient, path: str, body: Any, status: int, words: str
) -> None:
    response = client.post(path, json=body)
    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert words in response.json()["error"]
    assert "; " in response.json()["error"]  # what to do next


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"{", 400, "body: want JSON, got an error at character"),
        (b"", 422, "body: want"),
        (b"null", 422, "body: want a JSON object, got null"),
        (b"\xff\xfe", 400, "body: want JSON"),
        (b'{"users": [1], "k": NaN}', 422, "k: want a whole number, got NaN"),
        (b'{"users": [1], "k": 1e999}', 422, "k: want a whole number, got Infinity"),
        (b'{"users": ["\\ud800"]}', 422, "users[0]: want"),
        (b'{"\\ud800": 1}', 422, "want"),
        (b"[" * 200_000, 400, "body: want JSON"),
        (b'{"users": [' + b"9" * 5000 + b"]}", 400, "body: want JSON"),
    ],
)
def test_malformed_bodies_are_rejected(client: TestClient, content: bytes, status: int, words: str) -> None:
    response = client.post("/recommend", content=content, headers={"Content-Type": "application/json"})
    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert words in response.json()["error"]


def test_unknown_paths_methods_and_types_are_named_in_the_error(client: TestClient) -> None:
    wrong = client.get("/nowhere")
    assert (wrong.status_code, "/recommend" in wrong.json()["error"]) == (404, True)
    wrong = client.get("/recommend")
    assert (wrong.status_code, wrong.json()["error"][:17]) == (405, "method: want POST")
    assert wrong.headers["Allow"] == "POST"
    wrong = client.post("/recommend", content=b"{}", headers={"Content-Type": "text/plain"})
    assert (wrong.status_code, "want application/json" in wrong.json()["error"]) == (415, True)
    wrong = client.get("/items", params={"limit": "many"})
    assert (wrong.status_code, wrong.json()["error"][:26]) == (422, "limit: want a whole number")


@pytest.mark.parametrize("chunked", [False, True])
def test_body_over_the_limit_is_rejected_with_and_without_a_length(client: TestClient, chunked: bool) -> None:
    large = b" " * (schemas.MAX_BODY_BYTES + 1)
    content = iter([large[:1000], large[1000:]]) if chunked else large
    response = client.post("/recommend", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert f"want at most {schemas.MAX_BODY_BYTES} bytes" in response.json()["error"]
    just = json.dumps({"users": [1]}).encode().ljust(schemas.MAX_BODY_BYTES)
    assert client.post("/recommend", content=just, headers={"Content-Type": "application/json"}).status_code == 200


def test_body_that_never_arrives_times_out() -> None:
    async def never() -> Any:
        await asyncio.sleep(60)

    async def run() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", b"application/json")]}
        await Gate(None, None, max_bytes=100, max_seconds=0.01)(scope, never, send)
        return sent

    start, body = asyncio.run(run())
    assert start["status"] == 408
    assert "want it within 0.01 s" in json.loads(body["body"])["error"]


class Blocked:
    """An engine that waits until it is set free."""

    def __init__(self, engine: Any):
        self.engine, self.free, self.begun = engine, threading.Event(), threading.Event()

    def __call__(self, asked: Sequence[Any]) -> Any:
        self.begun.set()
        assert self.free.wait(30)
        return self.engine(asked)


def test_request_over_the_limit_gets_503_and_the_others_are_answered(fitted: Recommender) -> None:
    app = create_app(fitted, limits=Limits(waiting=3))
    with TestClient(app) as client, ThreadPoolExecutor(3) as threads:
        held = app.state.batcher.compute = Blocked(app.state.batcher.compute)
        waiting = [threads.submit(client.post, "/recommend", json={"users": [user]}) for user in range(3)]
        assert held.begun.wait(30)
        while app.state.batcher.pending < 3:
            pass
        refused = client.post("/recommend", json={"users": [9]})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert "3 are waiting; come back later" in refused.json()["error"]
        assert client.get("/health").status_code == 200  # alive all the same
        held.free.set()
        assert [each.result().json()["results"][0]["user_id"] for each in waiting] == [0, 1, 2]


def test_slow_answer_gets_503(fitted: Recommender) -> None:
    app = create_app(fitted, limits=replace(Limits(), seconds=0.05))
    with TestClient(app) as client:
        held = app.state.batcher.compute = Blocked(app.state.batcher.compute)
        late = client.post("/recommend", json={"users": [1]})
        held.free.set()
        assert (late.status_code, late.headers["Retry-After"]) == (503, "1")
        assert "0.05 s have passed" in late.json()["error"]


def test_error_of_the_model_gets_500_and_the_service_goes_on(fitted: Recommender) -> None:
    app = create_app(fitted)
    with TestClient(app, raise_server_exceptions=False) as client:
        engine, app.state.batcher.compute = app.state.batcher.compute, lambda asked: 1 / 0
        broken = client.post("/recommend", json={"users": [1]})
        assert (broken.status_code, list(broken.json())) == (500, ["error"])
        app.state.batcher.compute = engine
        assert client.post("/recommend", json={"users": [1]}).status_code == 200


def test_ready_only_while_the_model_runs(fitted: Recommender) -> None:
    app = create_app(fitted)
    before = TestClient(app).get("/ready")
    assert (before.status_code, list(before.json())) == (503, ["error"])
    with TestClient(app) as client:
        assert client.get("/ready").json() == client.get("/health").json() == {"status": "ok"}
    assert TestClient(app).get("/ready").status_code == 503


def test_model_without_histories_asks_for_them(fitted: Recommender, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model", histories=False)
    with TestClient(create_app(Recommender.load(tmp_path / "model"))) as client:
        assert client.get("/model").json()["users"] is None
        wrong = client.post("/recommend", json={"users": [1]})
        assert (wrong.status_code, "users: want histories" in wrong.json()["error"]) == (422, True)
        assert client.post("/recommend", json={"histories": [history(fitted, 1)]}).status_code == 200


def test_method_that_cannot_compare_items_says_so(fitted: Recommender) -> None:
    with TestClient(create_app(Recommender("popularity").fit(fitted.interactions_))) as client:
        facts = client.get("/model").json()
        assert (facts["similar"], facts["samples"], facts["log_probability"]) == (False, 0, False)
        wrong = client.post("/similar", json={"items": [fitted.items_[0]]})
        assert (wrong.status_code, "got 'popularity'" in wrong.json()["error"]) == (422, True)
        (user,) = client.post("/recommend", json={"users": [1], "k": 2}).json()["results"]
        assert [item["uncertainty"] for item in user["items"]] == [None, None]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]:8000"])
def test_host_of_the_service_is_accepted(host: str, fitted: Recommender) -> None:
    with TestClient(create_app(fitted, hosts=["localhost", "127.0.0.1", "::1"])) as client:
        assert client.get("/model", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "evil.example:8000", "", "[", "localhost@evil"]
)
def test_foreign_host_is_rejected(host: str, fitted: Recommender) -> None:
    app = create_app(fitted, hosts=["localhost", "127.0.0.1", "::1"])
    with TestClient(app) as client:
        for answer in (
            client.get("/model", headers={"Host": host}),
            client.post("/recommend", json={"users": [0]}, headers={"Host": host}),
        ):
            assert answer.status_code == 421
            assert "--allow-host" in answer.json()["error"]


def test_same_request_gets_the_same_bytes_beside_other_requests(client: TestClient) -> None:
    body = {"users": [17], "k": 8, "reasons": 2}
    alone = client.post("/recommend", json=body).content
    with ThreadPoolExecutor(8) as threads:
        company = [
            threads.submit(client.post, "/recommend", json=body if n % 3 == 0 else {"users": [n], "k": n + 1})
            for n in range(30)
        ]
        answers = [each.result().content for each in company]
    assert all(answer == alone for answer in answers[::3])
