"""``lbdrop doctor``: versions, devices, what is missing for which extra, and whether the essential works here; or a folder."""

import json
import os
import platform
import re
import shutil
import sys
import tempfile
import warnings
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from lbdrop.cli.common import one_line, say, table
from lbdrop.errors import DropoutError, needs_extra
from lbdrop.io.files import PART

__all__ = ["Finding", "doctor", "examine", "examine_folder"]

OLDEST = (3, 11)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LOOK = {"ok": "green", "missing": "yellow", "broken": "bold red"}


class Finding(NamedTuple):
    """One line: what was checked, its state, and what to do."""

    name: str
    status: str
    """``ok``, ``missing`` (something optional) or ``broken`` (something essential)."""
    found: str
    advice: str = ""


def doctor(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A saved model, prepared data or unfinished training, to say what is wrong with it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a bug report or a script.")] = False,
) -> None:
    """Say what is installed, what is missing for which extra, and on what device lbdrop would run.

    With a folder: whether its files are those that were saved. Ends with 1 only if something essential is broken; a missing
    extra is no illness.

    Examples:

        lbdrop doctor

        lbdrop doctor --json

        lbdrop doctor model
    """
    findings = examine() if folder is None else examine_folder(folder)
    broken = [finding for finding in findings if finding.status == "broken"]
    if as_json:
        typer.echo(json.dumps({"healthy": not broken, "findings": [each._asdict() for each in findings]}, indent=1))
    else:
        _print(findings, "this installation" if folder is None else str(folder))
    raise typer.Exit(1 if broken else 0)


def examine() -> list[Finding]:
    """All checks, essentials first."""
    return [_python(), *_packages(), _commit(), _gradient(), *_devices(), _temp(), *_extras(), _browser()]


def examine_folder(folder: Path) -> list[Finding]:
    """What is wrong with a folder of ours: each file of it, and whether it can be read."""
    with needs_extra("recommend"):
        from lbdrop.io.manifest import faults_of_files, header_of
        from lbdrop.recommend.data import prepared
        from lbdrop.recommend.recommender import Recommender
        from lbdrop.recommend.saving import KIND
        from lbdrop.recommend.train import checkpoints
    place, kind, read = folder, None, None
    if (folder / KIND.header).exists():
        kind, read = KIND, lambda: Recommender.load(folder, device="cpu")
    elif (folder / prepared.MANIFEST).exists():
        kind, read = prepared.KIND, lambda: prepared.load_prepared(folder)
    elif (state := checkpoints.newest(folder)) is not None:
        place, kind = state, checkpoints.KIND
    if kind is None:
        raise DropoutError(
            f"{folder}: want a saved model, prepared data or unfinished training, got no {KIND.header},"
            f" {prepared.MANIFEST} or epoch-… there"
        )
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        try:
            header = header_of(place, kind)
        except DropoutError as error:
            return [Finding(kind.header, "broken", one_line(str(error)))]
        versions = header.get("versions")
        known = isinstance(versions, dict)
        by = ", ".join(f"{name} {versions[name]}" for name in sorted(versions)) if known else "unknown"
        found = [Finding(kind.header, "ok", one_line(f"{kind.what}, format {header['format']}, by {by}"))]
        faults = [one_line(fault) for fault in faults_of_files(place, kind, header)]
        found += [Finding("files", "broken", fault, kind.again) for fault in faults]
        if not faults:
            found.append(Finding("files", "ok", "all as they were saved" if not notices else "all there"))
            try:
                found += [Finding("content", "ok", one_line(f"{read()}".splitlines()[0][:200]))] if read else []
            except DropoutError as error:
                found.append(Finding("content", "broken", one_line(str(error))))
    ours = rf"{kind.files}|{kind.header}|{PART}"
    others = [each.name for each in sorted(place.iterdir()) if not re.fullmatch(ours, each.name)]
    found += [Finding("other files", "ok", one_line(", ".join(others[:5])), "not ours: left alone")] if others else []
    return found + [Finding("notice", "missing", one_line(str(each.message))) for each in notices[:1]]


# ---------------------------------------------------------------------------------------------------------- essentials


def _python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST:
        return Finding("Python", "broken", found, f"want {'.'.join(map(str, OLDEST))} or later")
    return Finding("Python", "ok", found)


def _packages() -> list[Finding]:
    """lbdrop, and what it cannot do without."""
    own = version_of("lbdrop")
    found = [Finding("lbdrop", "ok", own) if own else Finding("lbdrop", "missing", "not installed", "pip install -e .")]
    for need in _needs():
        status, advice = ("ok", "") if need.fits else ("broken", f"pip install '{need}'")
        found += [] if need.extra else [Finding(need.package, status, need.there or "not installed", advice)]
    return found


def _commit() -> Finding:
    from lbdrop.io.records import provenance

    commit = provenance()["commit"]
    return Finding("commit", "ok", commit if commit != "unknown" else "unknown: not a git checkout")


def _gradient() -> Finding:
    """One training step and one prediction: what everything else is built on."""
    try:
        import torch
        from torch import nn

        import lbdrop

        with torch.random.fork_rng(devices=[]):
            model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
            lbdrop.convert(model, verbose=False)
            objective = lbdrop.Objective(model, examples=8)
            x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
            objective(lambda m: nn.functional.cross_entropy(m(x), y, reduction="none")).backward()
            lbdrop.predict(model, x, samples=2)
        missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
        if missing:
            return Finding("a training step", "broken", f"no gradient for {', '.join(missing)}", "report this")
    except Exception as error:  # whatever it is, it is the finding
        return Finding("a training step", "broken", f"{type(error).__name__}: {error}", "reinstall torch and lbdrop")
    return Finding("a training step", "ok", "weights and rates have gradients; predicts")


def _temp() -> Finding:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"lbdrop")
        free = shutil.disk_usage(folder).free / 2**30
        return Finding("temporary files", "ok", f"{folder}, {free:.1f} GiB free")
    except OSError as error:
        return Finding(
            "temporary files", "broken", f"{folder}: {error.strerror or error}", "set TMPDIR to a folder to write in"
        )


# ------------------------------------------------------------------------------------------------------------- devices


def _devices() -> list[Finding]:
    import torch

    threads = f"{torch.get_num_threads()} threads of {os.cpu_count()} cores"
    found = [Finding("CPU", "ok", f"{platform.processor() or platform.machine()}, {threads}")]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        memory = properties.total_memory / 2**30
        found.append(Finding(f"GPU {index}", "ok", f"{properties.name}, {memory:.0f} GiB, CUDA {torch.version.cuda}"))
    if torch.backends.mps.is_available():
        found.append(Finding("GPU", "ok", "Apple Metal (MPS)"))
    if len(found) == 1:
        found.append(Finding("GPU", "ok", "none that torch can see: everything runs on the CPU"))
    return found


# -------------------------------------------------------------------------------------------------------------- extras


class Need(NamedTuple):
    """A package that the installed metadata asks for, the least version of it, and the version that is there."""

    extra: str
    """For which extra; empty where it is always needed."""
    package: str
    least: str
    there: str | None

    @property
    def fits(self) -> bool:
        return self.there is not None and _parts(self.there) >= _parts(self.least)

    def __str__(self) -> str:
        return f"{self.package}>={self.least}" if self.least else self.package


def _needs() -> list[Need]:
    try:
        lines = requires("lbdrop") or []
    except PackageNotFoundError:
        return []
    found = []
    for text in lines:
        what, _, marker = text.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        name = re.match(r"[\w.-]+", what.strip())
        least = re.search(r">=\s*([\d.]+)", what)
        if name and name[0] != "lbdrop":
            found.append(Need(extra[1] if extra else "", name[0], least[1] if least else "", version_of(name[0])))
    return found


def _extras() -> list[Finding]:
    found, all_needs = [], _needs()
    for extra in sorted({need.extra for need in all_needs} - {""}):
        needs = [need for need in all_needs if need.extra == extra]
        if lacking := [f"{need} ({need.there or 'not installed'})" for need in needs if not need.fits]:
            advice = f"pip install 'lbdrop[{extra}]', or -e '.[{extra}]' in a checkout"
            found.append(Finding(f"extra {extra}", "missing", "; ".join(lacking), advice))
        else:
            there = ", ".join(f"{need.package} {need.there}" for need in needs)
            found.append(Finding(f"extra {extra}", "ok", there))
    return found


def _parts(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])[:3]))


def version_of(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _browser() -> Finding:
    """Only the tests of pages use one."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        return Finding(
            "Chromium", "missing", "not found", "only the browser tests need it: install the system's chromium package"
        )
    return Finding("Chromium", "ok", path)


def _print(findings: list[Finding], what: str) -> None:
    shown = table("", "", "")
    shown.show_header = False
    for name, status, found, advice in findings:
        said = Text(found + f"\n→ {advice}" * bool(advice))
        shown.add_row(name, Text(status, style=LOOK[status]), said)
    Console(highlight=False).print(shown)
    broken, missing = (sum(each.status == status for each in findings) for status in ("broken", "missing"))
    if broken:
        say(f"{broken} broken: {what} cannot be used until that is fixed")
    else:
        say(f"healthy; {missing} optional part{'s' * (missing != 1)} missing")
