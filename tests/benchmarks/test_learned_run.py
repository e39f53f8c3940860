"""The benchmark of a learned run times both kinds of run, as often as it says."""

import json
from pathlib import Path

import pytest

from benchmarks.learned_run import WHO, main


def test_ratios_are_those_of_the_runs_it_keeps(tmp_path: Path) -> None:
    main("digits:1", 2, tmp_path, tmp_path / "cost.json")
    found = json.loads((tmp_path / "cost.json").read_text())["tasks"]["digits"]
    fixed, tuned = (found["seconds"][who] for who in WHO)
    assert len(fixed) == len(tuned) == 2
    assert found["ratio"] == pytest.approx(sum(tuned) / sum(fixed))
