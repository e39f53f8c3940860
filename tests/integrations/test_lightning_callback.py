"""Lightning: a callback gives a module learned rates, and everything else about training stays as it was."""

import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import pytorch_lightning
import torch
import torch.nn.functional as F
from helpers import texts
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import lbdrop
from lbdrop.integrations.lightning import LearnedRates, _logs_of_all_masks
from lbdrop.rules.balanced import CONSTANTS

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*have no `val_dataloader`"),
]


class Reader(nn.Module):
    """Which module is a line from? The mean of its pieces, and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(texts.VOCABULARY, 32, padding_idx=0)
        self.hidden, self.drop, self.head = nn.Linear(32, 64), nn.Dropout(0.3), nn.Linear(64, len(texts.MODULES))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.hidden(self.embed(ids)))))


class Steps:
    """What its author wrote, but for ``reduction="none"``."""

    def prepare(self, kind: str = "losses", schedule: str = "none") -> Any:
        torch.manual_seed(0)
        self.net, self.kind, self.schedule = Reader(), kind, schedule
        self.seen: list[Any] = []
        return self

    def forward(self, ids: Tensor) -> Tensor:
        return self.net(ids)

    def training_step(self: Any, batch: dict[str, Tensor], index: int) -> Any:
        losses = F.cross_entropy(self.net(batch["input_ids"]), batch["labels"], reduction="none")
        self.log("train_loss", losses.mean())
        return {"losses": losses, "mean": losses.mean(), "dict": {"loss": losses, "other": 1}}[self.kind]

    def validation_step(self: Any, batch: dict[str, Tensor], index: int) -> None:
        self.log("loss", F.cross_entropy(self(batch["input_ids"]), batch["labels"]))

    def on_train_epoch_start(self: Any) -> None:
        torch.manual_seed(self.current_epoch)

    def on_train_batch_end(self: Any, outputs: Any, batch: Any, index: int) -> None:
        self.seen.append(outputs["loss"].detach())

    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.schedule == "none":
            return optimizer
        steps: Any = self.trainer.estimated_stepping_batches
        schedulers = {
            "linear": lambda: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps),
            "one cycle": lambda: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps),
        }
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedulers[self.schedule](), "interval": "step"},
        }


class Module(Steps, L.LightningModule):
    pass


class OlderModule(Steps, pytorch_lightning.LightningModule):
    pass


def loader(start: int = 0, stop: int = 120, batch: int = 36) -> DataLoader[Any]:
    rows: Any = texts.rows(texts.which_module(start, stop))
    mixed: Any = [row for i in range(stop - start) for row in rows[i :: stop - start]]
    return DataLoader(mixed, batch_size=batch, generator=torch.Generator())  # its own: masks draw from the global one


def small_loader(start: int = 0, stop: int = 40) -> DataLoader[Any]:
    return loader(start, stop, batch=12)


def trainer(folder: Path, callback: Any, package: Any = L, **settings: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
    plain = {"max_epochs": 2, "enable_checkpointing": False, "log_every_n_steps": 1}
    return package.Trainer(default_root_dir=folder, callbacks=[callback], **quiet | plain | settings)


@pytest.mark.parametrize(("package", "module"), [(L, Module), (pytorch_lightning, OlderModule)])
def test_module_learns_its_rates_and_its_task(package: Any, module: Any, tmp_path: Path) -> None:
    module, callback = module().prepare(), LearnedRates(rate_lr=3e-2)
    fitted = trainer(tmp_path, callback, package, max_epochs=8)
    fitted.fit(module, loader(), loader(120, 150))
    assert abs(module.net.drop.p - 0.3) > 0.02
    assert torch.stack(module.seen[-5:]).mean() < 0.5 < torch.stack(module.seen[:5]).mean()
    assert fitted.callback_metrics["loss"] < 0.9  # nats; log 3 = 1.10 is a guess
    assert "training_step" not in vars(module)
    assert fitted.validate(module, loader(120, 150), verbose=False)[0]["loss"] < 0.9
    test = texts.which_module(120, 150)
    prediction = lbdrop.predict(module, test["input_ids"])
    assert (prediction.mean.argmax(1) == test["labels"]).float().mean() > 0.6
    assert prediction.mutual_information is not None
    assert prediction.mutual_information.min() > 0


def test_rates_are_in_the_callback_metrics_without_a_logger_and_their_start_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, callback = Module().prepare(), LearnedRates(held_out=small_loader(60, 80))
    fitted = trainer(tmp_path, callback, max_epochs=4, log_every_n_steps=1000)
    fitted.fit(module, small_loader())
    assert "rates follow held-out data, from 0.00 until there is a gap" in capsys.readouterr().out
    assert float(fitted.callback_metrics["rates/net.drop"]) == pytest.approx(module.net.drop.p)
    assert {"loss", "held_out_loss"} <= {name.rpartition("/")[2] for name in fitted.callback_metrics}


@pytest.mark.parametrize("kind", ["losses", "dict"])
def test_logged_values_are_means_over_the_masks(kind: str, tmp_path: Path) -> None:
    module = Module().prepare(kind)
    callback = LearnedRates(rule=lambda model: lbdrop.Bound(model, examples=120, weight=0.0))
    fitted = trainer(tmp_path, callback, max_epochs=1)
    fitted.fit(module, small_loader())
    assert float(fitted.callback_metrics["train_loss"]) == pytest.approx(float(module.seen[-1]), rel=1e-5)


def test_values_logged_in_eval_mode_are_left_out() -> None:
    class Logs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logged: list[tuple[str, float]] = []

        def log(self, name: str, value: Tensor) -> None:
            self.logged.append((name, float(value)))

    module = Logs()
    with _logs_of_all_masks(module):
        module.log("train_loss", torch.tensor(1.0))
        module.eval()
        module.log("train_loss", torch.tensor(9.0))
        module.train()
    assert module.logged == [("train_loss", 1.0)]


def test_mean_loss_is_refused_with_its_repair(tmp_path: Path) -> None:
    module = Module().prepare("mean")
    with pytest.raises(lbdrop.DropoutError, match="want one loss per example.*use reduction='none'"):
        trainer(tmp_path, LearnedRates()).fit(module, small_loader())
    assert "training_step" not in vars(module)
    assert "log" not in vars(module)


def test_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    def run(epochs: int, path: str | None) -> Any:
        fitted = trainer(tmp_path, LearnedRates(rate_lr=3e-2), max_epochs=epochs)
        module = Module().prepare(schedule="none")
        fitted.fit(module, small_loader(), ckpt_path=path)
        return fitted, module

    whole = run(3, None)[1]
    first, _ = run(1, None)
    first.save_checkpoint(tmp_path / "one.ckpt")
    resumed = run(3, str(tmp_path / "one.ckpt"))[1]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_rates_step_once_for_each_step_of_the_optimiser(tmp_path: Path) -> None:
    callback = LearnedRates()
    fitted = trainer(tmp_path, callback, max_epochs=1, accumulate_grad_batches=2)
    fitted.fit(Module().prepare(), small_loader())
    assert callback.optimizer is not None
    (state,) = callback.optimizer.state.values()
    assert int(state["step"]) == fitted.global_step == 5  # of 10 batches


def test_clipping_and_decay_of_weights_leave_rates_alone(tmp_path: Path) -> None:
    module = Module().prepare()
    fitted = trainer(tmp_path, LearnedRates(rate_lr=3e-2), gradient_clip_val=1e-9)
    fitted.fit(module, small_loader())
    (optimizer,) = fitted.optimizers
    assert not any(p is module.net.drop.logit for group in optimizer.param_groups for p in group["params"])
    assert abs(module.net.drop.p - 0.3) > 0.02


@pytest.mark.parametrize(("schedule", "at_most"), [("none", 1.0), ("linear", 0.1), ("one cycle", 0.1)])
def test_learning_rate_of_rates_falls_with_a_schedule_and_never_exceeds_its_own(
    schedule: str, at_most: float, tmp_path: Path
) -> None:
    callback, rates = LearnedRates(rate_lr=2e-2), []

    class Watch(L.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            assert callback.optimizer is not None
            rates.append(callback.optimizer.param_groups[0]["lr"])

    fitted = trainer(tmp_path, callback)
    fitted.callbacks.append(Watch())
    fitted.fit(Module().prepare(schedule=schedule), small_loader())
    assert max(rates) == pytest.approx(2e-2)
    assert rates[-1] <= at_most * 2e-2 + 1e-9


def test_rates_stay_in_full_precision(tmp_path: Path) -> None:
    for precision in ("bf16-mixed", "bf16-true"):
        module = Module().prepare()
        trainer(tmp_path, LearnedRates(rate_lr=3e-2), precision=precision).fit(module, small_loader())
        assert module.net.drop.logit.dtype == torch.float32
        assert abs(module.net.drop.p - 0.3) > 0.02


def test_rates_and_their_histograms_are_in_tensorboard(tmp_path: Path) -> None:
    module = Module().prepare()
    lbdrop.convert(module, per="unit", example=texts.which_module(0, 2)["input_ids"], verbose=False)
    logger = L.pytorch.loggers.TensorBoardLogger(tmp_path)
    trainer(tmp_path, LearnedRates(), logger=logger, max_epochs=1).fit(module, small_loader())
    events = EventAccumulator(logger.log_dir).Reload()
    curve = events.Scalars("rates/net.drop")
    assert curve[-1].value == pytest.approx(module.net.drop.p, abs=1e-6)
    assert curve[0].value != curve[-1].value
    assert events.Histograms("rates/net.drop")[-1].histogram_value.num == 64
    assert events.Histograms("rates/all")[-1].histogram_value.max == pytest.approx(float(module.net.drop.rate.max()))


@pytest.mark.parametrize(("examples", "data"), [(None, "kept out"), (120, "released")])
def test_resumed_run_with_held_out_data_ends_where_an_uninterrupted_one_does(
    examples: int | None, data: str, tmp_path: Path
) -> None:
    class Keep(L.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch}.ckpt")

    def run(path: Path | None, *callbacks: Any) -> tuple[Any, Any]:
        callback = LearnedRates(held_out=small_loader(120, 130), examples=examples)
        fitted, module = trainer(tmp_path, callback, max_epochs=6), Module().prepare()
        fitted.callbacks += callbacks
        fitted.fit(module, small_loader(), ckpt_path=path)
        assert callback.objective is not None
        return module, callback.objective.rule

    whole, rule = run(None, Keep())
    assert data in repr(rule)
    assert rule.phase == "frozen"
    assert rule.frozen_after == rule.step == 24  # of 60 steps
    rate = whole.net.drop.p
    assert rate == 0 or abs(rate - CONSTANTS.start) > 1e-3  # it has moved from where the rule starts
    # In the middle of measuring, and when rates are frozen.
    for epoch, step in ((1, 20), (3, 24)):
        saved = torch.load(tmp_path / f"{epoch}.ckpt", weights_only=True)["callbacks"]["LearnedRates"]["objective"]
        assert (saved["rule"], saved["state"]["step"]) == ("Balanced", step)
        resumed, again = run(tmp_path / f"{epoch}.ckpt")
        assert len(resumed.seen) == 10 * (5 - epoch)
        assert again.phase == "frozen"
        assert torch.equal(again.measurements.sums, rule.measurements.sums)
        for name, value in whole.state_dict().items():
            assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({"max_epochs": 3}, 30),
        ({"max_epochs": 3, "accumulate_grad_batches": 4}, 30),
        ({"max_epochs": 9, "max_steps": 5, "accumulate_grad_batches": 4}, 18),
        ({"max_epochs": -1, "max_steps": 5}, 5),
    ],
)
def test_rule_counts_the_calls_of_training_step(settings: dict[str, int], calls: int, tmp_path: Path) -> None:
    module, callback = Module().prepare(), LearnedRates(held_out=small_loader(120, 130))
    trainer(tmp_path, callback, **settings).fit(module, small_loader())
    assert callback.objective is not None
    rule = callback.objective.rule
    assert isinstance(rule, lbdrop.Balanced)
    assert len(module.seen) == calls
    assert rule.frozen_after == math.ceil(0.4 * calls)


def test_held_out_data_in_a_run_without_an_end_are_refused_with_the_next_step(tmp_path: Path) -> None:
    callback = LearnedRates(held_out=small_loader(120, 130))
    with pytest.raises(lbdrop.DropoutError, match=r"want a run of known length.*Trainer\(max_steps=\.\.\.\)"):
        trainer(tmp_path, callback, max_epochs=-1).fit(Module().prepare(), small_loader())


def test_learning_rate_of_rates_that_a_rule_moves_is_refused(tmp_path: Path) -> None:
    callback = LearnedRates(rate_lr=0.1, held_out=small_loader(120, 130))
    with pytest.raises(
        lbdrop.DropoutError, match=r"rate_lr: want it where rates learn by gradients, got 0\.1.*leave it out"
    ):
        trainer(tmp_path, callback).fit(Module().prepare(), small_loader())


def test_module_that_steps_its_optimisers_itself_is_refused(tmp_path: Path) -> None:
    module = Module().prepare()
    module.automatic_optimization = False
    with pytest.raises(lbdrop.DropoutError, match="want automatic optimisation.*lbdrop.Objective"):
        trainer(tmp_path, LearnedRates()).fit(module, small_loader())


def test_training_set_of_unknown_size_is_refused_without_examples(tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from texts.rows(texts.which_module(0, 12))

    with pytest.raises(lbdrop.DropoutError, match=r"LearnedRates\(examples=50_000\)"):
        trainer(tmp_path, LearnedRates()).fit(Module().prepare(), DataLoader(Stream(), batch_size=6))
    module = Module().prepare()
    trainer(tmp_path, LearnedRates(examples=36)).fit(module, DataLoader(Stream(), batch_size=6))
    assert module.net.drop.p != pytest.approx(0.3, abs=1e-6)


def test_dropout_that_cannot_be_reached_is_named_in_the_first_step(tmp_path: Path) -> None:
    class Hidden(Module):
        def training_step(self, batch: Any, index: int) -> Any:
            return F.dropout(self.net(batch["input_ids"]), 0.5).sum(1)

    with pytest.raises(lbdrop.DropoutError, match=r"Hidden drops out inside a function: \['dropout\(p=0.5\)'\]"):
        trainer(tmp_path, LearnedRates()).fit(Hidden().prepare(), small_loader())
