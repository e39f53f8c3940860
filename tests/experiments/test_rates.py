"""Every contestant at a small size, and verdicts against hand arithmetic."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.tiny_task import tiny_task
from torch import nn
from typer.testing import CliRunner

import lbdrop
from experiments.commands import reproduce_rates
from experiments.rates import figure, images, run, table, verdicts
from experiments.rates.contestants import RELEASING, Batches, build_network, chosen
from experiments.rates.record import CONTESTANTS, GRID, Contestant
from experiments.rates.tasks import SMALL, TASKS
from experiments.rates.tasks import chosen as chosen_tasks
from experiments.rival_rules.mask_prior import MaskPrior
from lbdrop import Objective
from lbdrop.dropout import learned_layers
from lbdrop.errors import DropoutError

pytestmark = pytest.mark.process

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


# --------------------------------------------------------------------------------------------------------- contestants


@pytest.mark.parametrize("name", CONTESTANTS)
def test_contestants_run_and_give_a_complete_record(name: str, small_data: Path) -> None:
    contestant = CONTESTANTS[name]
    follows = contestant.rule in RELEASING  # these measure for a while before they move rates
    epochs = 12 if follows else 3
    record = run.run(tiny_task(), contestant, 0, folder=small_data, epochs=epochs)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    for part in ("validation", "test"):
        assert set(record[part]) == {"deterministic", "masks"}
        assert set(record[part]["deterministic"]) == {"nll", "accuracy"}
    assert len(record["rates"]) == (0 if contestant.scheme is None else 2)
    moved = any(abs(layer["mean"] - contestant.rate) > 1e-4 for layer in record["rates"].values())
    assert moved == (not contestant.fixed)
    assert record["history"][-1]["epoch"] == epochs
    assert record["examples"]["train"] == (36 if contestant.retrained else 24)
    assert record["provenance"]["versions"]["torch"]
    if contestant.scheme is None:
        assert record["test"]["deterministic"] == record["test"]["masks"]


def test_seed_gives_all_contestants_the_same_weights_and_batches() -> None:
    task = tiny_task()
    data = task.data(Path(), 3)
    weights = []
    for name in ("none", "fixed-0.5", "concrete", "tuned-layer", "kl-unit"):
        torch.manual_seed(3)
        model = build_network(CONTESTANTS[name], task, data)
        weights.append(torch.cat([p.detach().flatten() for n, p in model.named_parameters() if "weight" in n]))
    assert all(torch.equal(weights[0], other) for other in weights[1:])


def test_rates_over_training_are_noted_at_no_more_than_twenty_points_beside_the_start() -> None:
    record = run.run(tiny_task(), CONTESTANTS["kl-layer"], 0, epochs=23)
    epochs = [point["epoch"] for point in record["history"]]
    assert epochs[0] == 0
    assert epochs[-1] == 23
    assert len(epochs) <= run.POINTS + 1


def test_training_yields_after_each_epoch_and_times_only_itself() -> None:
    training = run.Training(TASKS["digits"], CONTESTANTS["fixed-0.1"], 0, epochs=2)
    begin, waited = time.perf_counter(), 0.0
    for epoch in training:
        assert training.history[-1]["epoch"] == epoch
        since = time.perf_counter()
        time.sleep(0.2)
        waited += time.perf_counter() - since
    assert epoch == 2
    assert 0 < training.seconds["train"] <= time.perf_counter() - begin - waited


def test_prior_on_masks_holds_rates_at_one_half() -> None:
    model = lbdrop.convert(nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.1), nn.Linear(50, 2)), verbose=False)
    objective = Objective(model, MaskPrior())
    optimizer = torch.optim.Adam(lbdrop.parameter_groups(model, 0.1, lr=1e-3))
    x, y = torch.randn(16, 3), torch.randint(0, 2, (16,))
    for _ in range(100):
        optimizer.zero_grad()
        objective(lambda m: F.cross_entropy(m(x), y, reduction="none")).backward()
        optimizer.step()
    assert learned_layers(model)["1"].p == pytest.approx(0.5, abs=0.03)


def test_contestants_with_starts_run_on_the_tasks_that_compare_them() -> None:
    everyone = {each.name for each in chosen("all", TASKS["digits"])}
    assert everyone == {
        name for name, each in CONTESTANTS.items() if not each.retrained and not name.startswith("tuned-layer-")
    }
    assert everyone - {each.name for each in chosen("all", TASKS["uci-yacht"])} == {
        f"balanced-layer-{start}" for start in (0.05, 0.3, 0.7)
    }
    assert len(chosen("grid,tuned-model", TASKS["digits"])) == len(GRID) + 2
    rules = [each.name for each in chosen("rules", TASKS["digits"])]
    assert rules == [
        *(f"{rule}-{per}" for rule in ("loss", "kl", "prior", "one-step") for per in ("layer", "unit")),
        "kl-layer-arm",
    ]
    with pytest.raises(DropoutError, match="contestant: want all, grid, rules, retrained or among none.*got 'magic'"):
        chosen("magic", TASKS["digits"])
    assert [task.name for task in chosen_tasks("all-small")] == list(SMALL)


def test_batches_are_complete_and_in_a_new_order() -> None:
    examples = torch.arange(10.0)[:, None], torch.arange(10)
    batches = Batches(examples, 4, torch.Generator().manual_seed(0))
    first, second = list(batches), list(batches)
    assert [len(x) for x, _ in first] == [4, 4]
    assert not torch.equal(first[0][1], second[0][1])
    assert len(list(Batches(examples, 64, torch.Generator()))) == 1


# ------------------------------------------------------------------------------------------------------- table, resume


def test_verdicts_equal_a_paired_t_test_by_hand() -> None:
    # Differences −1, −2, −3: mean −2, standard error 1/√3, t = −2√3 with 2 degrees of freedom, p = 1 − t/√(2 + t²) = .0742.
    found = verdicts.paired([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert found["p"] == pytest.approx(1 - math.sqrt(12 / 14))
    assert found["verdict"] == "level"
    assert found["difference"] == -2.0
    # −1, −1.1, −1.2: t = −1.1·√3/.1 = −19.05, p = .00274.
    found = verdicts.paired([1.0, 1.0, 1.0], [2.0, 2.1, 2.2])
    assert found["p"] == pytest.approx(1 - math.sqrt(363 / 365))
    assert found["verdict"] == "better"
    assert verdicts.paired([2.0, 2.1, 2.2], [1.0, 1.0, 1.0])["verdict"] == "worse"
    assert verdicts.paired([1.0, 1.0], [2.0, 2.1])["verdict"] == "too few seeds"
    assert verdicts.paired([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])["verdict"] == "level"


def made_record(contestant: Contestant, seed: int, validation: float, test: float, rate: float = 0.2) -> dict[str, Any]:
    def both(nll: float) -> dict[str, Any]:
        return {how: {"nll": nll, "accuracy": 0.5} for how in ("deterministic", "masks")}

    layers = {} if contestant.scheme is None else {"0": {"mean": rate, "min": rate, "max": rate}}
    return {
        "task": "tiny", "contestant": contestant.name, "label": contestant.label, "seed": seed,
        "settings": run.settings(tiny_task(), contestant), "validation": both(validation), "test": both(test),
        "rates": layers, "history": [{"epoch": e, "rates": {k: v["mean"] for k, v in layers.items()}} for e in (0, 1)],
        "seconds": {"train": 3.0, "cpu": 4.0 if contestant.rule in RELEASING else 2.0},
        "provenance": {"hardware": "a processor, 1 threads"},
    }  # fmt: skip


def made_records() -> list[dict[str, Any]]:
    """Validation likes .3 on seed 0 and .5 on the others; the test likes .1, which nobody can know."""
    found = []
    for seed in range(3):
        for name in table.FIXED:
            validation = 1.0 - 0.5 * (name == ("fixed-0.3" if seed == 0 else "fixed-0.5"))
            found.append(made_record(CONTESTANTS[name], seed, validation, 0.3 if name == "fixed-0.1" else 0.5))
        found.append(made_record(CONTESTANTS["balanced-layer"], seed, 0.4, 0.4 + 0.01 * seed))
        found.append(made_record(CONTESTANTS["loss-layer"], seed, 0.4, 0.9 + 0.01 * seed, rate=0.01))
    return found


def test_grid_search_is_one_per_seed_and_the_oracle_uses_the_test() -> None:
    found = table.summary(made_records())
    assert found["chosen"]["deterministic"]["rates"] == [0.3, 0.5, 0.5]
    assert found["chosen"]["masks"]["nll"] == pytest.approx(0.5)
    assert found["oracle"]["deterministic"]["contestant"] == "fixed-0.1"
    tuned, loss = (found["contestants"][name] for name in ("balanced-layer", "loss-layer"))
    assert tuned["against_grid"]["deterministic"]["verdict"] == "better"
    assert tuned["cost_in_fixed_runs"] == 2.0
    assert not tuned["collapsed"]
    assert loss["against_grid"]["masks"]["verdict"] == "worse"
    assert loss["collapsed"]
    assert found["cost"]["grid_seconds"] == 14.0


def test_runs_of_an_earlier_rule_are_marked() -> None:
    records = made_records()
    assert not any(row["earlier_rule"] for row in table.summary(records)["contestants"].values())
    tuned = next(record for record in records if record["contestant"] == "balanced-layer")
    tuned["settings"]["kappa"] /= 2
    assert [n for n, row in table.summary(records)["contestants"].items() if row["earlier_rule"]] == ["balanced-layer"]
    assert not run.kept([tuned], tiny_task(), CONTESTANTS["balanced-layer"], tuned["seed"])  # so that it is made again
    assert "balanced noise, per layer (by an earlier rule) |" in "\n".join(
        table._lines({"tiny": table.summary(records)})
    )


def test_grid_choice_is_retrained_and_rules_that_release_data_are_compared_with_it() -> None:
    records = made_records()
    assert [who.name for who in table.retraining(records, 0)] == ["fixed-0.3-retrained"]
    assert table.retraining([r for r in records if r["contestant"] != "fixed-0.7"], 0) == []
    assert table.summary(records)["retrained"] == {}
    for seed in range(3):
        (who,) = table.retraining(records, seed)
        records.append(made_record(who, seed, 0.0, 0.35 + 0.001 * seed))
    found = table.summary(records)
    assert found["retrained"]["masks"]["nll"] == pytest.approx(0.351)
    assert found["retrained"]["masks"]["balanced-layer"]["verdict"] == "worse"  # .40 .41 .42
    assert found["contestants"]["balanced-layer"]["against_grid"]["masks"]["verdict"] == "better"
    assert not [name for name in found["contestants"] if name.endswith("retrained")]


def test_gpu_times_are_compared_with_gpu_times_only() -> None:
    records = [r | {"provenance": {"hardware": "NVIDIA H200"}} for r in made_records()]
    assert table.summary(records)["contestants"]["balanced-layer"]["cost_in_fixed_runs"] == 1.0  # by the clock
    mixed = [r if r["contestant"] == "balanced-layer" else old for r, old in zip(records, made_records(), strict=True)]
    assert table.summary(mixed)["contestants"]["balanced-layer"]["cost_in_fixed_runs"] is None
    grid = [r if r["contestant"] == "none" else old for r, old in zip(records, made_records(), strict=True)]
    assert table.summary(grid)["cost"]["grid_seconds"] is None


def test_incomplete_grid_gives_no_verdict() -> None:
    records = [record for record in made_records() if record["contestant"] != "fixed-0.7"]
    found = table.summary(records)
    assert found["seeds"] == []
    assert "against_grid" not in found["contestants"]["balanced-layer"]


def test_starts_are_compared_layer_by_layer() -> None:
    rates = {"balanced-layer-0.05": 0.1, "balanced-layer-0.3": 0.2, "balanced-layer-0.7": 0.35}
    records = [made_record(CONTESTANTS[name], 0, 1.0, 1.0, rate) for name, rate in rates.items()]
    found = table.summary(records)["starts"]
    assert found["tuned"] is None
    starts = found["balanced"]
    assert starts["apart_per_layer"]["0"] == pytest.approx(0.25)
    assert starts["apart_mean_rate"] == pytest.approx(0.25)


def test_older_record_of_the_same_run_is_replaced_and_other_settings_run_again(tmp_path: Path) -> None:
    task, path, who = tiny_task(), tmp_path / "tiny.json", CONTESTANTS["none"]
    for nll in (1.0, 2.0):
        run.write(path, task, made_record(who, 0, nll, nll))
    run.write(path, task, made_record(CONTESTANTS["fixed-0.3"], 0, 1.0, 1.0))
    records = run.read(path)
    assert [record["test"]["masks"]["nll"] for record in records] == [1.0, 2.0]
    assert run.kept(records, task, who, 0)
    assert not run.kept(records, task, who, 1)
    assert not run.kept(records, replace(task, epochs=9), who, 0)
    path.write_text("[1]")
    with pytest.raises(DropoutError, match="want the records of a task"):
        run.read(path)


@pytest.fixture
def app() -> Any:
    import typer

    made = typer.Typer()
    made.command()(reproduce_rates.rates)
    return made


def test_command_runs_writes_and_skips_what_is_there(app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "digits", replace(tiny_task(), name="digits"))
    call = ["--task", "digits", "--seeds", "1", "--contestant", "grid,balanced-layer,retrained", "--out", str(tmp_path)]
    call += ["--workers", "1"]  # here, where the task is the tiny one
    first = CliRunner().invoke(app, call)
    assert first.exit_code == 0, first.output
    assert "digits, balanced noise, per layer, seed 0: test nll" in first.output
    assert (tmp_path / "rates.png").read_bytes().startswith(PNG_SIGNATURE)
    assert ", retrained, seed 0: test nll" in first.output
    assert "| balanced noise, per layer | 1 |" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "summary.json").read_text())["digits"]["seeds"] == [0]
    before = (tmp_path / "digits.json").read_text()

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a run that is there was run again")

    monkeypatch.setattr(run, "run", never)
    assert CliRunner().invoke(app, call).exit_code == 0
    assert (tmp_path / "digits.json").read_text() == before


def test_command_ends_in_one_line_where_data_or_names_are_missing(
    app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "PLACES", images.PLACES[:1])
    for call, words in (
        (["--task", "fashion-1000-mlp"], "Fashion-MNIST: want"),
        (["--task", "nothing"], "task: want all-small or among digits"),
    ):
        result = CliRunner().invoke(app, [*call, "--data", str(tmp_path / "none"), "--out", str(tmp_path)])
        assert result.exit_code == 1
        assert result.output.startswith(words)
        assert len(result.output.strip().splitlines()) == 1


def test_figure_needs_balanced_rates(tmp_path: Path) -> None:
    assert figure.save({"tiny": [made_record(CONTESTANTS["none"], 0, 1.0, 1.0)]}, tmp_path / "rates.png") is None
