"""The JSON records of CIFAR-10 runs, read and checked: what is no such record ends in one line that names the file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.report.schema import Check, Wrong, fields, listed, mapped, maybe, number, pairs, text, whole
from lbdrop.errors import DropoutError
from lbdrop.io.records import read_json

__all__ = ["METRICS", "Json", "check", "distinct", "files", "key", "load", "read"]

Json = Mapping[str, Any]

METRICS = (
    "accuracy", "nll", "brier", "ece", "aurc", "auroc_misclassification", "pavpu_mean_entropy", "pavpu_sweep",
)  # fmt: skip
_SCORES = dict.fromkeys(("accuracy", "nll"), number) | dict.fromkeys(
    [name for name in METRICS if name not in ("accuracy", "nll", "auroc_misclassification")], maybe(number)
)
_MEASURED = fields(_SCORES, {"auroc_misclassification": maybe(number)})  # undefined where all are right
_IMAGES = listed(fields({"index": whole, "entropy": number, "predicted": whole, "truth": whole}))
_POINTS = listed(fields({"severity": number, "accuracy": number, "ece": number}), least=1)
_CURVE = fields({"t": listed(number, least=1), "pavpu": listed(number, least=1)})
_BINS = fields({name: listed(maybe(number)) for name in ("confidence", "accuracy")} | {"count": listed(whole)})
_LAYER = fields({"mean": number, "min": number, "max": number, "counts": listed(whole, least=1)})
RUN = fields(
    {
        "method": text, "label": text, "seed": whole, "recipe": text, "protocol": text,
        "settings": fields({}, {"rate": maybe(number)}), "provenance": fields({}), "validation": _MEASURED, "test": _MEASURED,
        "pavpu_curve": pairs(_CURVE, "t", "pavpu"), "reliability": pairs(_BINS, "confidence", "accuracy", "count"),
        "rates": mapped(_LAYER), "certainty": fields({"least": _IMAGES, "most": _IMAGES}),
        "seconds": fields({"per_epoch": listed(number)}),
    },
    {
        "ood": maybe(fields({"set": text, "count": whole}, dict.fromkeys(("entropy", "mutual_information"), maybe(number)))),
        "corruptions": maybe(mapped(_POINTS)), "peak_bytes": maybe(number),
        "history": maybe(listed(fields({"epoch": whole}, {"rates": mapped(number)}))),
    },
)  # fmt: skip
"""What the page draws; whatever else a record has is left aside."""


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """All runs of these files and folders, each with the ``file`` it came from; what is no such run raises."""
    runs = distinct(paths, _check, lambda run: (key(run), run["seed"]), "method, rate and seed")
    _check_alike(runs)
    recipes = sorted({str(run["recipe"]) for run in runs})
    if len(recipes) > 1:
        raise DropoutError(f"recipes {', '.join(recipes)} are mixed; report on the runs of one at a time")
    return runs


def distinct(
    paths: Sequence[Path], check: Callable[[Path, Json], None], identity: Callable[[Json], Any], told: str
) -> list[dict[str, Any]]:
    """The records of these files and folders, checked, each with its ``file``; two of one identity raise, and none."""
    runs: dict[Any, dict[str, Any]] = {}
    for path in files(paths):
        run = load(path)
        if run.get("kind") == "summary" and path not in paths:
            continue  # what an earlier report left in the folder
        check(path, run)
        run["file"] = str(path)
        earlier = runs.setdefault(identity(run), run)
        if earlier is not run:
            raise DropoutError(f"{path}: same {told} as {earlier['file']}; leave one of the two out")
    if not runs:
        raise DropoutError(f"{', '.join(map(str, paths))}: want run records, got no .json; name files or their folder")
    return list(runs.values())


def files(paths: Sequence[Path]) -> list[Path]:
    """Every JSON named or in a folder named, once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise DropoutError(f"{path}: no such file or folder")
        for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def load(path: Path) -> dict[str, Any]:
    """One JSON as a mapping."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise DropoutError(f"{path}: want the record of a run, got a JSON {type(content).__name__}")
    return content


def check(path: Path, run: Json, experiment: str, wanted: Check, told: str) -> None:
    """An error that names the first place where a record is not as the report wants it."""
    try:
        if run.get("experiment") != experiment:
            raise Wrong("experiment", repr(experiment), run.get("experiment"))
        wanted("", run)
    except Wrong as error:
        raise DropoutError(
            f"{path}: want the record of a {told} with {error}; leave it out, or run it again"
        ) from error


def _check(path: Path, run: Json) -> None:
    check(path, run, "cifar10", RUN, "CIFAR-10 run")
    if run["method"] == "mc" and run["settings"].get("rate") is None:
        raise DropoutError(f"{path}: want the record of a CIFAR-10 run with settings.rate, as method mc has, got none")


def _check_alike(runs: Sequence[Json]) -> None:
    """What is pooled over the seeds of a method has the same bins."""
    first: dict[tuple[str, str], tuple[int, str]] = {}
    for run in runs:
        bins = {"reliability": len(run["reliability"]["count"])}
        bins |= {f"rates.{layer}": len(found["counts"]) for layer, found in run["rates"].items()}
        for name, count in bins.items():
            other, file = first.setdefault((key(run), name), (count, run["file"]))
            if other != count:
                raise DropoutError(
                    f"{run['file']}: want {other} bins of {name}, as in {file}, got {count}; leave one out"
                )


def key(run: Json) -> str:
    """A row of the table: the method, and the rate that it is fixed at, or that it starts from if not from one half."""
    rate, method = run["settings"].get("rate"), run["method"]
    starts = method not in ("mc-masks", "regular") and rate not in (None, 0.5)
    return f"{method}@{rate:g}" if method == "mc" or starts else method
