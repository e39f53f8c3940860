"""The JSON records of runs, found and checked: a file that is no such record ends in one line that names it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.report.schema import Check, Wrong
from lbdrop.errors import DropoutError
from lbdrop.io.records import read_json

__all__ = ["Json", "check", "distinct", "files", "load"]

Json = Mapping[str, Any]


def distinct(
    paths: Sequence[Path], check: Callable[[Path, Json], None], identity: Callable[[Json], Any], identity_name: str
) -> list[dict[str, Any]]:
    """The records of these files and folders, checked, each with its ``file``; duplicates and an empty result raise."""
    runs: dict[Any, dict[str, Any]] = {}
    for path in files(paths):
        run = load(path)
        if run.get("kind") == "summary" and path not in paths:
            continue  # what an earlier report left in the folder
        check(path, run)
        run["file"] = str(path)
        earlier = runs.setdefault(identity(run), run)
        if earlier is not run:
            raise DropoutError(f"{path}: same {identity_name} as {earlier['file']}; leave one of the two out")
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


def check(path: Path, run: Json, experiment: str, wanted: Check, record_name: str) -> None:
    """An error that names the first place where a record is not as the report wants it."""
    try:
        if run.get("experiment") != experiment:
            raise Wrong("experiment", repr(experiment), run.get("experiment"))
        wanted("", run)
    except Wrong as error:
        raise DropoutError(
            f"{path}: want the record of a {record_name} with {error}; leave it out, or run it again"
        ) from error
