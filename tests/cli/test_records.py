"""Records of runs whose means are of one user, and so have no error, can be summed up and reported."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import experiments.collaborative
from experiments.commands.reproduce_collaborative import _summary
from lbdrop.cli import app


@pytest.fixture
def record() -> dict[str, Any]:
    path = Path(experiments.collaborative.__file__).parent / "results" / "ml-1m-ease-seed0.json"
    found = json.loads(path.read_text())
    for part in ("validation", "test"):
        found[part]["standard_error"] = dict.fromkeys(found[part]["mean"])
    return found


def test_record_without_standard_errors_is_summarised(record: dict[str, Any]) -> None:
    said = _summary(record)
    assert f"ndcg@100 {record['test']['mean']['ndcg@100']:.4f}, " in said
    assert "±" not in said


def test_record_without_standard_errors_is_reported(record: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(record))
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run.json"), "--out", str(tmp_path / "page")])
    assert done.exit_code == 0, done.output
    del record["test"]["standard_error"]["ndcg@100"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run.json"), "--out", str(tmp_path / "page")])
    assert done.exit_code == 1
    assert "test.standard_error.ndcg@100" in done.output
