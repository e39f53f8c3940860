"""Around the app: headers of every answer; checks of the Host, of who asks, and of a body's type, size and speed."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from lbdrop.serve.errors import SEE_OPENAPI, ApiError, error_response, shortened

__all__ = ["SECURITY_HEADERS", "BodyLimit", "HostCheck", "SameSite", "SecurityHeaders"]

OUR_HEADER = "X-Lbdrop"
"""No web page can send it to another site without asking first, which nobody answers."""
OPEN_PATHS = ("/", "/page.css", "/page.js", "/openapi.json", "/health", "/ready")
"""Paths that compute nothing."""
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""Of every answer; a page has its own policy."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class SecurityHeaders:
    """The outermost: adds these headers to every answer, also where the app fails."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        started = False

        async def with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                there = {name.lower() for name, _ in message["headers"]}
                more = ((name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items())
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in there)]
            await send(message)

        try:
            await self.app(scope, receive, with_headers)
        except Exception as error:
            if scope["type"] == "http" and not started:
                failed = error_response(500, f"the service failed: {type(error).__name__}; its log says more")
                await failed(scope, receive, with_headers)
            raise


class SameSite:
    """Refuses what a browser sends for a page of another site: its reader should not pay for that with computing time.

    A browser says whose page asks. Where it does not, over plain HTTP to another machine, `OUR_HEADER` is wanted from it.
    """

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._is_ours(dict(scope["headers"])):
            message = (
                f"site: want this service's own page, or a program, got a page of another site; send {OUR_HEADER}: 1"
            )
            return await error_response(403, message, {"Connection": "close"})(scope, receive, send)
        return await self.app(scope, receive, send)

    def _is_ours(self, headers: Mapping[bytes, bytes]) -> bool:
        if OUR_HEADER.lower().encode() in headers:
            return True
        if (site := headers.get(b"sec-fetch-site")) is not None:
            return site in (b"same-origin", b"none")
        browser = headers.get(b"user-agent", b"").startswith(b"Mozilla/")
        return not (browser or b"origin" in headers or b"referer" in headers)


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
