"""Checks before a request reaches the app: the Host header, and the type, size and speed of a body."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from lbdrop.serve.errors import SEE_OPENAPI, ApiError, error_response, shortened

__all__ = ["BodyLimit", "HostCheck"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class HostCheck:
    """Rejects requests whose Host is not one of these names, so that a page that uses DNS rebinding reads nothing."""

    def __init__(self, app: Any, names: Collection[str]):
        self.app, self.names = app, {name.lower() for name in names}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
            if self._name(host) not in self.names:
                wanted = ", ".join(sorted(self.names))
                message = f"Host: want one of {wanted}, got {shortened(host)}; start the service with --allow-host for another"
                return await error_response(421, message, {"Connection": "close"})(scope, receive, send)
        return await self.app(scope, receive, send)

    def _name(self, host: str) -> str | None:
        try:
            return urlsplit(f"//{host}").hostname
        except ValueError:
            return None


class BodyLimit:
    """Reads a body before the app does: its type must be JSON, and size and time are limited."""

    def __init__(self, app: Any, max_bytes: int, max_seconds: float):
        self.app, self.max_bytes, self.max_seconds = app, max_bytes, max_seconds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT", "PATCH"):
            return await self.app(scope, receive, send)
        headers = {name.lower(): value for name, value in scope["headers"]}
        try:
            self._check(headers)
            body = await asyncio.wait_for(self._read(receive), self.max_seconds)
        except ApiError as error:
            # Closed, because the rest of the body would be read as the next request.
            return await error_response(error.status, str(error), {"Connection": "close"})(scope, receive, send)
        except TimeoutError:
            message = f"body: want it within {self.max_seconds:g} s, got a part of it; send it again"
            return await error_response(408, message, {"Connection": "close"})(scope, receive, send)
        if body is None:  # the client has disconnected
            return None
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            return next(messages, None) or await receive()

        return await self.app(scope, replay, send)

    def _check(self, headers: Mapping[bytes, bytes]) -> None:
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower().decode("latin-1")
        if kind != "application/json":
            raise ApiError(
                415, f"Content-Type: want application/json, got {shortened(kind) if kind else 'none'}; {SEE_OPENAPI}"
            )
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > self.max_bytes:
            raise self._too_large(f"{length[:20].decode()} bytes")

    async def _read(self, receive: Receive) -> bytes | None:
        chunks, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self.max_bytes:
                raise self._too_large("more")
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _too_large(self, got: str) -> ApiError:
        return ApiError(413, f"body: want at most {self.max_bytes} bytes, got {got}; send fewer users or items at once")
