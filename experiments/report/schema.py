"""Schemas of records, composed of small checks: the error names the first wrong place of a file.

>>> run = fields({"seed": whole, "test": fields({"nll": number})})
>>> run("", {"seed": 0, "test": {"nll": "low"}})
Traceback (most recent call last):
experiments.report.schema.Wrong: a finite number as test.nll, got 'low'
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

__all__ = [
    "Check", "Wrong", "anything", "fields", "item", "listed", "mapped", "maybe", "number", "pairs", "text", "truth", "whole",
]  # fmt: skip

MAX_NUMBER = 1e15
"""No measure, time or size is larger; sums of larger numbers may overflow."""
MAX_LENGTH = 1_000_000


class Wrong(ValueError):
    """The first place that is not as it should be."""

    def __init__(self, name: str, want: str, got: Any):
        shown = repr(got)
        super().__init__(f"{want} as {name or 'the whole'}, got {shown[:60]}{'…' * (len(shown) > 60)}")


class Check(Protocol):
    """Raises :class:`Wrong` unless the value under this name is as it should be."""

    def __call__(self, name: str, value: Any, /) -> None: ...


def number(name: str, value: Any) -> None:
    """Finite, and of a size that can be added up."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or abs(value) > MAX_NUMBER
    ):
        raise Wrong(name, "a finite number", value)


def whole(name: str, value: Any) -> None:
    """From 0 on."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        raise Wrong(name, "a whole number from 0 on", value)


def text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise Wrong(name, "text", value)


def item(name: str, value: Any) -> None:
    """An id."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Wrong(name, "a whole number or text", value)


def anything(name: str, value: Any) -> None:
    """As it is."""


def truth(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise Wrong(name, "true or false", value)


def maybe(check: Check) -> Check:
    """Null, or as the check wants."""

    def checked(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return checked


def listed(check: Check, least: int = 0) -> Check:
    """A list of such."""

    def checked(name: str, value: Any) -> None:
        if not isinstance(value, list) or not least <= len(value) <= MAX_LENGTH:
            raise Wrong(name, f"a list{f' of at least {least}' * (least > 0)}", value)
        for place, each in enumerate(value):
            check(f"{name}[{place}]", each)

    return checked


def mapped(check: Check) -> Check:
    """A mapping from any names to such."""

    def checked(name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise Wrong(name, "a mapping", value)
        for key, each in value.items():
            check(_below(name, key), each)

    return checked


def fields(wanted: Mapping[str, Check], possible: Mapping[str, Check] | None = None) -> Check:
    """A mapping with all of these, perhaps with those, and with whatever else."""

    def checked(name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise Wrong(name, f"a mapping with {', '.join(wanted)}" if wanted else "a mapping", value)
        for key, check in wanted.items():
            if key not in value:
                raise Wrong(_below(name, key), "something", None)
            check(_below(name, key), value[key])
        for key, check in (possible or {}).items():
            if key in value:
                check(_below(name, key), value[key])

    return checked


def pairs(check: Check, *columns: str) -> Check:
    """As the check wants, with lists of one length under these names."""

    def checked(name: str, value: Any) -> None:
        check(name, value)
        if len({len(value[column]) for column in columns}) > 1:
            raise Wrong(name, "lists of one length", [len(value[column]) for column in columns])

    return checked


def _below(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)
