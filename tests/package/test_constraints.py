"""What judges the code is the same for everybody: a new release of a linter turns nothing red by itself."""

from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
PINNED = {each.name: str(each.specifier) for each in map(Requirement, LINES)}


def test_constraints_are_exact_versions() -> None:
    assert all(specifier.startswith("==") and "," not in specifier for specifier in PINNED.values()), PINNED


@pytest.mark.parametrize("tool", ["ruff", "pyright"])
def test_linter_and_type_checker_are_of_the_pinned_version(tool: str) -> None:
    assert PINNED[tool] == f"=={version(tool)}", "run make setup again, or change constraints.txt"
