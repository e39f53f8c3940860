"""The README's figure shows the means of the records."""

import statistics
from pathlib import Path

import pytest

from experiments.rates import overview
from experiments.rates.run import RESULTS, read

RECORDS = read(RESULTS / f"{overview.TASK}.json")


def test_figure_has_each_fixed_rate_and_the_learned_run() -> None:
    fixed, (mean, error) = overview.losses_by_rate(RECORDS)
    assert [*fixed] == [0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7]
    of_none = [r["test"]["deterministic"]["nll"] for r in RECORDS if r["contestant"] == "none"]
    assert fixed[0.0][0] == pytest.approx(statistics.fmean(of_none))
    assert 0 < error < 0.1 * mean


def test_figure_is_written(tmp_path: Path) -> None:
    assert overview.draw(RECORDS, tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
