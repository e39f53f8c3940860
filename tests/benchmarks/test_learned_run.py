"""The benchmark of a learned run times both kinds of run, as often as it says."""

import json
from pathlib import Path

import pytest

from benchmarks.learned_run import WHO, main


def test_ratios_are_those_of_the_recorded_runs(tmp_path: Path) -> None:
    main("digits:1", 3, tmp_path, tmp_path / "cost.json")
    found = json.loads((tmp_path / "cost.json").read_text())["tasks"]["digits"]
    fixed, tuned = (found["seconds"][who] for who in WHO)
    assert len(fixed) == len(tuned) == 3
    assert found["ratio"] == pytest.approx(sorted(t / f for f, t in zip(fixed, tuned, strict=True))[1])
