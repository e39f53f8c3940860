"""Around the app: headers of every answer; checks of the Host, of who asks, and of a body's type, size and speed."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from lbdrop.serve.errors import SEE_OPENAPI, ApiError, error_response, shortened

__all__ = ["SECURITY_HEADERS", "Gate"]

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
Headers = Mapping[bytes, bytes]


class Gate:
    """Checks a request before the app has it, reads its body, and gives every answer these headers, also where the app fails.

    Args:
        app: what is behind it.
        names: accepted names in the ``Host`` header; any if ``None``.
        max_bytes, max_seconds: size of a body, and time until all of it is here.
    """

    def __init__(self, app: Any, names: Collection[str] | None, max_bytes: int, max_seconds: float):
        self.app, self.max_bytes, self.max_seconds = app, max_bytes, max_seconds
        self.names = None if names is None else {name.lower() for name in names}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
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
            headers = {name.lower(): value for name, value in reversed(scope["headers"])}  # the first of a name counts
            self._check_host(headers)
            _check_site(scope["path"], headers)
            if scope["method"] in ("POST", "PUT", "PATCH"):
                receive = await self._with_body(headers, receive)
            await self.app(scope, receive, with_headers)
        except _Disconnected:
            return None
        except ApiError as error:
            # Closed, because the rest of a body would be read as the next request.
            await error_response(error.status, str(error), {"Connection": "close"})(scope, receive, with_headers)
        except Exception as error:
            if not started:
                failed = error_response(500, f"the service failed: {type(error).__name__}; its log says more")
                await failed(scope, receive, with_headers)
            raise

    def _check_host(self, headers: Headers) -> None:
        """Only these names, so that a page that uses DNS rebinding reads nothing."""
        if self.names is None:
            return
        host = headers.get(b"host", b"").decode("latin-1")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if name not in self.names:
            wanted, got = ", ".join(sorted(self.names)), shortened(host)
            raise ApiError(
                421, f"Host: want one of {wanted}, got {got}; start the service with --allow-host for another"
            )

    async def _with_body(self, headers: Headers, receive: Receive) -> Receive:
        """The body, read: what the app then receives."""
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower().decode("latin-1")
        if kind != "application/json":
            got = shortened(kind) if kind else "none"
            raise ApiError(415, f"Content-Type: want application/json, got {got}; {SEE_OPENAPI}")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > self.max_bytes:
            raise self._too_large(f"{length[:20].decode()} bytes")
        try:
            body = await asyncio.wait_for(self._read(receive), self.max_seconds)
        except TimeoutError as error:
            message = f"body: want it within {self.max_seconds:g} s, got a part of it; send it again"
            raise ApiError(408, message) from error
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            return next(messages, None) or await receive()

        return replay

    async def _read(self, receive: Receive) -> bytes:
        chunks, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Disconnected
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self.max_bytes:
                raise self._too_large("more")
            more = message.get("more_body", False)
        return b"".join(chunks)

    def _too_large(self, got: str) -> ApiError:
        return ApiError(413, f"body: want at most {self.max_bytes} bytes, got {got}; send fewer users or items at once")


class _Disconnected(Exception):
    """Nobody waits for an answer."""


def _check_site(path: str, headers: Headers) -> None:
    """Refuse what a browser sends for a page of another site: its reader should not pay for that with computing time.

    A browser says whose page asks. Where it does not, over plain HTTP to another machine, `OUR_HEADER` is wanted from it.
    """
    site = headers.get(b"sec-fetch-site")
    browser = headers.get(b"user-agent", b"").startswith(b"Mozilla/") or b"origin" in headers or b"referer" in headers
    ours = site in (b"same-origin", b"none") if site is not None else not browser
    if path not in OPEN_PATHS and OUR_HEADER.lower().encode() not in headers and not ours:
        raise ApiError(
            403, f"site: want this service's own page, or a program, got a page of another site; send {OUR_HEADER}: 1"
        )
