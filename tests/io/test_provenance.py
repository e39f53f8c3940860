"""What a record says of the code that wrote it."""

import subprocess
from pathlib import Path

import pytest

from lbdrop.io import records


@pytest.mark.parametrize(("changed", "said"), [("", "0123456789ab"), (" M lbdrop/objective.py", "0123456789ab-dirty")])
def test_code_that_differs_from_its_commit_is_marked_but_results_may_differ(
    changed: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def git(here: Path, *words: str) -> str:
        asked.append(words)
        return "0123456789ab" if words[0] == "rev-parse" else changed

    monkeypatch.setattr(records, "_git", git)
    assert records.provenance()["commit"] == said
    assert asked[-1][-1] == ":(top,exclude,glob)**/results/**"


def test_a_copy_without_history_says_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def git(here: Path, *words: str) -> str:
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(records, "_git", git)
    monkeypatch.delenv("LBDROP_COMMIT", raising=False)
    assert records.provenance()["commit"] == "unknown"
    monkeypatch.setenv("LBDROP_COMMIT", "fedcba")
    assert records.provenance()["commit"] == "fedcba"
