"""The benchmark of a task's command times all contestants of it."""

import json
from pathlib import Path

import pytest

from benchmarks.rates_command import SEEDS, main
from experiments.rates.contestants import chosen
from experiments.rates.record import CONTESTANTS
from experiments.rates.tasks import TASKS


@pytest.mark.process
def test_contestants_are_all_timed_and_the_command_takes_longer_than_its_parts(tmp_path: Path) -> None:
    main("digits", tmp_path, tmp_path / "time.json", epochs=1, seeds=2)
    found = json.loads((tmp_path / "time.json").read_text())
    row = found["tasks"]["digits"]
    training = row["cpu_seconds_of_training_a_seed"]
    assert {each.name for each in chosen("all", TASKS["digits"])} <= training.keys()
    once = {CONTESTANTS[name].same_run: seconds for name, seconds in training.items()}  # some share their run
    assert len(once) < len(training)
    alone = {each.same_run for each in chosen("all", TASKS["digits"])}
    assert row["runs"] == 2 * (len(alone) + 1)  # each of two seeds retrains one rate
    assert row["cpu_seconds"] > 2 * sum(once.values())
    assert row["wall_seconds"] > 2 * sum(once.values()) / found["settings"]["workers"]
    assert row["minutes_of_five_seeds"] == pytest.approx(SEEDS / 2 * row["wall_seconds"] / 60)
