"""How many requests `lbdrop recommend serve` answers a second, how long each waits, whether any is lost, whether memory grows.

The service runs as users run it, a process of its own on 127.0.0.1. Clients are coroutines of this process on plain
connections that stay open; each asks for the ten best items of a user, as soon as its last question is answered. A level is
a number of clients. Every answer is checked: the first to a question against ``Recommender.recommend`` of the same folder (the
same items, or others of equal scores; scores and uncertainty to 1e-4), the others byte for byte against the first. Then
50,000 requests in a row from sixteen clients, with the server's resident memory (VmRSS) read every thousand. At last 64 clients
for a minute while a thousand others have sent half a request and wait; before and after that without them, for comparison. Then
64 clients once more, and SIGTERM in the middle: what was asked before has to be answered.

Clients and server share the machine's cores, so these rates are those of a machine that has both.

Run: ``python -m benchmarks.service``, on MovieLens-1M where ``data/prepared/ml-1m`` is, else on a generated shop.
"""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from lbdrop.io.records import provenance, write_json
from lbdrop.recommend import Recommender
from lbdrop.recommend.data.prepared import load_prepared
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.serve.connections import descriptors_for_connections

__all__ = ["main"]

K = 10
PREPARED = Path(__file__).parent.parent / "data" / "prepared" / "ml-1m"
START = [sys.executable, "-c", "from lbdrop.cli import app; app()", "recommend", "serve"]


def main(
    data: Annotated[str | None, typer.Option(help="ml-1m or shop; ml-1m if it is prepared.")] = None,
    clients: Annotated[list[int] | None, typer.Option(help="A level of concurrency; 1, 16 and 64 unless told.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests a level.")] = 5_000,
    total: Annotated[int, typer.Option(min=1, help="Requests in a row while memory is watched.")] = 50_000,
    epochs: Annotated[int, typer.Option(min=1, help="Of the model that is served.")] = 3,
    users: Annotated[int, typer.Option(min=1, help="Users asked about.")] = 1_000,
    idle: Annotated[int, typer.Option(min=1, help="Clients that never end their request.")] = 1_000,
    seconds: Annotated[float, typer.Option(help="Beside these, how long 64 others ask.")] = 60.0,
    out: Annotated[Path | None, typer.Option(help="The JSON to write.")] = None,
) -> None:
    """Requests a second, waiting times, losses and memory."""
    console = Console(highlight=False)
    name = data or ("ml-1m" if PREPARED.is_dir() else "shop")
    interactions = load_prepared(PREPARED).interactions if name == "ml-1m" else generate_shop().interactions
    model = Recommender(dropout="learned", epochs=epochs, patience=None, progress=False).fit(interactions)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        checked = Checked.of(model, users)
        with serving(Path(folder) / "model", Path(folder) / "log") as server:
            for level in (64, 16, 1):  # warm up: memory taken, every question asked once
                asyncio.run(load(server.port, level, max(users, level), checked))
            levels = [measure(server, level, requests, checked) for level in clients or (1, 16, 64)]
            memory = watch(server, total, checked)
            beside_idle = asyncio.run(beside(server, idle, seconds, checked))
            beside_idle["lost_at_sigterm"] = asyncio.run(stopped(server, checked))
        beside_idle["log_bytes"] = (Path(folder) / "log").stat().st_size
    for level in levels:
        console.print(
            f"{level['clients']:>3} clients: {level['requests_per_second']:,.0f} requests/s, median"
            f" {level['p50_ms']:.1f} ms, 99 % within {level['p99_ms']:.1f} ms"
        )
    console.print(
        f"{memory['requests']:,} requests in a row: {memory['start_mib']:.0f} MiB at first, {memory['end_mib']:.0f} at the"
        f" end; lost or wrong: {checked.wrong}"
    )
    result = {
        "settings": {"data": name, "method": model.choice.method, "items": len(model.items_), "k": K, "users_asked": users,
                     "samples": model.samples(), "epochs": epochs},
        "levels": levels,
        "memory": memory,
        "idle": beside_idle,
        "checked": {"answers": checked.answers, "wrong": checked.wrong, "largest_difference": checked.difference},
        "provenance": provenance(),
    }  # fmt: skip
    console.print(
        f"64 clients beside {idle:,} idle ones for {seconds:g} s: 99 % within {beside_idle['p99_ms']:.1f} ms, without these"
        f" {beside_idle['p99_without_ms']:.1f}; lost at SIGTERM: {beside_idle['lost_at_sigterm']}"
    )
    path = out or Path(__file__).parent / "results" / "service.json"
    console.print(f"JSON: {write_json(path, result)}", soft_wrap=True)
    if checked.wrong:
        raise typer.Exit(1)


# -------------------------------------------------------------------------------------------------------------- server


@dataclass(frozen=True)
class Server:
    port: int
    pid: int

    def processor(self) -> float:
        """Seconds of processor time that the process has used, which other processes' work does not change."""
        after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        """MiB of memory that the process holds."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def serving(model: Path, log: Path) -> Iterator[Server]:
    """The service in a process of its own, until the end of the block."""
    command = [*START, str(model), "--port", "0"]
    with log.open("w") as said, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "http://" not in line:
                raise RuntimeError(f"the service did not start: {line!r}")
            port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
            asyncio.run(until_ready(port))
            yield Server(port, process.pid)
        finally:
            process.terminate()


async def until_ready(port: int) -> None:
    for _ in range(600):
        try:
            connection = await Connection.open(port)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        status, _ = await connection.ask(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connection.close()
        if status == 200:
            return
    raise RuntimeError("the service was not ready within a minute")


# ------------------------------------------------------------------------------------------------------------- clients


@dataclass
class Connection:
    """HTTP/1.1 as much as is needed: a client library would take longer than the service."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        return int(head[9:12]), await self.reader.readexactly(length)

    def close(self) -> None:
        self.writer.close()


@dataclass
class Checked:
    """Questions, the library's answers to them, and what came of the service's."""

    users: list[int | str]
    requests: list[bytes]
    expected: list[list[dict[str, Any]]]
    first: dict[int, bytes] = field(default_factory=dict)
    answers: int = 0
    wrong: int = 0
    difference: float = 0.0

    @classmethod
    def of(cls, model: Recommender, count: int) -> "Checked":
        assert model.interactions_ is not None
        known = model.interactions_.users
        users = known[np.random.default_rng(0).permutation(len(known))[:count]].to_list()
        # All items: whether another item is as good can then be told.
        table = model.recommend(users, k=len(model.items_))
        rows = {key[0]: part.to_dicts() for key, part in table.group_by("user_id", maintain_order=True)}
        return cls(users, [post({"users": [user], "k": K}) for user in users], [rows[user] for user in users])

    def check(self, question: int, status: int, body: bytes) -> None:
        self.answers += 1
        if body == self.first.get(question):
            return
        found = json.loads(body) if status == 200 else None
        if question not in self.first and found is not None and self._right(question, found):
            self.first[question] = body
        else:
            self.wrong += 1

    def _right(self, question: int, found: dict[str, Any]) -> bool:
        expected = {row["item_id"]: row for row in self.expected[question]}
        (answer,) = found["results"]
        if answer["user_id"] != self.users[question] or len(answer["items"]) != K:
            return False
        if len({item["item_id"] for item in answer["items"]}) != K:
            return False
        for best, item in zip(self.expected[question], answer["items"], strict=False):
            own = expected.get(item["item_id"])
            if own is None:
                return False
            pairs = [(item["score"], own["score"]), (item["score"], best["score"])]
            if own.get("uncertainty") is not None:
                pairs.append((item["uncertainty"], own["uncertainty"]))
            self.difference = max(self.difference, *(abs(a - b) for a, b in pairs))
            if not all(math.isclose(a, b, abs_tol=1e-4) for a, b in pairs):
                return False
        return True


def post(body: dict[str, Any], path: str = "/recommend") -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    return f"{head}\r\n\r\n".encode() + content


async def load(port: int, clients: int, requests: int, checked: Checked) -> list[float]:
    """Seconds of every request, from so many clients at once."""
    left = iter(range(requests))
    seconds: list[float] = []

    async def client() -> None:
        connection = await Connection.open(port)
        for number in left:
            question = number % len(checked.users)
            start = time.perf_counter()
            status, body = await connection.ask(checked.requests[question])
            seconds.append(time.perf_counter() - start)
            checked.check(question, status, body)
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return seconds


def measure(server: Server, clients: int, requests: int, checked: Checked) -> dict[str, Any]:
    before, used, start = checked.answers, server.processor(), time.perf_counter()
    waits = np.array(asyncio.run(load(server.port, clients, requests, checked))) * 1e3
    passed, used = time.perf_counter() - start, server.processor() - used
    return {
        "clients": clients,
        "requests": requests,
        "answered": checked.answers - before,
        "requests_per_second": requests / passed,
        "mean_ms": float(waits.mean()),
        "p50_ms": float(np.percentile(waits, 50)),
        "p99_ms": float(np.percentile(waits, 99)),
        "max_ms": float(waits.max()),
        "server_processor_ms": used / requests * 1e3,
    }


async def beside(server: Server, idle: int, seconds: float, checked: Checked, clients: int = 64) -> dict[str, Any]:
    """Waits of busy clients for so long, while others send half a head and again whenever they are cut off."""
    waiting: set[asyncio.StreamWriter] = set()
    cut = 0

    async def half() -> None:
        nonlocal cut
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            waiting.add(writer)
            try:
                writer.write(b"GET /items HTTP/1.1\r\nHost: loc")
                await reader.read()
            except OSError:
                pass
            finally:
                waiting.discard(writer)
                writer.close()
            cut += 1

    async def asked(how_long: float) -> np.ndarray:
        until, waits = time.perf_counter() + how_long, []
        while time.perf_counter() < until:
            waits += await load(server.port, clients, 10 * clients, checked)
        return np.array(waits) * 1e3

    descriptors_for_connections()  # raises their limit
    before = checked.answers
    first, start = await asked(seconds / 4), server.resident()
    others = [asyncio.create_task(half()) for _ in range(idle)]
    while len(waiting) < idle * 0.9:
        await asyncio.sleep(0.05)
    with_them, most = await asked(seconds), server.resident()
    open_at_the_end = len(waiting)
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(1)
    without = np.concatenate([first, await asked(seconds / 4)])
    return {
        "idle_clients": idle, "open_at_the_end": open_at_the_end, "cut_off": cut, "clients": clients, "seconds": seconds,
        "requests": len(with_them), "answered": checked.answers - before, "asked": len(with_them) + len(without),
        "p50_ms": float(np.percentile(with_them, 50)), "p99_ms": float(np.percentile(with_them, 99)),
        "p50_without_ms": float(np.percentile(without, 50)), "p99_without_ms": float(np.percentile(without, 99)),
        "memory_growth_mib": most - start,
    }  # fmt: skip


async def stopped(server: Server, checked: Checked, clients: int = 64) -> int:
    """Requests that were sent before SIGTERM and got no answer."""
    connections = [await Connection.open(server.port) for _ in range(clients)]
    asked = [asyncio.create_task(each.ask(checked.requests[0])) for each in connections]
    await asyncio.sleep(0)  # all are written
    os.kill(server.pid, signal.SIGTERM)
    ended = await asyncio.gather(*asked, return_exceptions=True)
    for each in connections:
        each.close()
    await asyncio.sleep(0.1)  # until they are
    return sum(isinstance(each, BaseException) or each[0] != 200 for each in ended)


def watch(server: Server, total: int, checked: Checked, clients: int = 16) -> dict[str, Any]:
    """The server's memory over many requests in a row."""
    held, answered = [server.resident()], 0
    step = max(total // 50, 1)
    while answered < total:
        asyncio.run(load(server.port, clients, min(step, total - answered), checked))
        answered += min(step, total - answered)
        held.append(server.resident())
    return {
        "requests": total,
        "clients": clients,
        "start_mib": held[0],
        "end_mib": held[-1],
        "growth_mib": held[-1] - held[0],
        "growth_of_second_half_mib": held[-1] - held[len(held) // 2],
        "resident_mib": held,
    }


if __name__ == "__main__":
    typer.run(main)
