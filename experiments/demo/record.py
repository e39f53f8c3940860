"""The demo, declared in one place: its contestants on digits and in the shop, and what its JSON holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from experiments.report.records import check, load
from experiments.report.schema import Wrong, fields, listed, mapped, maybe, number, pairs, text, truth, whole

__all__ = [
    "COLOURS",
    "CONTESTANTS",
    "LAYERS",
    "LEARNED",
    "ORACLE",
    "SHOP_CONTESTANTS",
    "Contestant",
    "ShopContestant",
    "read",
]

COLOURS = {"none": "other", "fixed": "mc", "per layer": "lbd", "per unit": "lbd"}
"""Of each kind of contestant, a family of :data:`experiments.report.style.FAMILIES`."""
LAYERS = {"drop1": "first hidden layer", "drop2": "second hidden layer"}


@dataclass(frozen=True)
class Contestant:
    """A way to choose the rates; ``rate`` is the fixed one, 0 for no dropout and ``None`` for learned rates."""

    name: str
    kind: Literal["none", "fixed", "per layer", "per unit"]
    rate: float | None = None
    dash: str = ""

    @property
    def learned(self) -> bool:
        return self.rate is None


CONTESTANTS = {
    each.name: each
    for each in (
        Contestant("no dropout", "none", 0.0),
        Contestant("fixed 0.2", "fixed", 0.2, dash="7 3"),
        Contestant("fixed 0.5", "fixed", 0.5),
        Contestant("learned per layer", "per layer", dash="7 3"),
        Contestant("learned per unit", "per unit"),
    )
}


@dataclass(frozen=True)
class ShopContestant:
    """A recommender of the shop."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of :class:`lbdrop.recommend.Recommender`."""
    colour: str = "other"


LEARNED, ORACLE = "learned dropout", "oracle"
SHOP_CONTESTANTS = {
    each.name: each
    for each in (
        ShopContestant("popularity", {"method": "popularity"}),
        ShopContestant("EASE", {"method": "ease"}),
        ShopContestant("the library's default", {}, "lbd"),  # chooses by itself between the linear model and both
        ShopContestant("no dropout", {"dropout": "none"}),
        ShopContestant("fixed dropout 0.5", {"dropout": "fixed"}, "mc"),
        ShopContestant(LEARNED, {"method": "sivae-lbd"}, "lbd"),  # a rate for every item, to be drawn
    )
}

# --------------------------------------------------------------------------------------------------------------- record


def _kind(name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in COLOURS:
        raise Wrong(name, f"one of {', '.join(COLOURS)}", value)


def _point(name: str, value: Any) -> None:
    listed(number)(name, value)
    if len(value) != 2:
        raise Wrong(name, "an epoch and a rate", value)


_SCORES = ("accuracy", "nll", "brier", "ece")
_MEAN = fields({"mean": number, "se": maybe(number)})
_DIGITS = listed(
    fields(
        {"index": whole, "pixels": listed(number, least=1), "predicted": whole, "truth": whole, "entropy": number,
         "probability": number}
    )
)  # fmt: skip
_LINES = mapped(listed(_point, least=1))
_BINS = fields({name: listed(maybe(number)) for name in ("confidence", "accuracy")} | {"count": listed(whole)})
_CURVE = fields({"t": listed(number, least=1), "pavpu": listed(_MEAN, least=1)})
_ENTRY = fields(
    {
        "name": text, "kind": _kind, "strength": number, "test": fields(dict.fromkeys(_SCORES, _MEAN)),
        "search": listed(fields({"strength": number, "validation_nll": number}), least=1),
        "rates": mapped(fields(dict.fromkeys(("mean", "low", "high"), number))),
        "reliability": pairs(_BINS, "confidence", "accuracy", "count"),
        "per_seed": listed(
            fields({"seed": whole, "test": fields(dict.fromkeys(_SCORES, number)),
                    "rates": fields(dict.fromkeys(LAYERS, listed(number, least=1)))}),
            least=1,
        ),
    },
    {"rates_over_training": _LINES, "pavpu_curve": pairs(_CURVE, "t", "pavpu")},
)  # fmt: skip
_CUSTOMER = fields(
    {
        "user": whole, "tastes": listed(fields({"group": text, "share": number})), "history": listed(fields({"title": text})),
        "recommended": listed(fields({"title": text, "probability": number, "uncertainty": number, "found": truth}), least=1),
        "explained": listed(fields({"title": text, "effect": number})),
    }
)  # fmt: skip
_SHOP = fields(
    {
        "settings": fields({"held_out": whole}), "data": fields(dict.fromkeys(("users", "items", "likes", "test"), whole)),
        "contestants": listed(
            fields({"name": text, "test": fields(dict.fromkeys(("recall@20", "recall@50", "ndcg@100"), _MEAN)),
                    "rate": maybe(fields({"low": number, "high": number})),
                    "epochs": maybe(fields({"best": maybe(whole), "trained": whole}))}),
            least=1,
        ),
        "findings": listed(text),
        "rates": listed(fields({"rate": number, "likes": whole}), least=1), "examples": listed(_CUSTOMER),
    }
)  # fmt: skip
_RESULT = fields(
    {
        "settings": fields(dict.fromkeys(("hidden", "epochs", "masks"), whole) | {"start_rate": number}),
        "data": fields({"name": text} | dict.fromkeys(("train", "validation", "test"), whole)),
        "seeds": listed(whole, least=1), "selection": mapped(text), "contestants": listed(_ENTRY, least=1),
        "provenance": fields({"versions": mapped(text)} | dict.fromkeys(("commit", "date", "hardware"), text)),
        "uncertain": fields({"contestant": text, "seed": whole, "digits": _DIGITS}, {"certain": _DIGITS}),
        "findings": listed(text), "seconds": number,
    },
    {"shop": _SHOP},
)  # fmt: skip
"""What the page draws; whatever else a result has is left aside."""


def read(files: Sequence[Path]) -> list[dict[str, Any]]:
    """The results of these files."""
    results = []
    for path in files:
        result = load(path)
        check(path, result, "demo", _RESULT, "demo")
        results.append(result)
    return results
