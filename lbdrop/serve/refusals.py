"""What the service will not do, in one sentence and one shape: ``{"error": "what was wanted, what came, what to do next"}``."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from lbdrop.serve.schemas import Explain, Recommend, SimilarTo

__all__ = ["BodyGuard", "HostGuard", "Refused", "failure", "handle_refusals", "shown"]

SEE = "see /openapi.json"
TYPES = ("int_type", "string_type")
BODIES: dict[str, type[BaseModel]] = {"/recommend": Recommend, "/explain": Explain, "/similar": SimilarTo}


class Refused(Exception):
    """Answered with this status and sentence."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status, self.headers = status, headers


def failure(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """The sentence as JSON, in plain ASCII: what came may hold what cannot be encoded."""
    return Response(json.dumps({"error": sentence}), status, headers, media_type="application/json")


def shown(value: Any) -> str:
    """What came, short enough to be read."""
    if isinstance(value, list | tuple | dict):
        return f"a list of {len(value):,}" if not isinstance(value, dict) else "an object"
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "…"


def handle_refusals(app: FastAPI) -> None:
    """Every error of the app in our shape."""
    paths = sorted({getattr(route, "path", "") for route in app.routes})

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        return failure(error.status, str(error), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        errors = error.errors()
        malformed = errors[0]["type"] == "json_invalid"
        return failure(400 if malformed else 422, sentence(errors, BODIES.get(request.url.path)))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        got = f"{request.method} {shown(request.url.path)}"
        if error.status_code == 404:
            return failure(404, f"path: want one of {', '.join(paths)}, got {got}; {SEE}")
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            return failure(405, f"method: want {allowed}, got {got}; {SEE}", error.headers)
        if error.status_code == 400:  # FastAPI's word for a body that made the parser give up
            return failure(400, f"body: want JSON, got something that cannot be read as such; {SEE}")
        return failure(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        return failure(500, f"the service failed: {type(error).__name__}; its log says more")


def sentence(errors: Sequence[Mapping[str, Any]], body: type[BaseModel] | None) -> str:
    """The first thing that is wrong, in words."""
    # Of an id there are two errors, for it is neither a number nor text; what is wrong with the one that it is says more.
    of_ids = [each for each in errors if each["loc"][:-1] == errors[0]["loc"][:-1] and each["type"] not in TYPES]
    first = of_ids[0] if errors[0]["type"] in TYPES and of_ids else errors[0]
    place, kind, got, about = list(first["loc"]), first["type"], first.get("input"), first.get("ctx", {})
    if kind == "json_invalid":
        return f"body: want JSON, got an error at character {place[-1]}: {about.get('error', first['msg'])}; {SEE}"
    inside = place[1:] if place and place[0] in ("body", "query", "path") else place
    # A union of types has one error for each, under a name of its own.
    inside = [each for each in inside if isinstance(each, int) or "[" not in each]
    if inside and inside[-1] in ("int", "str", "constrained-int", "constrained-str"):
        kind, inside = "id_type" if kind in TYPES else kind, inside[:-1]
    where = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in inside).lstrip(".") or "body"
    fields = ", ".join(body.model_fields) if body is not None else "other names"
    wants = {
        "missing": "a value",
        "extra_forbidden": f"one of {fields}",
        "id_type": "an id, a whole number or text",
        "int_type": "a whole number",
        "int_parsing": "a whole number",
        "int_from_float": "a whole number",
        "bool_type": "true or false",
        "string_type": "text",
        "list_type": "a list",
        "model_type": "a JSON object",
        "model_attributes_type": "a JSON object",
        "dict_type": "a JSON object",
        "greater_than_equal": f"at least {about.get('ge')}",
        "less_than_equal": f"at most {about.get('le')}",
        "less_than": f"less than {about.get('lt')}",
        "too_short": f"at least {about.get('min_length')}",
        "too_long": f"at most {about.get('max_length')}",
        "string_too_long": f"at most {about.get('max_length')} letters",
        "string_unicode": "text in valid Unicode",
    }
    if kind == "value_error":
        return f"{where}: {about.get('error', first['msg'])}; {SEE}"
    came = {
        "missing": "nothing",
        "extra_forbidden": "a field of an unknown name",
        "too_short": about.get("actual_length"),
        "too_long": about.get("actual_length") or "more",
    }.get(kind, shown(got))
    return f"{where}: want {wants.get(kind) or first['msg']}, got {came}; {SEE}"


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class HostGuard:
    """Answers under these names alone: a page elsewhere whose own name was made to lead here (DNS rebinding) reads nothing."""

    def __init__(self, app: Any, names: Collection[str]):
        self.app, self.names = app, {name.lower() for name in names}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
            if self._name(host) not in self.names:
                wanted = ", ".join(sorted(self.names))
                told = f"Host: want one of {wanted}, got {shown(host)}; start the service with --allow-host for another"
                return await failure(421, told, {"Connection": "close"})(scope, receive, send)
        return await self.app(scope, receive, send)

    def _name(self, host: str) -> str | None:
        try:
            return urlsplit(f"//{host}").hostname
        except ValueError:
            return None


class BodyGuard:
    """Reads bodies before anything looks at them: JSON by name, no more bytes than allowed, no slower than allowed."""

    def __init__(self, app: Any, most: int, seconds: float):
        self.app, self.most, self.seconds = app, most, seconds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT", "PATCH"):
            return await self.app(scope, receive, send)
        headers = {name.lower(): value for name, value in scope["headers"]}
        try:
            self._check(headers)
            body = await asyncio.wait_for(self._read(receive), self.seconds)
        except Refused as error:
            # The rest of the body would be taken for the next request.
            return await failure(error.status, str(error), {"Connection": "close"})(scope, receive, send)
        except TimeoutError:
            late = f"body: want it within {self.seconds:g} s, got a part of it; send it again"
            return await failure(408, late, {"Connection": "close"})(scope, receive, send)
        if body is None:  # gone before it was sent
            return None
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            return next(parts, None) or await receive()

        return await self.app(scope, replay, send)

    def _check(self, headers: Mapping[bytes, bytes]) -> None:
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower().decode("latin-1")
        if kind != "application/json":
            raise Refused(415, f"Content-Type: want application/json, got {shown(kind) if kind else 'none'}; {SEE}")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > self.most:
            raise self._too_much(f"{length[:20].decode()} bytes")

    async def _read(self, receive: Receive) -> bytes | None:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.most:
                raise self._too_much("more")
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_much(self, got: str) -> Refused:
        return Refused(413, f"body: want at most {self.most} bytes, got {got}; ask about fewer at once")
