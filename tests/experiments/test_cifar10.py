"""The whole command on a few generated images, report included; and that a run can be taken up again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from experiments.cifar10 import recipes
from experiments.networks import vgg
from experiments.vision.cifar10 import Images
from experiments.vision.train import Schedule
from lbdrop.cli import app

pytestmark = pytest.mark.process


def images(train: int = 60, test: int = 30) -> Images:
    """Ten classes, each a colour with noise on it."""
    generator = torch.Generator().manual_seed(0)
    colours = torch.randint(0, 256, (10, 3, 1, 1), generator=generator)

    def some(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(count) % 10
        noise = torch.randint(-40, 40, (count, 3, 32, 32), generator=generator)
        return (colours[labels] + noise).clamp(0, 255).to(torch.uint8), labels

    return Images(*some(train), *some(test))


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """VGG with a few channels: what is tested is around it."""
    monkeypatch.setattr(vgg, "CHANNELS", (4, 4, 8, 8, 8))


SMALL = recipes.Settings(depth=11, width=32, pool=1, size=32, batch=10, epochs=1, validation=20, samples=3)
# Long enough for a rate to move before it is frozen.
TUNED = replace(SMALL, method="lbd-tuned-layer", epochs=5, look_every=1)


@pytest.mark.parametrize("method", recipes.METHODS)
def test_methods_run_and_record_everything(method: str) -> None:
    data = images()
    foreign = torch.randint(0, 256, (12, 3, 32, 32), dtype=torch.uint8)
    shifts = recipes.corruptions(data.test[:30]) if method == "lbd-unit" else None
    settings = replace(TUNED if recipes.METHODS[method].rule == "self-tuning" else SMALL, method=method)
    record = recipes.run(settings, data, foreign=foreign, shifts=shifts, progress=False)
    json.dumps(record, allow_nan=False)
    assert record["label"] == recipes.METHODS[method].label
    assert {"accuracy", "nll", "brier", "ece", "aurc", "pavpu_mean_entropy", "pavpu_sweep"} <= set(record["test"])
    assert len(record["pavpu_curve"]["pavpu"]) == len(record["pavpu_curve"]["t"]) == 11
    assert [sum(layer["counts"]) for layer in record["rates"].values()] == (
        [32, 32] if recipes.METHODS[method].per == "unit" else [1, 1]
    )
    assert len(record["certainty"]["least"]) == len(record["certainty"]["most"]) == 12
    assert 0 <= record["ood"]["entropy"] <= 1
    learned = recipes.METHODS[method].learns
    moved = any(abs(layer["mean"] - SMALL.rate) > 1e-6 for layer in record["rates"].values())
    assert moved == learned


def test_one_rate_is_one_parameter_and_the_grid_is_whole() -> None:
    network = recipes.build(replace(SMALL, method="lbd-model"), None)
    names = [name for name, _ in network.named_parameters() if "logit" in name]
    assert names == ["classifier.2.logit"]
    runs = list(recipes.contestants(SMALL, 2))
    assert len({run.name for run in runs}) == len(runs) == 2 * (10 + 5 + 5 + 1)
    assert sorted({run.rate for run in runs if run.method == "mc"}) == list(recipes.GRID)


def test_paper_recipe_is_the_published_one() -> None:
    paper = replace(recipes.Settings(recipe="paper"), **recipes.RECIPES["paper"])
    assert (paper.size, paper.batch, paper.epochs, paper.lr, paper.augment, paper.samples, paper.rate) == (224, 64, 300, 1e-5, False, 10, 0.5)  # fmt: skip


def test_schedule_rises_and_falls_to_zero() -> None:
    schedule = Schedule(2, 1.0, 1.0, warmup=0.1)
    factors = [schedule.factor(step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9] == max(factors) == 1
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[-1] < 0.001
    assert Schedule(2, 1.0, 1.0, constant=True).factor(7, 9) == 1


@pytest.mark.parametrize("settings", [replace(SMALL, epochs=2), TUNED], ids=lambda settings: settings.method)
def test_resumed_run_equals_an_uninterrupted_one(settings: recipes.Settings, tmp_path: Path) -> None:
    data = images()
    whole = recipes.run(settings, data, progress=False)
    # Stop after one epoch: the schedule is that of all.
    from experiments.vision import train

    class Stopped(Exception):
        pass

    real = train._History.on_train_epoch_start

    def stop(self, trainer, module):
        if trainer.current_epoch == 1:
            raise Stopped
        real(self, trainer, module)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train._History, "on_train_epoch_start", stop)
        with pytest.raises(Stopped):
            recipes.run(settings, data, checkpoints=tmp_path, progress=False)
    assert (tmp_path / "last.ckpt").exists()
    again = recipes.run(settings, data, checkpoints=tmp_path, progress=False)
    assert [e["epoch"] for e in again["history"]] == list(range(settings.epochs))
    assert [e["loss"] for e in again["history"]] == [e["loss"] for e in whole["history"]]
    assert (again["test"], again["rates"]) == (whole["test"], whole["rates"])


def test_command_goes_from_files_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import experiments.vision.cifar10 as reader

    monkeypatch.setattr(reader, "load", lambda path: images())
    small = {"depth": 11, "width": 16, "pool": 1, "size": 32, "batch": 10, "epochs": 1, "validation": 20, "samples": 2}
    monkeypatch.setitem(recipes.RECIPES, "fast", small)
    call = [
        "reproduce",
        "cifar10",
        "--method",
        "all",
        "--seeds",
        "1",
        "--no-corruptions",
        "--out",
        str(tmp_path / "runs"),
    ]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "runs").glob("*.json"))) == 21
    again = CliRunner().invoke(app, call)
    assert again.output.count("there already") == 21
    report = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report")])
    assert report.exit_code == 0, report.output
    assert "LBD, a rate per unit" in (tmp_path / "report" / "table.md").read_text()
    wrong = CliRunner().invoke(app, ["reproduce", "cifar10", "--method", "magic", "--out", str(tmp_path)])
    assert wrong.exit_code == 1
    assert "want one of lbd-unit" in wrong.output
