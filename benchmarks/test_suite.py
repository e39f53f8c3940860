"""What the tests cost and cover at two commits: seconds of CPU, how many there are, and line coverage.

Claim: since 8012a0f the tests take at most half of the time, and cover no smaller share of the lines. Run:
``python -m benchmarks.test_suite``, in an environment with ``coverage``, which the extra ``benchmark`` has. The tests of a
commit run under ``coverage``, a folder at a time and each in one process, which makes them slower at both commits. What is
done stays in the folder, and the same command goes on from there.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.torch_versions import RESULTS, ROOT, summary
from lbdrop.errors import DropoutError
from lbdrop.io.records import provenance, write_json

BEFORE = "8012a0f"
COMMITS = [BEFORE, "HEAD"]
PACKAGES = ("lbdrop", "experiments")
"""What is covered: before, most of the laboratory was in the first."""
FILES_IN_A_PART = 12
"""Of the files that lie in ``tests`` itself."""


def main(
    commits: Annotated[list[str], typer.Option("--commit", help="Commits to run; may be repeated.")] = COMMITS,
    folder: Annotated[Path | None, typer.Option(help="Where checkouts and finished parts are, and stay.")] = None,
    out: Annotated[Path, typer.Option(help="The JSON to write.")] = RESULTS / "test_suite.json",
) -> None:
    """Check out each commit, run its tests under coverage, and record cost and coverage; what is recorded stays."""
    place = folder or Path(tempfile.gettempdir()) / "lbdrop-test-suite"
    rows: dict[str, Any] = json.loads(out.read_text())["commits"] if out.exists() else {}
    for name in commits:
        commit = _git("rev-parse", "--short", name)
        rows[commit] = row = measure(commit, place / commit)
        Console().print(
            f"{commit}: {row['passed']} passed, {row['cpu_seconds']:.0f} s of CPU, {row['percent']:.2f} % of lines"
        )
        write_json(out, {"settings": {"packages": PACKAGES}, "provenance": provenance("cpu"), "commits": rows})


def measure(commit: str, folder: Path) -> dict[str, Any]:
    """Cost and coverage of the tests of one commit, run in a checkout of its own."""
    checkout = folder / "checkout"
    if not checkout.exists():
        _git("worktree", "prune")
        _git("worktree", "add", "--quiet", "--detach", str(checkout), commit)
    done = [_run_part(checkout, folder, name, paths) for name, paths in parts(checkout).items()]
    data = folder / "coverage.json"
    _coverage(
        checkout, folder / "coverage.all", "combine", "--quiet", "--keep", *map(str, folder.glob("part-*.coverage"))
    )
    _coverage(checkout, folder / "coverage.all", "json", "--quiet", "-o", str(data))
    totals = json.loads(data.read_text())["totals"]
    sums = {key: sum(part[key] for part in done) for key in ("passed", "failed", "skipped", "cpu_seconds")}
    return {
        **sums,
        "failures": [name for part in done for name in part["failures"]],
        "lines": totals["num_statements"],
        "covered": totals["covered_lines"],
        "percent": 100 * totals["covered_lines"] / totals["num_statements"],
    }


def parts(checkout: Path) -> dict[str, list[str]]:
    """The tests of a checkout: each folder of them, files beside these in groups, and the examples in docstrings."""
    tests = checkout / "tests"
    folders = sorted({path.relative_to(tests).parts[0] for path in tests.rglob("*/test_*.py")})
    files = sorted(path.name for path in tests.glob("test_*.py"))
    found = {name: [f"tests/{name}"] for name in folders}
    for start in range(0, len(files), FILES_IN_A_PART):
        found[f"files-{start}"] = [f"tests/{name}" for name in files[start : start + FILES_IN_A_PART]]
    return found | {"docstrings": ["lbdrop"]}


def _run_part(checkout: Path, folder: Path, name: str, paths: list[str]) -> dict[str, Any]:
    """Counts and seconds of CPU of some tests; read where they have been run before."""
    finished, report, data = (folder / f"part-{name}.{suffix}" for suffix in ("json", "xml", "coverage"))
    if finished.exists():
        return json.loads(finished.read_text())
    before = _cpu_seconds()
    pytest = ["-m", "pytest", "-n", "0", f"--junitxml={report}", *paths]
    _coverage(checkout, data, "run", f"--source={','.join(PACKAGES)}", *pytest, check=False)
    seconds = _cpu_seconds() - before
    if not report.exists():
        raise DropoutError(f"pytest {name}: want a report, got none; see what it printed above")
    counts = summary(report.read_text(encoding="utf-8"))
    return json.loads(write_json(finished, {**counts, "cpu_seconds": seconds}).read_text())


def _coverage(checkout: Path, data: Path, *arguments: str, check: bool = True) -> None:
    path = os.pathsep.join([str(checkout), *sys.path[1:]])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COVERAGE_FILE": str(data)}
    subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=checkout, env=env, check=check)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    typer.run(main)
