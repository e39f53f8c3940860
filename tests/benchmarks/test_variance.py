import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import variance
from lbdrop.io.records import write_json

pytestmark = pytest.mark.process

TINY = variance.Settings(
    keeps=(0.5, 0.8),
    estimators=("arm", "rloo-4", "double-cv-4"),
    seeds=(0, 1),
    draws=4,
    warm_up=1,
    hidden=16,
    epochs=1,
    batches=2,
)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("variance") / "variance.json"
    return json.loads(write_json(path, variance.run(TINY)).read_text())


def test_record_holds_settings_and_findings(record: dict[str, Any]) -> None:
    assert {"benchmark", "settings", "findings", "summary", "overall", "claim", "runs", "provenance"} <= set(record)
    assert record["settings"]["seeds"] == [0, 1]
    assert len(record["runs"]) == 8
    assert set(record["overall"]) == {"none", "inverted", "all"}
    assert record["claim"]["holds"] == (record["claim"]["worst"] <= 0.2)
    assert record["claim"]["worst_at_equal_evaluations"] == pytest.approx(
        2 * record["claim"]["worst"]
    )  # 4 masks, not 2
    for each in record["summary"]:
        assert set(each["estimators"]) == set(TINY.estimators)
        merits = {name: entry["merit"] for name, entry in each["estimators"].items()}
        assert merits[each["lowest_merit"]] == min(merits.values())


def test_arm_is_exactly_1_relative_to_itself(record: dict[str, Any]) -> None:
    for each in [*record["runs"], *record["summary"]]:
        assert [each["estimators"]["arm"][key] for key in variance.RATIOS] == [1, 1, 1, 1]
    assert record["overall"]["all"]["merit"]["arm"] == 1


def test_equal_evaluations_charge_for_every_mask(record: dict[str, Any]) -> None:
    for each in record["runs"]:
        entry = each["estimators"]["rloo-4"]
        assert entry["relative_equal_evaluations"] == pytest.approx(2 * entry["relative_per_call"])
        assert len(entry["relative_per_call_by_batch"]) == TINY.batches


def test_tables_name_each_estimator_once_for_each_scaling(record: dict[str, Any]) -> None:
    tables = list(variance.tables(record))
    assert len(tables) == len(TINY.keeps)
    assert all(table.row_count == 2 * (1 + len(TINY.estimators)) for table in tables)


def test_variances_do_not_depend_on_the_other_estimators() -> None:
    def arm(settings: variance.Settings) -> float:
        return variance.measure(settings, "none", 0.5, seed=0)["estimators"]["arm"]["variance"]

    alone = replace(TINY, estimators=("arm", "double-cv-4"))
    assert arm(alone) == pytest.approx(arm(replace(TINY, estimators=("arm", "double-cv-4", "rloo-2"))), rel=1e-4)


def test_biased_estimator_stands_out() -> None:
    draws = {name: torch.randn(2, 200, 30, dtype=torch.float64) + 1 for name in ("a", "b", "c")}
    direction = torch.nn.functional.normalize(torch.ones(30, dtype=torch.float64), dim=0)
    assert all(abs(found["z"]) < 4 for found in variance.bias(draws, direction).values())
    draws["b"] *= 1.2
    found = variance.bias(draws, direction)
    assert abs(found["b"]["z"]) > 10 > abs(found["a"]["z"])


def test_total_variance_is_within_batches_not_between_them() -> None:
    between = torch.tensor([-100.0, 100.0], dtype=torch.float64)[:, None, None]
    total, error = variance.total_variance(torch.randn(2, 500, 30, dtype=torch.float64) + between)
    assert abs(total - 30) < 4 * error < 3
