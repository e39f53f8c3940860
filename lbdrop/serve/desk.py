"""Between the service and its engine: ids of a request become questions about numbers, answers become what JSON holds."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lbdrop.io.records import provenance
from lbdrop.recommend.linear import Linear
from lbdrop.recommend.model import Recommender
from lbdrop.serve import schemas
from lbdrop.serve.catalogue import Catalogue, by_text, in_json
from lbdrop.serve.engine import Answer, Engine, Question, Similar
from lbdrop.serve.forward import Numbers
from lbdrop.serve.refusals import Refused, shown

__all__ = ["Desk"]

Id = int | str
Json = dict[str, Any]
DIGITS = 6
"""Behind the point, of what a float32 can tell."""


class Person(NamedTuple):
    """Whose history it is, if known by id; its items, sorted; and how many of them were unknown."""

    user: Id | None
    history: Numbers
    unknown: int


class Desk:
    """Knows the ids of a fitted recommender."""

    def __init__(self, recommender: Recommender, engine: Engine, titles: dict[str, str] | None = None):
        self.recommender, self.engine = recommender, engine
        self.catalogue = Catalogue(recommender.items_, recommender.likes_, titles)
        known = recommender.interactions_
        self.users = None if known is None else by_text(known.users)
        self.user_ids = [] if known is None else in_json(known.users)

    def facts(self) -> Json:
        """What the service runs."""
        return {
            "method": self.recommender.choice.method,
            "items": len(self.catalogue),
            "users": None if self.users is None else len(self.users),
            "titles": self.catalogue.titled,
            "samples": self.engine.forward.samples,
            "log_probability": not isinstance(self.recommender.model_, Linear),
            "similar": self.engine.compares,
            "versions": provenance()["versions"],
            "limits": {
                "body_bytes": schemas.BODY,
                "users": schemas.USERS,
                "history": schemas.HISTORY,
                "k": schemas.BEST,
                "items": schemas.NAMED,
                "history_with_reasons": schemas.REASONED,
                "k_with_reasons": schemas.NAMED,
            },
        }

    # ---------------------------------------------------------------------------------------------------- recommending

    def people(self, asked: schemas.Recommend) -> list[Person]:
        if asked.users is not None:
            return [self._user(each, "users") for each in asked.users]
        return [self._history(each, "histories", asked.ignore_unknown) for each in asked.histories or ()]

    def questions(self, asked: schemas.Recommend, people: Sequence[Person]) -> list[Question]:
        """What to ask the engine; the answers come in the order of the people."""
        allowed = None
        if asked.items_to_recommend is not None:
            allowed = self._history(asked.items_to_recommend, "items_to_recommend", asked.ignore_unknown).history
            if not len(allowed):
                raise Refused(404, "items_to_recommend: want items of the model, got none of them; see /items")
        if asked.reasons:
            self._check_reasoned(people)
            if asked.k > schemas.NAMED:
                raise Refused(
                    422, f"k: want at most {schemas.NAMED} with reasons, got {asked.k}; ask for fewer, or without"
                )
        return [
            Question(each.history, asked.k, asked.filter_viewed, allowed, reasons=asked.reasons > 0) for each in people
        ]

    def recommended(self, people: Sequence[Person], answers: Sequence[Answer], reasons: int) -> Json:
        results = []
        for person, answer in zip(people, answers, strict=True):
            found = self._found(answer)
            for place, each in enumerate(found):
                spread = math.nan if answer.spread is None else answer.spread[place]
                each["uncertainty"] = None if math.isnan(spread) else round(spread, DIGITS)
                if reasons:
                    each["reasons"] = self._reasons(person.history, answer, place, reasons)
            results.append({"user_id": person.user, "items": found, "unknown_items": person.unknown})
        return {"results": results}

    # ------------------------------------------------------------------------------------------------------ explaining

    def person(self, asked: schemas.Explain) -> Person:
        if asked.user is not None:
            found = self._user(asked.user, "user")
        else:
            found = self._history(asked.history or (), "history", asked.ignore_unknown)
        if not len(found.history):
            raise Refused(422, "history: want an item that the model knows, got none; nothing to explain by")
        self._check_reasoned([found])
        return found

    def about(self, asked: schemas.Explain, person: Person) -> Question:
        return Question(person.history, about=self._numbers(asked.items, "items"), reasons=True)

    def explained(self, person: Person, answer: Answer) -> Json:
        found = self._found(answer)
        for place, each in enumerate(found):
            each["reasons"] = self._reasons(person.history, answer, place)
        return {"results": found}

    # --------------------------------------------------------------------------------------------------------- similar

    def alike(self, asked: schemas.SimilarTo) -> list[Similar]:
        if not self.engine.compares:
            method = self.recommender.choice.method
            raise Refused(422, f"similar: want a method that knows items apart, got {method!r}; fit another")
        return [Similar(int(number), asked.k) for number in self._numbers(asked.items, "items")]

    def found_alike(self, asked: Sequence[Similar], answers: Sequence[Answer]) -> Json:
        pairs = zip(asked, answers, strict=True)
        return {"results": [self._item(each.item) | {"similar": self._found(answer)} for each, answer in pairs]}

    def search(self, query: str, limit: int) -> Json:
        found = self.catalogue.search(query, limit)
        return {"items": [self._item(number) | {"likes": self.catalogue.likes[number]} for number in found]}

    # ---------------------------------------------------------------------------------------------------------- pieces

    def _user(self, user: Id, field: str) -> Person:
        if self.users is None or self.recommender.interactions_ is None:
            instead = "histories" if field == "users" else "history"
            raise Refused(422, f"{field}: want {instead}, as this model was saved without those of its users, got ids")
        number = self.users.get(str(user))
        if number is None:
            instead = "histories" if field == "users" else "history"
            raise Refused(
                404, f"{field}: want users of the fitted data, got {shown(user)}; send their {instead} instead"
            )
        rows = self.recommender.interactions_.rows
        items = rows.indices[rows.indptr[number] : rows.indptr[number + 1]]
        return Person(self.user_ids[number], np.sort(items).astype(np.int64), 0)

    def _history(self, items: Sequence[Id], field: str, ignore_unknown: bool) -> Person:
        known = self._numbers(items, field, ignore_unknown)
        return Person(None, np.unique(known), len(items) - len(known))

    def _numbers(self, items: Sequence[Id], field: str, ignore_unknown: bool = False) -> Numbers:
        numbers = self.catalogue.numbers
        found = [numbers.get(str(each), -1) for each in items]
        if -1 in found and not ignore_unknown:
            first = shown(items[found.index(-1)])
            instead = "" if field == "items" else ", or send ignore_unknown=true"
            raise Refused(404, f"{field}: want items of the model, got {first}; find them with /items?query=…{instead}")
        return np.array([each for each in found if each >= 0], np.int64)

    def _check_reasoned(self, people: Sequence[Person]) -> None:
        total = sum(len(each.history) for each in people)
        if total > schemas.REASONED:
            raise Refused(
                422,
                f"reasons: want histories of at most {schemas.REASONED} items in one request, got {total:,}; ask about fewer"
                " users, or send a part of the history",
            )

    def _item(self, number: int) -> Json:
        return {"item_id": self.catalogue.ids[number], "title": self.catalogue.titles[number]}

    def _found(self, answer: Answer) -> list[Json]:
        return [
            self._item(number) | {"rank": place + 1, "score": round(score, DIGITS)}
            for place, (number, score) in enumerate(zip(answer.items, answer.scores, strict=True))
        ]

    def _reasons(self, history: Numbers, answer: Answer, place: int, most: int | None = None) -> list[Json]:
        assert answer.effects is not None
        effect = answer.effects[:, place]
        share = np.abs(effect) / (np.abs(effect).sum() or 1.0)
        return [
            self._item(int(history[each]))
            | {"effect": round(float(effect[each]), DIGITS), "share": round(float(share[each]), DIGITS)}
            for each in np.argsort(-effect, kind="stable")[:most]
        ]
