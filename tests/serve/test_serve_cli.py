"""``lbdrop recommend serve``: it prints its address, answers, stops cleanly, and fails in one line."""

import inspect
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from lbdrop.cli import app
from lbdrop.cli.serve import names, serve
from lbdrop.recommend import Recommender
from lbdrop.recommend.data.shop import Shop

COMMAND = [sys.executable, "-c", "from lbdrop.cli import app; app()", "recommend", "serve"]


@pytest.fixture(scope="module")
def model(fitted: Recommender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "model"
    fitted.save(folder)
    return folder


def refused(*arguments: object) -> str:
    """The one line that a run ends with."""
    result = CliRunner().invoke(app, ["recommend", "serve", *map(str, arguments)])
    assert result.exit_code == 1
    (line,) = result.output.strip().splitlines()
    return line


@pytest.fixture(scope="module")
def running(model: Path, shop: Shop) -> Iterator[tuple[subprocess.Popen[str], str]]:
    shop.items.write_csv(model.parent / "titles.csv")
    command = [*COMMAND, str(model), "--port", "0", "--titles", str(model.parent / "titles.csv")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline()
        process.kill()


def until_ready(client: httpx.Client) -> bool:
    for _ in range(600):
        try:
            return client.get("ready").status_code == 200
        except httpx.TransportError:  # it says where it will be a moment before it is there
            time.sleep(0.05)
    return False


@pytest.mark.process
def test_serve_prints_its_address_and_answers_open_requests_before_ctrl_c_ends_it(
    running: tuple[subprocess.Popen[str], str],
) -> None:
    process, line = running
    assert "http://127.0.0.1:" in line, line
    url = line.partition(" at ")[2].partition(" (")[0]
    with httpx.Client(base_url=url, timeout=30) as client:
        assert until_ready(client)
        assert client.get("items", params={"query": "alder"}).json()["items"][0]["title"].startswith("Alder")
        assert client.get("model", headers={"Host": "rebound.example"}).status_code == 421
        # Over a thousand histories to score: still at it when the signal comes.
        body = json.dumps({"users": list(range(40)), "k": 5, "reasons": 3}).encode()
        head = f"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        port = int(url.rstrip("/").rpartition(":")[2])
        waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        for each in waiting:
            each.sendall(head.encode() + body)
        for _ in range(3):  # answered after what was sent before was read
            assert httpx.get(f"{url}health").status_code == 200
        process.send_signal(signal.SIGINT)
        answers = [b"".join(iter(lambda: each.recv(2**16), b"")) for each in waiting]  # noqa: B023
        for each in waiting:
            each.close()
    assert [answer[9:12] for answer in answers] == [b"200"] * 4
    assert all(len(json.loads(answer.partition(b"\r\n\r\n")[2])["results"]) == 40 for answer in answers)
    rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "stopped\n")


def test_port_in_use_is_an_error_of_one_line(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = refused(model, "--port", taken.getsockname()[1])
    assert line.startswith("cannot listen at 127.0.0.1:")
    assert "choose another --port" in line


def test_foreign_address_is_an_error_of_one_line(model: Path) -> None:
    assert "cannot listen at 192.0.2.1:" in refused(model, "--host", "192.0.2.1", "--port", "0")


def test_missing_model_is_an_error_of_one_line(tmp_path: Path) -> None:
    assert "want a saved recommender" in refused(tmp_path / "nothing", "--port", "0")


def test_broken_model_is_an_error_of_one_line(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "model"
    broken.mkdir()
    for file in model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes()[:100])
    assert str(broken) in refused(broken, "--port", "0")


def test_missing_titles_are_an_error_of_one_line(model: Path, tmp_path: Path) -> None:
    assert "want a file of titles" in refused(model, "--titles", tmp_path / "titles.csv", "--port", "0")


def test_loopback_addresses_accept_only_local_names() -> None:
    assert "localhost" in (names("127.0.0.1", []) or [])
    assert "shop.example" in (names("::1", ["shop.example"]) or [])
    assert names("0.0.0.0", []) is None
    assert names("0.0.0.0", ["shop.example"]) == ["shop.example"]


def test_default_host_is_loopback() -> None:
    assert inspect.signature(serve).parameters["host"].default == "127.0.0.1"
