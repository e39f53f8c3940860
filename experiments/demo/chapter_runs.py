"""The JSON of a demo, read and checked: what is none ends in one line that names the file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.demo.chapter_figures import FAMILY, LAYERS
from experiments.report.runs import check, load
from experiments.report.schema import Wrong, fields, listed, mapped, maybe, number, pairs, text, truth, whole

__all__ = ["read"]


def _kind(name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in FAMILY:
        raise Wrong(name, f"one of {', '.join(FAMILY)}", value)


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
RESULT = fields(
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
        check(path, result, "demo", RESULT, "demo")
        results.append(result)
    return results
