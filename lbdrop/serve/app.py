"""The service: HTTP over a fitted recommender, described by OpenAPI, with a page for people.

    GET  /            a page: type titles you like, see what is recommended, how sure that is, and why
    POST /recommend   to users by id, or to histories of people the model never saw
    POST /explain     which items of a history speak for an item
    POST /similar     the items most like an item
    GET  /items       items by words of their title
    GET  /model       method, sizes, versions, limits
    GET  /health      the process answers; /ready: and so does the model

Whatever is computed is computed by one thread, for many requests at once (:mod:`lbdrop.serve.batching`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Query
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from lbdrop.recommend.model import Recommender
from lbdrop.serve import schemas
from lbdrop.serve.batching import Batcher, Full
from lbdrop.serve.desk import Desk
from lbdrop.serve.engine import Answer, Engine, Question, Similar
from lbdrop.serve.forward import NOTHING
from lbdrop.serve.refusals import BodyGuard, HostGuard, Refused, handle_refusals

__all__ = ["Limits", "create_app"]

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Failure, "description": what}
    for status, what in {
        400: "The body is not JSON.",
        404: "An id that the model does not know.",
        408: "The body took too long to come.",
        413: "The body is too large.",
        415: "The body is not called JSON.",
        421: "Asked under a name that is not the service's.",
        422: "JSON of another shape than this one.",
        503: "Too many are waiting; Retry-After says for how long.",
    }.items()
}


@dataclass(frozen=True)
class Limits:
    """How much the service takes on at a time."""

    rows: int = 64
    """Histories in one forward pass."""
    wait: float = 0.002
    """Seconds a request waits for others to share its pass, at most."""
    waiting: int = 256
    """Requests that may wait; one more is told to come back."""
    seconds: float = 30.0
    """Until an answer, or until a body has come; then the request is given up."""
    body: int = schemas.BODY
    """Bytes of a request."""


def create_app(
    recommender: Recommender,
    titles: dict[str, str] | None = None,
    limits: Limits | None = None,
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """The service as an ASGI app, for any server.

    Args:
        recommender: fitted or loaded.
        titles: by the text of an item's id; items without one go by their ids.
        limits: how much to take on at a time.
        hosts: names to be asked under (the ``Host`` of a request); any if ``None``.
    """
    limits = limits or Limits()
    engine = Engine(recommender)
    desk = Desk(recommender, engine, titles)
    batcher: Batcher[Question | Similar, Answer] = Batcher(
        engine, rows=limits.rows, wait=limits.wait, waiting=limits.waiting
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        await batcher.ask([Question(NOTHING)])  # the first pass loads kernels: not on a user's time
        try:
            yield
        finally:
            await asyncio.to_thread(batcher.stop)

    async def answers(questions: Sequence[Question | Similar]) -> Sequence[Answer]:
        try:
            async with asyncio.timeout(limits.seconds):
                return await batcher.ask(questions)
        except (Full, TimeoutError) as error:
            what = f"{limits.waiting} are waiting" if isinstance(error, Full) else f"{limits.seconds:g} s have passed"
            raise Refused(
                503, f"want fewer requests at a time: {what}; come back later", {"Retry-After": "1"}
            ) from error

    app = FastAPI(
        title="lbdrop recommend",
        description="Recommendations with their uncertainty, by a fitted recommender.",
        version=desk.facts()["versions"]["lbdrop"],
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.batcher = batcher
    app.add_middleware(BodyGuard, most=limits.body, seconds=limits.seconds)
    if hosts is not None:
        app.add_middleware(HostGuard, names=hosts)  # the last one added is the first to look
    _add_page(app)

    @app.post("/recommend", response_model=schemas.Recommended, responses=FAILURES)
    async def recommend(asked: schemas.Recommend) -> Response:
        """The best items of users of the fitted data, by id, or of people it never saw, by their history."""
        people = desk.people(asked)
        found = await answers(desk.questions(asked, people))
        return _json(desk.recommended(people, found, asked.reasons))

    @app.post("/explain", response_model=schemas.Explanation, responses=FAILURES)
    async def explain(asked: schemas.Explain) -> Response:
        """How much each item of a history speaks for some items: what their score loses without it."""
        person = desk.person(asked)
        (found,) = await answers([desk.about(asked, person)])
        return _json(desk.explained(person, found))

    @app.post("/similar", response_model=schemas.Alike, responses=FAILURES)
    async def similar(asked: schemas.SimilarTo) -> Response:
        """The items most like each of these."""
        alike = desk.alike(asked)
        return _json(desk.found_alike(alike, await answers(alike)))

    @app.get("/items", response_model=schemas.Items, responses={422: FAILURES[422]})
    async def items(
        query: Annotated[str, Query(max_length=schemas.TITLE)] = "",
        limit: Annotated[int, Query(ge=1, le=schemas.NAMED)] = 10,
    ) -> Response:
        """Items whose title has all the words of the query; the most liked ones without it."""
        return _json(desk.search(query, limit))

    @app.get("/model", response_model=schemas.ModelFacts)
    async def model() -> Response:
        """What runs here."""
        return _json(desk.facts())

    @app.get("/health", response_model=schemas.Health)
    async def health() -> Response:
        """The process answers."""
        return _json({"status": "ok"})

    @app.get("/ready", response_model=schemas.Health, responses={503: FAILURES[503]})
    async def ready() -> Response:
        """The model answers."""
        if not batcher.running:
            raise Refused(503, "ready: want a running model, got none; come back later", {"Retry-After": "1"})
        return _json({"status": "ok"})

    handle_refusals(app)
    return app


def _add_page(app: FastAPI) -> None:
    for path, (name, kind) in PAGE.items():
        response = partial(
            Response, files("lbdrop.serve").joinpath(name).read_bytes(), media_type=kind, headers=HEADERS
        )

        async def page(_: Request, response: Callable[[], Response] = response) -> Response:
            return response()

        app.router.add_route(path, page, methods=["GET"], include_in_schema=False)


def _json(content: dict[str, Any]) -> Response:
    return Response(to_json(content), media_type="application/json", headers={"X-Content-Type-Options": "nosniff"})
