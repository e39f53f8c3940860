"""Connections that cannot lock others out: deadlines, a limit below the file descriptors, a log that stays short.

A connection owes us a request until its head and body are here. For the head it has `HEAD_SECONDS`, for everything else
`REQUEST_SECONDS`. Where all descriptors are taken, the connection that has owed one for longest makes room. When the service
stops, an open connection may still send what is on its way: it is answered and told ``Connection: close``.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = ["BACKLOG", "LogLimit", "bounded_connections", "descriptors_for_connections"]

HEAD_SECONDS, REQUEST_SECONDS, STOPPING_SECONDS = 10.0, 75.0, 1.0
BACKLOG = 64
"""Connections that the system accepts for us before we have counted them."""
RESERVE = BACKLOG + 64
"""Descriptors for these, and for files that are opened meanwhile."""
MOST_DESCRIPTORS = 1 << 14
LINES_A_MINUTE = 30
CLOSE = (b"connection", b"close")


def descriptors_for_connections() -> int:
    """How many connections may be open at once; raises the soft limit of descriptors as far as the system allows."""
    try:
        import resource
    except ModuleNotFoundError:  # no such limits on this system
        return MOST_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    taken = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 64
    return max(min(MOST_DESCRIPTORS if soft < 0 else soft, MOST_DESCRIPTORS) - taken - RESERVE, 8)


def bounded_connections(most: int, headers: Mapping[str, str]) -> type[asyncio.Protocol]:
    """The protocol of uvicorn for at most so many connections; ``headers`` go with refusals that no app sees."""
    return type("BoundedConnection", (Connection,), {"most": most, "refusal": dict(headers), "owing": {}})


class Connection(AutoHTTPProtocol):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
    """One connection of a client; the class knows all that owe us a request, the oldest first."""

    most: ClassVar[int]
    refusal: ClassVar[dict[str, str]]
    owing: ClassVar[dict["Connection", None]]
    transport: Any
    loop: asyncio.AbstractEventLoop
    connections: set[Any]
    cycle: Any
    timer: asyncio.TimerHandle | None = None
    stage: tuple[int, str] | None = None
    stopping = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            if not self.owing:
                return self.refuse(503, "connection: want fewer at a time, got too many; come back later")
            next(iter(self.owing)).end()
        self.note_stage()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.note_stage()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # pyright: ignore[reportAttributeAccessIssue]
        self.note_stage()

    def connection_lost(self, exc: Exception | None) -> None:
        self.owing.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """What is on its way when the service stops is answered; a connection without a request then closes."""
        self.stopping = True
        self.announce_close()
        if self.stage_now() == "head":
            self.loop.call_later(STOPPING_SECONDS, self.close_if_idle)
        else:
            super().shutdown()  # pyright: ignore[reportAttributeAccessIssue]

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, "request: want HTTP/1.1, got something else; see /openapi.json")

    # ---------------------------------------------------------------------------------------------------------- pieces

    def stage_now(self) -> str:
        """What the connection is at: sending a ``head`` or a ``body``, or waiting for its ``answer``."""
        if self.cycle is None or self.cycle.response_complete:
            return "head"
        return "body" if self.cycle.more_body else "answer"

    def note_stage(self) -> None:
        name = self.stage_now()
        if self.stage == (id(self.cycle), name):
            return  # more of the same is no progress: a byte a second must not hold a connection
        self.stage = (id(self.cycle), name)
        if self.timer is not None:
            self.timer.cancel()
        unread = self.transport.get_write_buffer_size() > 0
        self.timer = self.loop.call_later(HEAD_SECONDS if name == "head" and not unread else REQUEST_SECONDS, self.end)
        if name == "answer":
            self.owing.pop(self, None)
        else:
            self.owing.setdefault(self)
        if self.stopping:
            self.announce_close()

    def announce_close(self) -> None:
        if self.stage_now() != "head":
            self.cycle.keep_alive = False
            if CLOSE not in self.cycle.scope["headers"]:
                self.cycle.scope["headers"].append(CLOSE)  # uvicorn then answers with it

    def close_if_idle(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()  # pyright: ignore[reportAttributeAccessIssue]

    def end(self) -> None:
        self.owing.pop(self, None)
        self.transport.abort()

    def refuse(self, status: int, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        more = {**self.refusal, "Content-Type": "application/json", "Content-Length": len(body), "Connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in more.items())
        self.transport.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode() + body)
        self.transport.close()
        self.timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)


class LogLimit(logging.Filter):
    """At most `LINES_A_MINUTE` records; the next minute begins with how many were left out."""

    def __init__(self, clock: Any = time.monotonic):
        super().__init__()
        self.clock, self.minute, self.passed, self.dropped = clock, -1, 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        minute = int(self.clock() // 60)
        if minute != self.minute:
            if self.dropped:
                record.msg = f"{self.dropped:,} log lines were left out, as there were too many; {record.msg}"
            self.minute, self.passed, self.dropped = minute, 0, 0
        self.passed += 1
        self.dropped += self.passed > LINES_A_MINUTE
        return self.passed <= LINES_A_MINUTE
