"""The tests of the core under the oldest and the newest torch that ``pyproject.toml`` allows, each in its own environment.

Claim: every test passes under both. Run: ``make torch-versions``, or ``python -m benchmarks.torch_versions``. An environment
needs about 6 GB, since wheels of a package index bring CUDA along; those that are there already are used again.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree

import typer
from rich.console import Console

from lbdrop.errors import DropoutError
from lbdrop.io.records import provenance, write_json

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
TESTS = ("tests/test_*.py", "tests/passes", "tests/guards", "tests/sites", "tests/rules", "tests/golden")
"""Tests of the core: other tests need torch only through it."""
OF_SOURCES = "tests/test_architecture.py"
"""Reads sources, and runs nothing of torch."""
REQUIREMENTS = (
    "setuptools>=77",
    "pytest>=8",
    "pytest-xdist",
    "hypothesis",
    "beartype",
    "scikit-learn",
    "pandas",
    "pyarrow",
)
EXTRAS = "vision,recommend,rivals,transformers"
"""The golden records and the sites use these."""
VERSIONS = ["2.8.0", "2.15.0"]


def main(
    torch: Annotated[list[str], typer.Option(help="Releases of torch; may be repeated.")] = VERSIONS,
    folder: Annotated[Path | None, typer.Option(help="Where the environments are, and stay.")] = None,
    out: Annotated[Path, typer.Option(help="The JSON to write.")] = RESULTS / "torch_versions.json",
) -> None:
    """Make an environment for each release of torch, run the tests of the core in it, and record what failed."""
    place = folder or Path(tempfile.gettempdir()) / "lbdrop-torch-versions"
    rows: dict[str, Any] = {}
    for version in torch:
        python = environment(place / f"torch-{version}", version)
        rows[version] = row = run_tests(python)
        Console().print(
            f"torch {version}: {row['passed']} tests passed, {row['failed']} failed in {row['seconds']:.0f} s"
        )
        settings = {"tests": list(TESTS), "extras": EXTRAS.split(",")}
        write_json(out, {"settings": settings, "provenance": provenance("cpu"), "torch": rows})
    if any(row["failed"] for row in rows.values()):
        raise typer.Exit(1)


def environment(folder: Path, version: str) -> Path:
    """The interpreter of an environment with this torch and this checkout of lbdrop; made if it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    subprocess.run([*install, f"torch=={version}", *REQUIREMENTS], check=True)
    # Without isolation: only the first step asks for packages that are not needed later.
    editable = ["--no-build-isolation", f"torch=={version}", "-e", f"{ROOT}[{EXTRAS}]"]
    subprocess.run([*install, *editable], check=True)
    return python


def run_tests(python: Path) -> dict[str, Any]:
    """What ran, on what, and how many tests passed, failed or were skipped."""
    found = (str(path.relative_to(ROOT)) for pattern in TESTS for path in sorted(ROOT.glob(pattern)))
    paths = [path for path in found if path != OF_SOURCES]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        call = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *paths]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(call, cwd=ROOT, env=env, check=False)
        if not report.exists():
            raise DropoutError(f"pytest: want a report, got exit code {done.returncode}; see what it printed above")
        return {**versions(python), **summary(report.read_text(encoding="utf-8"))}


def versions(python: Path) -> dict[str, str]:
    code = "import platform, numpy, torch; print(platform.python_version(), torch.__version__, numpy.__version__)"
    printed = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(("python", "torch", "numpy"), printed, strict=True))


def summary(report: str) -> dict[str, Any]:
    """Counts, seconds and the names of failures in a JUnit report; a test with two errors counts once."""
    cases = list(ElementTree.fromstring(report).iter("testcase"))

    def having(*tags: str) -> list[str]:
        return [
            f"{case.get('classname')}::{case.get('name')}"
            for case in cases
            if any(case.find(tag) is not None for tag in tags)
        ]

    failures, skipped = having("failure", "error"), having("skipped")
    return {
        "passed": len(cases) - len(failures) - len(skipped),
        "failed": len(failures),
        "skipped": len(skipped),
        "seconds": sum(float(case.get("time", 0)) for case in cases),
        "failures": failures,
    }


if __name__ == "__main__":
    typer.run(main)
