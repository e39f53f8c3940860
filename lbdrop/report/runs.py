"""The JSON records of CIFAR-10 runs, read and checked: what is no such record ends in one line that names the file."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lbdrop.errors import DropoutError

__all__ = ["METRICS", "Json", "distinct", "files", "key", "load", "read"]

Json = Mapping[str, Any]

METRICS = (
    "accuracy", "nll", "brier", "ece", "aurc", "auroc_misclassification", "pavpu_mean_entropy", "pavpu_sweep",
)  # fmt: skip
MAPPINGS = (
    "settings",
    "provenance",
    "validation",
    "test",
    "pavpu_curve",
    "reliability",
    "rates",
    "certainty",
    "seconds",
)
LISTS = {
    "pavpu_curve": ("t", "pavpu"), "reliability": ("confidence", "accuracy", "count"),
    "certainty": ("least", "most"), "seconds": ("per_epoch",),
}  # fmt: skip
NEVER_NULL = ("test.accuracy", "test.nll", "validation.nll")


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """All runs of these files and folders, each with the ``file`` it came from; what is no such run raises."""
    runs = distinct(paths, _check, lambda run: (key(run), run["seed"]), "method, rate and seed")
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
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DropoutError(f"{path}: could not be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise DropoutError(f"{path}: want JSON, got {error}") from error
    if not isinstance(content, dict):
        raise DropoutError(f"{path}: want the record of a run, got a JSON {type(content).__name__}")
    return content


def _check(path: Path, run: Json) -> None:
    def refuse(what: str, got: str = "none") -> None:
        raise DropoutError(f"{path}: want the record of a CIFAR-10 run with {what}, got {got}")

    def number(name: str, value: Any) -> None:
        if value is None and name not in NEVER_NULL:
            return
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            refuse(f"a finite number as {name}", repr(value))

    if run.get("experiment") != "cifar10":
        refuse('"experiment": "cifar10"', repr(run.get("experiment")))
    for name, kind in (("method", str), ("label", str), ("seed", int), ("recipe", str), ("protocol", str)):
        if not isinstance(run.get(name), kind):
            refuse(name, repr(run.get(name)))
    for name in MAPPINGS:
        if not isinstance(run.get(name), dict):
            refuse(name)
    for part, names in LISTS.items():
        for name in names:
            if not isinstance(run[part].get(name), list):
                refuse(f"a list {part}.{name}")
        if part != "certainty" and len({len(run[part][name]) for name in names}) > 1:
            refuse(f"lists of one length in {part}", "several")
    for part, name in [(part, name) for part in ("validation", "test") for name in METRICS]:
        if name not in run[part] and name != "auroc_misclassification":  # undefined where all are right
            refuse(f"{part}.{name}")
        number(f"{part}.{name}", run[part].get(name))
    for name in ("entropy", "mutual_information") if run.get("ood") else ():
        number(f"ood.{name}", run["ood"].get(name))
    if run["method"] == "mc" and not isinstance(run["settings"].get("rate"), int | float):
        refuse("settings.rate", repr(run["settings"].get("rate")))


def key(run: Json) -> str:
    return f"mc@{run['settings']['rate']:g}" if run["method"] == "mc" else run["method"]
