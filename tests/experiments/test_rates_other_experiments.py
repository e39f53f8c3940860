"""Runs of other experiments get the verdicts of the rates' table: validation chooses, test is compared, lengths are not mixed."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.rates import other_experiments


def recommender(
    folder: Path,
    method: str,
    seed: int,
    rate: float | None,
    values: tuple[float, float],
    epochs: int = 50,
    dataset: str = "ml-1m",
) -> None:
    validation, test = ({"mean": {"ndcg@100": value}} for value in values)
    record: dict[str, Any] = {"dataset": dataset, "method": method, "label": method.upper(), "seed": seed, "rate": rate, "validation": validation,
                              "test": test, "settings": {"epochs": epochs, "dropout": "fixed"}, "rates": {"keep": 0.75}}  # fmt: skip
    name = f"{dataset}-{method}-{rate}-{epochs}-seed{seed}.json"
    target = folder / "collaborative" / "results" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record))


@pytest.fixture
def experiments(tmp_path: Path) -> Path:
    for seed in range(3):
        # Validation prefers .5 for two seeds and .1 for the last, whatever test says.
        recommender(tmp_path, "vae-dense-drop", seed, 0.1, (0.40 if seed < 2 else 0.44, 0.43))
        recommender(tmp_path, "vae-dense-drop", seed, 0.5, (0.42, 0.41))
        recommender(tmp_path, "sivae-lbd-dense", seed, None, (0.0, 0.44 + 0.001 * seed))
    return tmp_path


def test_grid_is_chosen_on_validation_seed_by_seed_and_more_ndcg_is_better(experiments: Path) -> None:
    found = other_experiments.summarise(experiments)
    assert set(found) == {"recommender-ml-1m-dense"}
    dense = found["recommender-ml-1m-dense"]
    assert dense["chosen"]["rates"] == [0.5, 0.5, 0.1]
    assert dense["chosen"]["test"] == pytest.approx((0.41 + 0.41 + 0.43) / 3)
    learned = dense["contestants"]["SIVAE-LBD-DENSE"]
    assert learned["against_grid"]["difference"] == pytest.approx(-(0.03 + 0.031 + 0.012) / 3)
    assert learned["against_grid"]["verdict"] == "level"  # p is .06
    assert learned["rates"] == [0.25]
    text = "\n".join(other_experiments.lines(found))
    assert "Grid of 0.1, 0.5: 0.4167" in text
    assert "| SIVAE-LBD-DENSE | 3 | 0.4410" in text


def test_runs_of_another_length_and_seeds_without_a_whole_grid_do_not_count(experiments: Path) -> None:
    recommender(experiments, "vae-dense-drop", 0, 0.5, (0.9, 0.9), epochs=100)
    recommender(experiments, "sivae-lbd-dense", 5, None, (0.9, 0.9), epochs=100)
    recommender(experiments, "vae-dense-drop", 3, 0.1, (0.9, 0.9))  # a seed without .5
    dense = other_experiments.summarise(experiments)["recommender-ml-1m-dense"]
    assert (dense["epochs"], dense["seeds"]) == (50, [0, 1, 2])
    assert dense["contestants"]["SIVAE-LBD-DENSE"]["runs"] == 3


def test_comparison_needs_a_grid_and_learned_runs(tmp_path: Path) -> None:
    assert other_experiments.summarise(tmp_path) == {}
    recommender(tmp_path, "vae-dense-drop", 0, 0.1, (0.4, 0.4))
    assert other_experiments.summarise(tmp_path) == {}


def test_sample_is_separate_from_the_complete_data(tmp_path: Path) -> None:
    for dataset, level in (("netflix", 0.3), ("netflix-sample", 0.2)):
        recommender(tmp_path, "vae-dense-drop", 0, 0.5, (level, level), dataset=dataset)
        recommender(tmp_path, "sivae-lbd-dense", 0, None, (level, level), dataset=dataset)
    found = other_experiments.summarise(tmp_path)
    assert {name: each["chosen"]["test"] for name, each in found.items()} == {
        "recommender-netflix-dense": pytest.approx(0.3),
        "recommender-netflix-sample-dense": pytest.approx(0.2),
    }


def test_lower_loss_is_better_on_images(tmp_path: Path) -> None:
    results = tmp_path / "cifar10" / "results"
    results.mkdir(parents=True)
    for seed in range(3):
        for method, rate, nll in (("mc", 0.1, 0.2), ("mc", 0.5, 0.3), ("lbd-layer", 0.1, 0.1 + 0.01 * seed)):
            record = {"method": method, "label": method, "seed": seed, "settings": {"rate": rate, "epochs": 5},
                      "validation": {"nll": nll}, "test": {"nll": nll}, "rates": {"a": {"mean": 0.3}, "b": {"mean": 0.4}}}  # fmt: skip
            (results / f"fast-{method}-{rate}-seed{seed}.json").write_text(json.dumps(record))
    found = other_experiments.summarise(tmp_path)["cifar10-vgg19"]
    assert found["chosen"]["rates"] == [0.1, 0.1, 0.1]
    (learned,) = found["contestants"].values()
    assert learned["against_grid"]["verdict"] == "better"
    assert learned["against_grid"]["difference"] == pytest.approx(-0.09)
    assert learned["rates"] == pytest.approx([0.3, 0.4])
