"""Every error of the service in one form: ``{"error": "what: want …, got …; next step"}``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from lbdrop.serve.schemas import Explain, Recommend, SimilarTo

__all__ = ["SEE_OPENAPI", "ApiError", "add_error_handlers", "error_response", "shortened"]

SEE_OPENAPI = "see /openapi.json"
ID_TYPE_ERRORS = ("int_type", "string_type")
REQUEST_MODELS: dict[str, type[BaseModel]] = {"/recommend": Recommend, "/explain": Explain, "/similar": SimilarTo}


class ApiError(Exception):
    """An error to answer with this status and message."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.headers = status, headers


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """The message as JSON in ASCII: it may quote characters that UTF-8 cannot encode."""
    return Response(json.dumps({"error": message}), status, headers, media_type="application/json")


def shortened(value: Any) -> str:
    """A received value in at most 60 characters."""
    if isinstance(value, list | tuple | dict):
        return f"a list of {len(value):,}" if not isinstance(value, dict) else "an object"
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "…"


def add_error_handlers(app: FastAPI) -> None:
    """Give every error of the app this form."""
    paths = sorted({getattr(route, "path", "") for route in app.routes})

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> Response:
        return error_response(error.status, str(error), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        errors = error.errors()
        malformed = errors[0]["type"] == "json_invalid"
        return error_response(
            400 if malformed else 422, validation_message(errors, REQUEST_MODELS.get(request.url.path))
        )

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        got = f"{request.method} {shortened(request.url.path)}"
        if error.status_code == 404:
            return error_response(404, f"path: want one of {', '.join(paths)}, got {got}; {SEE_OPENAPI}")
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            return error_response(405, f"method: want {allowed}, got {got}; {SEE_OPENAPI}", error.headers)
        if error.status_code == 400:  # FastAPI's status for a body that its parser cannot take
            return error_response(400, f"body: want JSON, got a body that cannot be parsed; {SEE_OPENAPI}")
        return error_response(error.status_code, str(error.detail), error.headers)


def validation_message(errors: Sequence[Mapping[str, Any]], body: type[BaseModel] | None) -> str:
    """The first validation error in words."""
    # An id may be an integer or text, so it gives two errors; one that is not about its type says more.
    about_values = [
        each for each in errors if each["loc"][:-1] == errors[0]["loc"][:-1] and each["type"] not in ID_TYPE_ERRORS
    ]
    first = about_values[0] if errors[0]["type"] in ID_TYPE_ERRORS and about_values else errors[0]
    location, kind, got, context = list(first["loc"]), first["type"], first.get("input"), first.get("ctx", {})
    if kind == "json_invalid":
        return f"body: want JSON, got an error at character {location[-1]}: {context.get('error', first['msg'])}; {SEE_OPENAPI}"
    fields = location[1:] if location and location[0] in ("body", "query", "path") else location
    # A union of types has one error for each type, with the type's name in the location.
    fields = [each for each in fields if isinstance(each, int) or "[" not in each]
    if fields and fields[-1] in ("int", "str", "constrained-int", "constrained-str"):
        kind, fields = "id_type" if kind in ID_TYPE_ERRORS else kind, fields[:-1]
    where = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in fields).lstrip(".") or "body"
    known = ", ".join(body.model_fields) if body is not None else "other names"
    wants = {
        "missing": "a value",
        "extra_forbidden": f"one of {known}",
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
        "greater_than_equal": f"at least {context.get('ge')}",
        "less_than_equal": f"at most {context.get('le')}",
        "less_than": f"less than {context.get('lt')}",
        "too_short": f"at least {context.get('min_length')}",
        "too_long": f"at most {context.get('max_length')}",
        "string_too_long": f"at most {context.get('max_length')} characters",
        "string_unicode": "text in valid Unicode",
    }
    if kind == "value_error":
        return f"{where}: {context.get('error', first['msg'])}; {SEE_OPENAPI}"
    received = {
        "missing": "nothing",
        "extra_forbidden": "a field of an unknown name",
        "too_short": context.get("actual_length"),
        "too_long": context.get("actual_length") or "more",
    }.get(kind, shortened(got))
    return f"{where}: want {wants.get(kind) or first['msg']}, got {received}; {SEE_OPENAPI}"
