"""Connections under attack: idle ones lose their place, refusals bear headers, a log stays short, nothing is lost at the end."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

from lbdrop.recommend import Recommender
from lbdrop.serve import connections as module
from lbdrop.serve import create_app
from lbdrop.serve.connections import LogLimit, bounded_connections, descriptors_for_connections
from lbdrop.serve.middleware import SECURITY_HEADERS

GET = b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def small_app(scope: Any, receive: Any, send: Any) -> None:
    """Answers after a moment."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(0.05)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def serving(most: int = 50) -> Iterator[tuple[uvicorn.Server, int]]:
    """The protocol in this process, in a thread with a loop of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(small_app, http=bounded_connections(most, SECURITY_HEADERS), ws="none", lifespan="off", log_level="critical")  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)


def connect(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    opened.append(made)
    return made


opened: list[socket.socket] = []


@pytest.fixture(autouse=True)
def close() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


def answer(connection: socket.socket) -> bytes:
    """Up to the end of an answer, or of the connection."""
    found = b""
    try:
        while not found.endswith(b"ok") and (piece := connection.recv(4096)):
            found += piece
    except ConnectionError:
        pass
    return found


def test_half_sent_heads_and_bodies_make_room_for_requests() -> None:
    with serving(most=8) as (server, port):
        idle = [connect(port) for _ in range(10)]
        for number, each in enumerate(idle):
            each.sendall(
                b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n" if number % 2 else b"GET / HT"
            )
        for _ in range(20):
            busy = connect(port)
            busy.sendall(GET)
            assert answer(busy).startswith(b"HTTP/1.1 200")
        assert len(server.server_state.connections) <= 8


def test_busy_connections_keep_their_place_and_others_are_told_to_come_back() -> None:
    with serving(most=3) as (_, port):
        busy = [connect(port) for _ in range(3)]
        for each in busy:
            each.sendall(GET)
        time.sleep(0.02)  # all three are being answered
        late = connect(port)
        refused = answer(late)
        assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"X-Content-Type-Options: nosniff" in refused
        assert b"come back later" in refused
        assert [answer(each)[9:12] for each in busy] == [b"200"] * 3


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /slow HTTP/1.1\r\nHost:", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf"],
)
def test_connection_that_owes_a_request_ends_at_its_deadline(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.2)
    with serving() as (_, port):
        connection = connect(port)
        connection.sendall(sent)
        start = time.monotonic()
        assert answer(connection) == b""
        assert time.monotonic() - start < 10


def test_byte_at_a_time_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.3)
    with serving() as (_, port):
        connection = connect(port)
        with pytest.raises(ConnectionError):
            for _ in range(200):
                connection.sendall(b"G")
                time.sleep(0.02)


def test_what_is_no_http_is_refused_with_all_headers() -> None:
    with serving() as (_, port):
        connection = connect(port)
        connection.sendall(b"\x16\x03\x01\x02\r\n\r\n")
        refused = answer(connection)
        assert refused.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"Cache-Control: no-store" in refused


def test_requests_on_open_connections_are_answered_after_the_stop_and_told_to_close() -> None:
    with serving() as (server, port):
        idle, busy, silent = connect(port), connect(port), connect(port)
        idle.sendall(GET)
        assert answer(idle).startswith(b"HTTP/1.1 200")
        busy.sendall(GET)
        time.sleep(0.02)
        server.should_exit = True
        time.sleep(0.3)  # the server is at its end, and this request comes late
        idle.sendall(GET)
        for each in (idle, busy):
            assert b"connection: close" in answer(each).lower()
            assert answer(each) == b""
        assert answer(silent) == b""


def test_log_has_a_limit_by_the_minute() -> None:
    clock = [0.0]
    limit = LogLimit(lambda: clock[0])

    def said() -> str | None:
        record = logging.LogRecord("x", 30, "f", 1, "broken", None, None)
        return record.getMessage() if limit.filter(record) else None

    first = [said() for _ in range(1000)]
    assert [each for each in first if each] == ["broken"] * module.LINES_A_MINUTE
    clock[0] = 61.0
    assert said() == f"{1000 - module.LINES_A_MINUTE} log lines were left out, as there were too many; broken"
    assert said() == "broken"


def test_connections_stay_below_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    raised = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    for soft, hard, most in ((256, 256, 128), (1024, 1 << 20, 1 << 14), (-1, -1, 1 << 14)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, pair=(soft, hard): pair)
        assert 8 <= descriptors_for_connections() <= most - module.RESERVE or most == 128
    assert raised == [(1 << 14, 1 << 20)]


# --------------------------------------------------------------------------------------------------------- who may ask


@pytest.fixture(scope="module")
def guarded(fitted: Recommender) -> Iterator[TestClient]:
    app = create_app(fitted, hosts=["testserver"])
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


BROWSER = {"User-Agent": "Mozilla/5.0", "Accept": "image/avif"}
FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
    {"Referer": "https://evil.example/"}, BROWSER, BROWSER | {"Sec-Fetch-Site": "cross-site"},
]  # fmt: skip
OURS = [{}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, BROWSER | {"Sec-Fetch-Site": "same-origin"},
        BROWSER | {"X-Lbdrop": "1"}, {"User-Agent": "curl/8"}]  # fmt: skip


@pytest.mark.parametrize("headers", FOREIGN)
def test_pages_of_other_sites_are_refused(guarded: TestClient, headers: dict[str, str]) -> None:
    for path in ("/items?query=a", "/model", "/recommend", "/nowhere"):
        refused = guarded.get(path, headers=headers)
        assert (refused.status_code, "X-Lbdrop" in refused.json()["error"]) == (403, True), path
    assert guarded.post("/recommend", json={"users": [1]}, headers=headers).status_code == 403
    assert guarded.get("/", headers=headers).status_code == 200  # a link to the page may stand anywhere


@pytest.mark.parametrize("headers", OURS)
def test_own_page_and_programs_are_answered(guarded: TestClient, headers: dict[str, str]) -> None:
    assert guarded.get("/items?query=a", headers=headers).status_code == 200


def test_preflight_of_another_site_is_not_allowed(guarded: TestClient) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-lbdrop"}  # fmt: skip
    refused = guarded.options("/items", headers=asked)
    assert refused.status_code == 403
    assert not [name for name in refused.headers if name.startswith("access-control")]


def test_every_answer_has_the_security_headers(guarded: TestClient, fitted: Recommender) -> None:
    answers = [
        guarded.get("/"), guarded.get("/page.js"), guarded.get("/items"), guarded.get("/health"), guarded.get("/openapi.json"),
        guarded.get("/nowhere"), guarded.delete("/items"), guarded.get("/model", headers={"Host": "evil.example"}),
        guarded.get("/model", headers={"Sec-Fetch-Site": "cross-site"}), guarded.get("/items?limit=x"),
        guarded.post("/recommend", content=b"{", headers={"Content-Type": "application/json"}),
        guarded.post("/recommend", content=b"{}", headers={"Content-Type": "text/plain"}),
        guarded.post("/recommend", content=b" " * (1 << 21), headers={"Content-Type": "application/json"}),
    ]  # fmt: skip
    app = create_app(fitted)
    with TestClient(app, raise_server_exceptions=False) as client:
        app.state.batcher.compute = lambda asked: 1 / 0
        answers.append(client.post("/recommend", json={"users": [1]}))
    assert [each.status_code for each in answers] == [
        200,
        200,
        200,
        200,
        200,
        404,
        405,
        421,
        403,
        422,
        400,
        415,
        413,
        500,
    ]
    for each in answers:
        assert not [name for name in SECURITY_HEADERS if name not in each.headers], (each.url, each.headers)
        assert "frame-ancestors 'none'" in each.headers["Content-Security-Policy"]
    assert {each.headers["Cache-Control"] for each in answers[:2]} == {"no-cache"}
    assert {each.headers["Cache-Control"] for each in answers[2:]} == {"no-store"}
