"""Pages say of the random setups what the record says."""

import re
from pathlib import Path

import pytest

from experiments.regret import table
from lbdrop.io.records import read_json

ROOT = Path(table.__file__).parent.parent.parent
VERDICTS = {half: read_json(table.RESULTS / f"{half}.json") for half in ("verdict", "second-verdict")}
WHOLE = VERDICTS["verdict"]
OURS = "balanced-layer"


@pytest.mark.parametrize("half", VERDICTS)
def test_regret_readme_table_matches_json(half: str) -> None:
    text = table.README.read_text(encoding="utf-8")
    assert table.filled(text, half, VERDICTS[half]) == text


def test_regret_prose_matches_json() -> None:
    row, all_examples = WHOLE["summary"][OURS], WHOLE["beside fixed .1 on all examples"][OURS]
    counts = len(row["worse"]), len(row["better"]), len(row["ruined"]), len(WHOLE["summary"]["early"]["worse"])
    assert counts == (1, 20, 0, 5)  # one, twenty, none and five, in words
    assert (len(all_examples["worse"]), len(all_examples["better"])) == (24, 4)
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "how_rates_are_learned.md").read_text(encoding="utf-8"))
    row = VERDICTS["second-verdict"]["summary"][OURS]
    assert [len(row[name]) for name in ("worse", "better", "ruined")] == [2, 16, 0]  # two, sixteen, none, in words
    assert f"by {100 * row['regret at most 1']:.1f} % of the loss in the mean" in page
    assert f"It was worse in {len(all_examples['worse'])} setups" in page


@pytest.mark.parametrize("half", VERDICTS)
def test_regret_summary_follows_from_the_losses(half: str) -> None:
    losses = {setup: {name: {int(seed): float("inf") if loss is None else loss for seed, loss in seeds.items()}
                      for name, seeds in each.items()} for setup, each in VERDICTS[half]["losses"].items()}  # fmt: skip
    assert table.summary(losses) == VERDICTS[half]["summary"]
