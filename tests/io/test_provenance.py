"""The commit that a record names."""

import subprocess
from pathlib import Path

import pytest

from lbdrop.io import records


@pytest.mark.parametrize(
    ("changed", "commit"), [("", "0123456789ab"), (" M lbdrop/objective.py", "0123456789ab-dirty")]
)
def test_commit_is_marked_dirty_by_changed_code_and_not_by_changed_results(
    changed: str, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def git(here: Path, *arguments: str) -> str:
        calls.append(arguments)
        return "0123456789ab" if arguments[0] == "rev-parse" else changed

    monkeypatch.setattr(records, "_git", git)
    assert records.provenance()["commit"] == commit
    assert calls[-1][-1] == ":(top,exclude,glob)**/results/**"


def test_commit_without_a_repository_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def git(here: Path, *arguments: str) -> str:
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(records, "_git", git)
    monkeypatch.delenv("LBDROP_COMMIT", raising=False)
    assert records.provenance()["commit"] == "unknown"
    monkeypatch.setenv("LBDROP_COMMIT", "fedcba")
    assert records.provenance()["commit"] == "fedcba"
