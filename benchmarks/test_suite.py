"""What the tests cost and cover at two commits: seconds of CPU, how many there are, and line coverage.

Claim: since 8012a0f the tests take at most half of the time, and cover no smaller share of the lines. Run:
``python -m benchmarks.test_suite``, in an environment with ``coverage``. All tests of a commit run in one process under
``coverage``, which makes them slower at both commits.
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


def main(
    commits: Annotated[list[str], typer.Option("--commit", help="Commits to run; may be repeated.")] = COMMITS,
    out: Annotated[Path, typer.Option(help="The JSON to write.")] = RESULTS / "test_suite.json",
) -> None:
    """Check out each commit, run its tests under coverage, and record cost and coverage; what is recorded stays."""
    rows: dict[str, Any] = json.loads(out.read_text())["commits"] if out.exists() else {}
    for name in commits:
        commit = _git("rev-parse", "--short", name)
        rows[commit] = row = measure(commit)
        Console().print(
            f"{commit}: {row['passed']} passed, {row['cpu_seconds']:.0f} s of CPU, {row['percent']:.2f} % of lines"
        )
        write_json(out, {"settings": {"packages": PACKAGES}, "provenance": provenance("cpu"), "commits": rows})


def measure(commit: str) -> dict[str, Any]:
    """Cost and coverage of the tests of one commit, run in a checkout of its own."""
    with tempfile.TemporaryDirectory() as folder:
        checkout, report, data = Path(folder, "checkout"), Path(folder, "report.xml"), Path(folder, "coverage.json")
        _git("worktree", "add", "--quiet", "--detach", str(checkout), commit)
        try:
            coverage = [sys.executable, "-m", "coverage"]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(checkout), *sys.path[1:]])}
            before = _cpu_seconds()
            call = [
                *coverage,
                "run",
                f"--source={','.join(PACKAGES)}",
                "-m",
                "pytest",
                "-n",
                "0",
                f"--junitxml={report}",
            ]
            done = subprocess.run(call, cwd=checkout, env=env, check=False)
            seconds = _cpu_seconds() - before
            if not report.exists():
                raise DropoutError(f"pytest: want a report, got exit code {done.returncode}; see what it printed above")
            subprocess.run([*coverage, "json", "--quiet", "-o", str(data)], cwd=checkout, env=env, check=True)
            totals = json.loads(data.read_text())["totals"]
        finally:
            _git("worktree", "remove", "--force", str(checkout))
        counts = {key: value for key, value in summary(report.read_text(encoding="utf-8")).items() if key != "seconds"}
        return {
            **counts,
            "cpu_seconds": seconds,
            "lines": totals["num_statements"],
            "covered": totals["covered_lines"],
            "percent": 100 * totals["covered_lines"] / totals["num_statements"],
        }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    typer.run(main)
