"""The regret table: worse, ruined and regret as they are defined, seed by seed."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from experiments.regret import table
from experiments.regret.runs import GRID


def lines(setup: str, contestant: str, tests: list[float | None], validation: float = 1.0) -> list[dict[str, Any]]:
    return [
        {"setup": setup, "seed": seed, "contestant": contestant, "test": test, "validation": validation}
        for seed, test in enumerate(tests)
    ]


def made(ours: list[float | None]) -> dict[str, dict[str, dict[int, float]]]:
    """A setup where validation chooses .3, whose loss is .8, and fixed .1 has 1."""
    rows = lines("a", "balanced-layer", ours)
    for rate in GRID:
        rows += lines(
            "a", f"fixed-{rate:g}", [0.8, 0.8, 0.8] if rate == 0.3 else [1.0, 1.0, 1.0], 0.5 if rate == 0.3 else 1.0
        )
    return table.losses_of(rows)


@pytest.mark.parametrize(
    ("ours", "worse", "ruined", "better"),
    [
        ([1.04, 1.04, 1.04], False, False, False),  # not by five per cent
        ([1.10, 1.11, 1.09], True, False, False),
        ([1.60, 0.80, 0.90], False, False, False),  # by ten per cent, and not surely
        ([1.30, 1.31, 1.29], True, True, False),
        ([0.90, 0.91, 0.89], False, False, True),
        ([1.0, None, 1.0], True, True, False),  # diverged
    ],
)
def test_setup_is_worse_beyond_five_per_cent_and_two_standard_errors(
    ours: list[float | None], worse: bool, ruined: bool, better: bool
) -> None:
    row = table.summary(made(ours))["balanced-layer"]
    assert (bool(row["worse"]), bool(row["ruined"]), bool(row["better"])) == (worse, ruined, better)


def test_regret_is_relative_to_the_rate_that_validation_chooses() -> None:
    found = table.summary(made([0.96, 0.96, 0.96]))
    assert found["balanced-layer"]["regret"] == pytest.approx(0.2)
    assert found["fixed-0.1"]["regret"] == pytest.approx(0.25)
    assert found["grid"]["regret"] == pytest.approx(0.0)


def test_setup_where_the_rival_diverged_is_left_out() -> None:
    losses = made([1.0, 1.0, 1.0])
    losses["a"]["fixed-0.1"][1] = math.inf
    assert table.summary(losses) == {}


def test_table_stands_between_its_comments() -> None:
    whole = {"summary": table.summary(made([0.9, 0.91, 0.89]) | {"b": made([1.0, 1.0, 1.1])["a"]})}
    text = table.filled("before\n<!-- verdict -->\nold\n<!-- end -->\nafter", "verdict", whole)
    assert text.startswith("before\n<!-- verdict -->\n\n| contestant |")
    assert "old" not in text
    assert text.endswith("<!-- end -->\nafter")


def test_command_writes_losses_table_and_figure_and_reads_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(table, "README", tmp_path / "README.md")
    (tmp_path / "README.md").write_text("<!-- verdict -->\n<!-- end -->\n", encoding="utf-8")
    rows = [{"provenance": {"commit": "abc"}}]
    for setup in ("verdict-000", "verdict-001"):
        rows += lines(setup, "balanced-layer", [1.2, 1.1, 1.15])
        for rate in GRID:
            rows += lines(setup, f"fixed-{rate:g}", [1.0, 1.01, None if rate == 0.7 else 0.99])
    (tmp_path / "verdict.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    table.main(["--half", "verdict", str(tmp_path / "verdict.jsonl")])
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["verdict.json", "verdict.png"]
    written = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| balanced noise, a rate per layer | 2 | 2 (100 %) | 0 | 0 | +15.0 ± 0.0 % | +15.0 % | +15.0 % |" in written
    table.main(["--half", "verdict"])
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == written
    assert "balanced noise" in capsys.readouterr().out
