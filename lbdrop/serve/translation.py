"""From requests with ids to queries with item indices, and from results back to JSON with ids and titles."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lbdrop.io.records import provenance
from lbdrop.recommend.linear.methods import Linear
from lbdrop.recommend.recommender import Recommender
from lbdrop.serve import schemas
from lbdrop.serve.catalogue import Catalogue, index_by_text, json_ids, words_of
from lbdrop.serve.errors import ApiError, shortened
from lbdrop.serve.inference import HistoryQuery, InferenceEngine, ItemIndices, Result, SimilarQuery

__all__ = ["SearchQuery", "Translator"]

Id = int | str
Json = dict[str, Any]
DECIMALS = 6
"""Of scores; a float32 has about as many."""


class History(NamedTuple):
    """The items of one user or of one history in a request."""

    user: Id | None
    """The id, if the request had one."""
    items: ItemIndices
    """Sorted."""
    unknown: int
    """Items that the model does not know."""


class SearchQuery(NamedTuple):
    """Words of a title, and how many items to find."""

    query: str
    limit: int
    rows: int = 1


class Translator:
    """Knows ids and titles of a fitted recommender."""

    def __init__(self, recommender: Recommender, engine: InferenceEngine, titles: dict[str, str] | None = None):
        self.recommender, self.engine = recommender, engine
        ids, self.fitted_items = recommender.catalogue_, len(recommender.items_)
        likes = np.pad(recommender.likes_, (0, len(ids) - self.fitted_items))
        self.catalogue = Catalogue(ids, likes, titles)
        known = recommender.interactions_
        self.users = None if known is None else index_by_text(known.users)
        self.user_ids = [] if known is None else json_ids(known.users)

    def model_facts(self) -> Json:
        """What ``GET /model`` returns."""
        return {
            "method": self.recommender.choice.method,
            "items": len(self.catalogue),
            "users": None if self.users is None else len(self.users),
            "titles": self.catalogue.titled_items,
            "samples": self.engine.samples,
            "log_probability": not isinstance(self.recommender.model_, Linear),
            "similar": self.engine.can_compare,
            "versions": provenance()["versions"],
            "limits": {
                "body_bytes": schemas.MAX_BODY_BYTES,
                "users": schemas.MAX_USERS,
                "history": schemas.MAX_HISTORY,
                "k": schemas.MAX_K,
                "items": schemas.MAX_ITEMS,
                "history_with_reasons": schemas.MAX_REASONED_ITEMS,
                "k_with_reasons": schemas.MAX_ITEMS,
            },
        }

    # ---------------------------------------------------------------------------------------------------- recommending

    def histories(self, request: schemas.Recommend) -> list[History]:
        if request.users is not None:
            return [self._history_of_user(each, "users") for each in request.users]
        return [self._history_of_items(each, "histories", request.ignore_unknown) for each in request.histories or ()]

    def recommend_queries(self, request: schemas.Recommend, histories: Sequence[History]) -> list[HistoryQuery]:
        """A query for each history, in their order."""
        allowed = None
        if request.items_to_recommend is not None:
            allowed = self._history_of_items(
                request.items_to_recommend, "items_to_recommend", request.ignore_unknown
            ).items
            if not len(allowed):
                raise ApiError(404, "items_to_recommend: want items of the model, got none of them; see /items")
        excluded = self._indices(request.items_to_exclude, "items_to_exclude", request.ignore_unknown)
        everything = np.arange(len(self.catalogue)) if allowed is None else allowed
        if len(excluded) and not len(np.setdiff1d(everything, excluded)):
            raise ApiError(422, "items_to_exclude: want an item left to recommend, got all of them; leave some out")
        if request.diversity and not self.engine.can_compare:
            method = self.recommender.choice.method
            raise ApiError(422, f"diversity: want a method that can compare items, got {method!r}; leave it out")
        if request.reasons:
            self._check_reason_limits(histories)
            if request.k > schemas.MAX_ITEMS:
                raise ApiError(
                    422, f"k: want at most {schemas.MAX_ITEMS} with reasons, got {request.k}; ask for fewer, or without"
                )
        return [
            HistoryQuery(
                each.items,
                request.k,
                request.filter_viewed,
                allowed,
                excluded,
                request.diversity,
                reasons=request.reasons > 0,
            )
            for each in histories
        ]

    def recommend_response(self, histories: Sequence[History], results: Sequence[Result], reasons: int) -> Json:
        answers = []
        for history, result in zip(histories, results, strict=True):
            items = self._items_json(result)
            for place, item in enumerate(items):
                spread = math.nan if result.spread is None else result.spread[place]
                item["uncertainty"] = None if math.isnan(spread) else round(spread, DECIMALS)
                if reasons:
                    item["reasons"] = self._reasons_json(history.items, result, place, reasons)
            answers.append({"user_id": history.user, "items": items, "unknown_items": history.unknown})
        return {"results": answers}

    # ------------------------------------------------------------------------------------------------------ explaining

    def history_to_explain(self, request: schemas.Explain) -> History:
        if request.user is not None:
            history = self._history_of_user(request.user, "user")
        else:
            history = self._history_of_items(request.history or (), "history", request.ignore_unknown)
        if not len(history.items):
            raise ApiError(422, "history: want an item that the model knows, got none; send one")
        self._check_reason_limits([history])
        return history

    def explain_query(self, request: schemas.Explain, history: History) -> HistoryQuery:
        return HistoryQuery(history.items, targets=self._indices(request.items, "items"), reasons=True)

    def explain_response(self, history: History, result: Result) -> Json:
        items = self._items_json(result)
        for place, item in enumerate(items):
            item["reasons"] = self._reasons_json(history.items, result, place)
        return {"results": items}

    # --------------------------------------------------------------------------------------------------------- similar

    def similar_queries(self, request: schemas.SimilarTo) -> list[SimilarQuery]:
        if not self.engine.can_compare:
            method = self.recommender.choice.method
            raise ApiError(422, f"similar: want a method that can compare items, got {method!r}; fit another")
        indices = self._indices(request.items, "items")
        if (indices >= self.fitted_items).any():
            raise ApiError(422, "items: want items that somebody has, got a new one; ask for what it is recommended to")
        return [SimilarQuery(int(index), request.k) for index in indices]

    def similar_response(self, queries: Sequence[SimilarQuery], results: Sequence[Result]) -> Json:
        pairs = zip(queries, results, strict=True)
        return {
            "results": [self._item_json(query.item) | {"similar": self._items_json(result)} for query, result in pairs]
        }

    def search_query(self, query: str, limit: int) -> SearchQuery:
        if (words := len(words_of(query))) > schemas.MAX_SEARCH_WORDS:
            raise ApiError(422, f"query: want at most {schemas.MAX_SEARCH_WORDS} words, got {words}; leave some out")
        return SearchQuery(query, limit)

    def search(self, queries: Sequence[SearchQuery]) -> list[Sequence[int]]:
        """The indices of the items found; in a thread of its own."""
        return [self.catalogue.search(each.query, each.limit) for each in queries]

    def search_response(self, found: Sequence[int]) -> Json:
        return {"items": [self._item_json(index) | {"likes": self.catalogue.likes[index]} for index in found]}

    # ---------------------------------------------------------------------------------------------------------- pieces

    def _history_of_user(self, user: Id, field: str) -> History:
        instead = "histories" if field == "users" else "history"
        if self.users is None or self.recommender.interactions_ is None:
            raise ApiError(422, f"{field}: want {instead}, as this model was saved without those of its users, got ids")
        row = self.users.get(str(user))
        if row is None:
            raise ApiError(
                404, f"{field}: want users of the fitted data, got {shortened(user)}; send their {instead} instead"
            )
        rows = self.recommender.interactions_.rows
        items = rows.indices[rows.indptr[row] : rows.indptr[row + 1]]
        return History(self.user_ids[row], np.sort(items).astype(np.int64), 0)

    def _history_of_items(self, items: Sequence[Id], field: str, ignore_unknown: bool) -> History:
        known = self._indices(items, field, ignore_unknown)
        if field != "items_to_recommend":
            known = known[known < self.fitted_items]  # a new item tells nothing of who has it
        return History(None, np.unique(known), len(items) - len(known))

    def _indices(self, items: Sequence[Id], field: str, ignore_unknown: bool = False) -> ItemIndices:
        found = [self.catalogue.index.get(str(each), -1) for each in items]
        if -1 in found and not ignore_unknown:
            first = shortened(items[found.index(-1)])
            instead = "" if field == "items" else ", or send ignore_unknown=true"
            raise ApiError(
                404, f"{field}: want items of the model, got {first}; find them with /items?query=…{instead}"
            )
        return np.array([index for index in found if index >= 0], np.int64)

    def _check_reason_limits(self, histories: Sequence[History]) -> None:
        total = sum(len(each.items) for each in histories)
        if total > schemas.MAX_REASONED_ITEMS:
            raise ApiError(
                422,
                f"reasons: want histories of at most {schemas.MAX_REASONED_ITEMS} items in one request, got {total:,}; ask for"
                " fewer users, or send a part of the history",
            )

    def _item_json(self, index: int) -> Json:
        return {"item_id": self.catalogue.ids[index], "title": self.catalogue.titles[index]}

    def _items_json(self, result: Result) -> list[Json]:
        return [
            self._item_json(index) | {"rank": place + 1, "score": round(score, DECIMALS)}
            for place, (index, score) in enumerate(zip(result.items, result.scores, strict=True))
        ]

    def _reasons_json(self, history: ItemIndices, result: Result, place: int, limit: int | None = None) -> list[Json]:
        assert result.effects is not None
        effect = result.effects[:, place]
        share = np.abs(effect) / (np.abs(effect).sum() or 1.0)
        return [
            self._item_json(int(history[each]))
            | {"effect": round(float(effect[each]), DECIMALS), "share": round(float(share[each]), DECIMALS)}
            for each in np.argsort(-effect, kind="stable")[:limit]
        ]
