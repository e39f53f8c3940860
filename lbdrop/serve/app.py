"""The service: HTTP over a fitted recommender, described by OpenAPI, with a page for people.

    GET  /            a page: type titles you like, see recommendations, their uncertainty and the reasons
    POST /recommend   for users by id, or for histories of people the model never saw
    POST /explain     which items of a history support an item
    POST /similar     the items most similar to an item
    GET  /items       items by words of their title
    GET  /model       method, sizes, versions, limits
    GET  /health      the process answers; /ready: and so does the model

One thread does all the computing, for several requests at once (:mod:`lbdrop.serve.batching`); another searches titles.
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

from lbdrop.recommend.recommender import Recommender
from lbdrop.serve import schemas
from lbdrop.serve.batching import Batcher, QueueFull
from lbdrop.serve.errors import ApiError, add_error_handlers
from lbdrop.serve.inference import EMPTY_HISTORY, HistoryQuery, InferenceEngine, Result, SimilarQuery
from lbdrop.serve.middleware import SECURITY_HEADERS, Gate
from lbdrop.serve.translation import SearchQuery, Translator

__all__ = ["Limits", "create_app"]

PAGE_HEADERS = {
    "Content-Security-Policy": "script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    + SECURITY_HEADERS["Content-Security-Policy"],
    "Cache-Control": "no-cache",
}
PAGE_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Failure, "description": description}
    for status, description in {
        400: "The body is not JSON.",
        403: "A web page of another site asks.",
        404: "The model does not know an id.",
        408: "The body arrived too slowly.",
        413: "The body is too large.",
        415: "The Content-Type is not JSON.",
        421: "The Host header is not a name of this service.",
        422: "The JSON does not match the schema.",
        503: "Too many requests are waiting; Retry-After says when to try again.",
    }.items()
}


@dataclass(frozen=True)
class Limits:
    """How much the service takes on at a time."""

    rows: int = 64
    """Histories in one forward pass."""
    wait: float = 0.002
    """Longest time in seconds that a request waits for others to share its pass."""
    waiting: int = 256
    """Requests that may wait; the next one gets a 503."""
    seconds: float = 30.0
    """Longest time in seconds until an answer, or until a whole body has arrived."""
    body: int = schemas.MAX_BODY_BYTES
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
        titles: by the text of an item's id; items without a title are shown by their ids.
        limits: how much to take on at a time.
        hosts: accepted names in the ``Host`` header; any if ``None``.
    """
    limits = limits or Limits()
    engine = InferenceEngine(recommender)
    translator = Translator(recommender, engine, titles)
    batcher: Batcher[HistoryQuery | SimilarQuery, Result] = Batcher(
        engine, max_rows=limits.rows, max_wait=limits.wait, max_pending=limits.waiting
    )
    searcher: Batcher[SearchQuery, Sequence[int]] = Batcher(
        translator.search, max_rows=1, max_pending=limits.waiting, name="search"
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        searcher.start()
        await batcher.submit(
            [HistoryQuery(EMPTY_HISTORY)]
        )  # the first pass loads kernels: no user should wait for that
        try:
            yield
        finally:
            await asyncio.to_thread(batcher.stop)
            await asyncio.to_thread(searcher.stop)

    async def results(queries: Sequence[Any], batcher: Batcher[Any, Any] = batcher) -> Sequence[Any]:
        try:
            async with asyncio.timeout(limits.seconds):
                return await batcher.submit(queries)
        except (QueueFull, TimeoutError) as error:
            reason = (
                f"{limits.waiting} are waiting" if isinstance(error, QueueFull) else f"{limits.seconds:g} s have passed"
            )
            raise ApiError(
                503, f"want fewer requests at a time: {reason}; come back later", {"Retry-After": "1"}
            ) from error

    app = FastAPI(
        title="lbdrop recommend",
        description="Recommendations with their uncertainty, by a fitted recommender.",
        version=translator.model_facts()["versions"]["lbdrop"],
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.batcher, app.state.searcher = batcher, searcher
    app.add_middleware(Gate, names=hosts, max_bytes=limits.body, max_seconds=limits.seconds)
    _add_page(app)

    @app.post("/recommend", response_model=schemas.Recommended, responses=ERROR_RESPONSES)
    async def recommend(request: schemas.Recommend) -> Response:
        """The best items of users of the fitted data, by id, or of people it never saw, by their history."""
        histories = translator.histories(request)
        found = await results(translator.recommend_queries(request, histories))
        return _json(translator.recommend_response(histories, found, request.reasons))

    @app.post("/explain", response_model=schemas.Explanation, responses=ERROR_RESPONSES)
    async def explain(request: schemas.Explain) -> Response:
        """How much each item of a history supports some items: how far their score falls without it."""
        history = translator.history_to_explain(request)
        (found,) = await results([translator.explain_query(request, history)])
        return _json(translator.explain_response(history, found))

    @app.post("/similar", response_model=schemas.Alike, responses=ERROR_RESPONSES)
    async def similar(request: schemas.SimilarTo) -> Response:
        """The items most similar to each of these."""
        queries = translator.similar_queries(request)
        return _json(translator.similar_response(queries, await results(queries)))

    @app.get(
        "/items", response_model=schemas.Items, responses={each: ERROR_RESPONSES[each] for each in (403, 422, 503)}
    )
    async def items(
        query: Annotated[str, Query(max_length=schemas.MAX_SEARCH_LENGTH)] = "",
        limit: Annotated[int, Query(ge=1, le=schemas.MAX_ITEMS)] = 10,
    ) -> Response:
        """Items whose title has a word that begins so for each word of the query; the most liked ones without a query."""
        (found,) = await results([translator.search_query(query, limit)], searcher)
        return _json(translator.search_response(found))

    @app.get("/model", response_model=schemas.ModelFacts)
    async def model() -> Response:
        """Method, sizes, versions and limits."""
        return _json(translator.model_facts())

    @app.get("/health", response_model=schemas.Health)
    async def health() -> Response:
        """The process answers."""
        return _json({"status": "ok"})

    @app.get("/ready", response_model=schemas.Health, responses={503: ERROR_RESPONSES[503]})
    async def ready() -> Response:
        """The model answers."""
        if not batcher.running:
            raise ApiError(503, "ready: want a running model, got none; come back later", {"Retry-After": "1"})
        return _json({"status": "ok"})

    add_error_handlers(app)
    return app


def _add_page(app: FastAPI) -> None:
    for path, (name, media_type) in PAGE_FILES.items():
        response = partial(
            Response, files("lbdrop.serve").joinpath(name).read_bytes(), media_type=media_type, headers=PAGE_HEADERS
        )

        async def page(_: Request, response: Callable[[], Response] = response) -> Response:
            return response()

        app.router.add_route(path, page, methods=["GET"], include_in_schema=False)


def _json(content: dict[str, Any]) -> Response:
    return Response(to_json(content), media_type="application/json")
