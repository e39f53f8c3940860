"""Which kinds of runs a page can show, and whose a record is.

A further kind registers here with one line: its name, the module that holds its ``part``, the extra it needs, and how a
record is recognised. The module is imported when the first such record comes:

    def part(files: Sequence[Path], data: Path | None) -> Part

``files`` are the records of that kind, ``data`` is what the reader gave as ``--data``, for pictures or titles.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.report.page import Chapter, document, write_files
from experiments.report.records import files as json_files
from lbdrop.cli.common import check_writable
from lbdrop.errors import DropoutError, needs_extra
from lbdrop.io.records import read_json

__all__ = ["KINDS", "PAGE", "Grid", "Kind", "Part", "Report", "compose", "write"]

PAGE = "index.html"


@dataclass(frozen=True)
class Grid:
    """A small table for the terminal: a heading and then a line for each row, the first column its name."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Part:
    """What the runs of one kind add to a report."""

    chapter: Chapter
    grids: Sequence[Grid] = ()
    said: Sequence[str] = ()
    """Findings and caveats, which the terminal repeats."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What is written beside the page: tables as text, a summary, a figure."""


@dataclass(frozen=True)
class Kind:
    """A kind of runs."""

    name: str
    module: str
    extra: str
    recognises: Callable[[Mapping[str, Any]], bool]
    folder: str = ""
    """Its folder below what the reader gave as ``--data``, if that holds the data of several kinds."""

    def part(self, files: Sequence[Path], data: Path | None) -> Part:
        with needs_extra(self.extra):
            return import_module(self.module).part(files, data)


def _of(experiment: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda record: record.get("experiment") == experiment


def _is_benchmark(record: Mapping[str, Any]) -> bool:
    return {"settings", "provenance"} <= record.keys() and "experiment" not in record


KINDS: tuple[Kind, ...] = (
    Kind("cifar10", "experiments.cifar10.chapter", "vision", _of("cifar10"), "cifar10"),
    Kind("camvid", "experiments.camvid.chapter", "vision", _of("camvid"), "camvid"),
    Kind("collaborative", "experiments.collaborative.chapter", "demo", _of("collaborative"), "prepared"),
    Kind("rates", "experiments.rates.chapter", "demo", _of("rates")),
    Kind("toy", "experiments.toy.chapter", "demo", _of("toy")),
    Kind("demo", "experiments.demo.chapter", "demo", _of("demo")),
    Kind("benchmarks", "experiments.report.benchmarks", "demo", _is_benchmark),
)
"""In the order of the page; the first that recognises a record has it."""


@dataclass(frozen=True)
class Report:
    """The parts of a page by the name of their kind, and a line about every JSON that is on none."""

    parts: Mapping[str, Part]
    unknown: Sequence[str]

    def page(self) -> str:
        return document([part.chapter for part in self.parts.values()], self.unknown)

    def contents(self) -> dict[str, bytes]:
        """All files by their place below the folder; those of several kinds are in a folder each."""
        found = {PAGE: self.page().encode()}
        for name, part in self.parts.items():
            folder = "" if len(self.parts) == 1 else f"{name}/"
            found |= {f"{folder}{file}": content for file, content in part.files.items()}
        return found


def compose(paths: Sequence[Path], data: Path | None = None) -> Report:
    """The report on these files and folders. Unknown files are listed; nothing but those is an error."""
    groups: dict[str, list[Path]] = {}
    unknown: list[str] = []
    for path in json_files(paths):
        named = path in paths
        if path.name == "summary.json" and not named:
            continue  # what an earlier report left in the folder
        record = read_json(path)
        kind = next((each for each in KINDS if isinstance(record, dict) and each.recognises(record)), None)
        if kind is None or record.get("kind") == "summary":
            unknown.append(f"{path}: not the record of a run that this page can show ({_what(record)}); left out.")
        else:
            groups.setdefault(kind.name, []).append(path)
    if not groups:
        where = ", ".join(map(str, paths))
        reason = unknown[0].removesuffix("; left out.") if unknown else f"{where}: want run records, got no .json"
        raise DropoutError(f"{reason}; name files or their folder")
    shown = [kind for kind in KINDS if kind.name in groups]
    parts = {kind.name: kind.part(groups[kind.name], _data(data, kind, len(shown) > 1)) for kind in shown}
    return Report(parts, unknown)


def _data(given: Path | None, kind: Kind, several: bool) -> Path | None:
    """Where the data of a kind are: in its folder below the one given; or there itself, if no other kind wants it."""
    if given is not None and kind.folder and (given / kind.folder).is_dir():
        return given / kind.folder
    return None if several else given


def write(folder: Path, report: Report) -> list[Path]:
    """Write the page and what stands beside it, where nothing of another program would be lost."""
    contents = report.contents()
    check_writable(folder, *contents)
    write_files(folder, contents)
    return [folder / name for name in contents]


def _what(record: Any) -> str:
    if not isinstance(record, dict):
        return f"a JSON {type(record).__name__}"
    if record.get("kind") == "summary":
        return "the summary of another report"
    return f"experiment {record['experiment']!r}" if "experiment" in record else "a JSON object without experiment"
