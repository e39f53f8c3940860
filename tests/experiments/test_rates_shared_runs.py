"""Contestants whose runs are the same have them in common."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_task import tiny_task
from typer.testing import CliRunner

from experiments.rates import run
from experiments.rates.record import CONTESTANTS
from experiments.rates.tasks import TASKS
from lbdrop.cli import app


def test_contestants_with_a_shared_run_train_once_and_each_has_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Balanced noise starts at .05: made to start there it is the same run, number by number."""
    monkeypatch.setitem(TASKS, "digits", replace(tiny_task(), name="digits"))
    task, who, twin = TASKS["digits"], CONTESTANTS["balanced-layer"], CONTESTANTS["balanced-layer-0.05"]
    assert who.same_run == twin.same_run
    assert len({each.same_run for each in CONTESTANTS.values()}) == len(CONTESTANTS) - 1
    seconds = ("seconds", "provenance")
    alone = [{k: v for k, v in run.run(task, each, 0, epochs=5).items() if k not in seconds} for each in (who, twin)]
    ran: list[str] = []
    real = run.run

    def counted(task: Any, contestant: Any, *args: Any, **kwargs: Any) -> Any:
        ran.append(contestant.name)
        return real(task, contestant, *args, **kwargs)

    monkeypatch.setattr(run, "run", counted)
    names = f"{who.name},{twin.name},balanced-layer-0.3"
    call = ["reproduce", "rates", "--task", "digits", "--seeds", "1", "--contestant", names, "--epochs", "5"]
    done = CliRunner().invoke(app, [*call, "--workers", "1", "--device", "cpu", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert ran == [who.name, "balanced-layer-0.3"]
    found = {record["contestant"]: record for record in run.read(tmp_path / "digits.json")}
    assert set(found) == {who.name, twin.name, "balanced-layer-0.3"}
    for each in alone:
        kept = found[each["contestant"]]
        assert {k: v for k, v in kept.items() if k not in seconds} == json.loads(json.dumps(each))
        assert run.kept([kept], task, CONTESTANTS[each["contestant"]], 0, 5)
