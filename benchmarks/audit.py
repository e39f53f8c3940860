"""Which versions of which packages lbdrop was audited with, and against what: a record that a check needs no network for.

The audit walks the installed dependencies of every extra. It asks pip-audit (https://pypi.org/project/pip-audit) for known
vulnerabilities; where that or its sources cannot be reached, the record says so and holds versions alone. Without a network
a clone of https://github.com/pypa/advisory-database is read instead (``--database``); the record says of which day it is. The
check compares what is installed with the record. What was not audited is named; an installed version with a vulnerability in
it ends with 1.

Run: ``python -m benchmarks.audit`` with a network, and ``python -m benchmarks.audit --check`` (``make audit``) without.
"""

import json
import re
import shutil
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from packaging.version import Version

from lbdrop.io.records import provenance, read_json, write_json

__all__ = ["compare", "installed", "main"]

RECORD = Path(__file__).parent / "results" / "audit.json"


def main(
    check: Annotated[bool, typer.Option("--check", help="Compare with the record, without a network.")] = False,
    database: Annotated[Path | None, typer.Option(help="A clone of PyPA's advisory database; bare, too.")] = None,
    out: Annotated[Path, typer.Option(help="The record.")] = RECORD,
) -> None:
    """Audit what is installed, or compare it with the last audit."""
    found = installed()
    if check:
        record = read_json(out)
        others, vulnerable = compare(found, record)
        for line in (*others, *vulnerable):
            print(line)
        print(f"{len(found) - len(others)} of {len(found)} packages as audited; {record['advisories']['said']}")
        raise typer.Exit(int(bool(vulnerable)))
    advisories = _advisories(found) if database is None else _of_clone(found, database)
    write_json(out, {"packages": found, "advisories": advisories, "provenance": provenance()})
    print(f"{len(found)} packages; {advisories['said']}")


def installed(root: str = "lbdrop") -> dict[str, str]:
    """Versions of all that lbdrop and its extras need and that is installed, by name."""
    found: dict[str, str] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        for line in requires(name) or []:
            what, _, marker = line.partition(";")
            need = re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", what.strip())[0]).lower()  # pyright: ignore[reportOptionalSubscript]
            if need in found or need == root or ("extra" in marker and name != root):
                continue
            try:
                found[need] = version(need)
            except PackageNotFoundError:  # of another system, or of an extra that is not there
                continue
            waiting.append(need)
    return dict(sorted(found.items()))


def compare(found: dict[str, str], record: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Packages that were not audited in this version, and those with a known vulnerability, a line each."""
    audited = record["packages"]
    others = [
        f"{name}: want {audited.get(name, 'no such package')}, as audited, got {there}; run python -m benchmarks.audit"
        for name, there in found.items()
        if audited.get(name) != there
    ]
    vulnerable = [
        f"{each['name']} {each['version']}: {each['id']}, see https://osv.dev/{each['id']}; update it"
        for each in record["advisories"]["found"]
        if found.get(each["name"]) == each["version"]
    ]
    return others, vulnerable


def _advisories(packages: dict[str, str]) -> dict[str, Any]:
    """What pip-audit says of these versions, or that nothing could be asked."""
    tool = shutil.which("pip-audit")
    if tool is None:
        return {"source": None, "found": [], "said": "audited against nothing: pip-audit is not installed"}
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "packages.txt"
        wanted.write_text("".join(f"{name}=={each.partition('+')[0]}\n" for name, each in packages.items()))
        words = [
            tool,
            "--requirement",
            str(wanted),
            "--no-deps",
            "--disable-pip",
            "--format",
            "json",
        ]
        for source in ("osv", "pypi"):
            done = subprocess.run(
                [*words, "--vulnerability-service", source], capture_output=True, text=True, check=False
            )
            try:
                asked = [each for each in json.loads(done.stdout)["dependencies"] if "vulns" in each]
            except (ValueError, KeyError):
                continue
            if asked:
                found = [
                    {"name": each["name"], "version": packages[each["name"]], "id": known["id"]}
                    for each in asked
                    for known in each["vulns"]
                ]
                skipped = len(packages) - len(asked)
                said = (
                    f"{len(found)} known vulnerabilities in {len(asked)} of them by {source}, {skipped} not known there"
                )
                return {"source": source, "found": found, "said": said}
    return {"source": None, "found": [], "said": "audited against nothing: no source of advisories could be reached"}


def _of_clone(packages: dict[str, str], clone: Path) -> dict[str, Any]:
    """What the newest commit of a clone of PyPA's advisory database says of these versions."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(clone), *words], capture_output=True, text=True, check=True).stdout

    texts = [
        path for path in git("ls-tree", "-r", "--name-only", "HEAD", "vulns").splitlines() if path.endswith(".yaml")
    ]
    ours = [path for path in texts if re.sub(r"[-_.]+", "-", path.split("/")[1]).lower() in packages]
    advisories = [yaml.safe_load(git("show", f"HEAD:{path}")) for path in ours]
    found = [
        {"name": name, "version": there, "id": each["id"]}
        for each in advisories
        if "withdrawn" not in each
        for name, there in packages.items()
        if any(affects(part, name, there) for part in each["affected"])
    ]
    day = git("log", "-1", "--format=%cs").strip()
    said = f"{len(found)} of {len(texts):,} known vulnerabilities in PyPA's advisory database of {day} are in them"
    return {"source": f"https://github.com/pypa/advisory-database, {day}", "found": found, "said": said}


def affects(part: dict[str, Any], name: str, there: str) -> bool:
    """Whether an advisory's entry, in the format of OSV, is about this version of this package."""
    if re.sub(r"[-_.]+", "-", part["package"]["name"]).lower() != name:
        return False
    version = Version(there)
    if version.public in part.get("versions", ()):
        return True
    for span in (each for each in part.get("ranges", ()) if each["type"] == "ECOSYSTEM"):
        inside = False
        for event in span["events"]:  # in the order of versions
            (kind, at), *_ = event.items()
            reached = at == "0" or Version(version.public) >= Version(at)
            if kind == "last_affected":
                inside &= not reached or Version(version.public) == Version(at)
            elif reached:
                inside = kind == "introduced"
        if inside:
            return True
    return False


if __name__ == "__main__":
    typer.run(main)
