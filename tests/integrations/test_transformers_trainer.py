"""The Hugging Face Trainer with learned rates: real text, its own losses, its own files."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import texts
from helpers.small_trainers import arguments, bart, bert, gpt2, language, llama, losses_of, trained
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from transformers import (
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    Trainer,
)
from transformers.trainer_callback import PrinterCallback

import lbdrop
from lbdrop.dropout import learned_layers, noise_layers
from lbdrop.integrations.rates import FILE, load_rates, save_rates
from lbdrop.integrations.transformers import LearnedRatesTrainer, example_losses, labelled
from lbdrop.rules.balanced import CONSTANTS

pytestmark = pytest.mark.process


# ---------------------------------------------------------------------------------------------------------- real tasks


def test_bert_learns_its_rates_its_task_and_to_doubt_foreign_text(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, train, test = bert(), texts.which_module(0, 250), texts.which_module(250, 280)
    trainer = trained(model, tmp_path, train, rate_lr=3e-2, num_train_epochs=3, seed=1, estimator="double-cv-4")
    assert losses_of(trainer)[-1] < 0.6  # nats; log 3 = 1.10 is a guess
    assert max(abs(layer.p - 0.1) for layer in learned_layers(model).values()) > 0.03
    known = lbdrop.predict(model, {key: test[key] for key in ("input_ids", "attention_mask")})
    unknown = lbdrop.predict(model, texts.foreign())
    assert (known.mean.argmax(1) == test["labels"]).float().mean() > 0.65
    assert known.entropy is not None
    assert unknown.entropy is not None
    assert texts.auroc(known.entropy, unknown.entropy) > 0.6


def test_causal_model_learns_to_continue_and_is_unsure_token_by_token(tmp_path: Path) -> None:
    model, test, strange = gpt2(), language(250, 280), texts.foreign()
    settings = {"rate_lr": 3e-2, "num_train_epochs": 3, "learning_rate": 3e-2, "estimator": "double-cv-4"}
    trainer = trained(model, tmp_path, language(0, 250), **settings)
    assert losses_of(trainer)[-1] < 4.9  # nats a token; log 512 = 6.24 is a guess
    assert max(abs(layer.p - 0.1) for layer in learned_layers(model).values()) > 0.015

    def unsure(batch: dict[str, Tensor]) -> Tensor:
        visible = batch["attention_mask"]
        inputs = {"input_ids": batch["input_ids"], "attention_mask": visible}
        entropy = lbdrop.predict(model, inputs, samples=5, class_dim=-1, keep_samples=False).entropy
        assert entropy is not None
        assert entropy.shape == visible.shape
        return (entropy * visible).sum(1) / visible.sum(1)

    assert texts.auroc(unsure(test), unsure(strange)) > 0.7


# ------------------------------------------------------------------------------------------------------------- losses


def tokens_of(labels: int) -> dict[str, Tensor]:
    batch = texts.which_module(0, 4)
    marked = torch.randint(0, labels, batch["input_ids"].shape).masked_fill(batch["attention_mask"] == 0, -100)
    return batch | {"labels": marked}


def with_labels(labels: Tensor) -> dict[str, Tensor]:
    return texts.which_module(0, 4) | {"labels": labels}


TASKS = {
    "sequences": (bert, lambda: texts.which_module(0, 4)),
    "several labels": (
        lambda: bert(problem_type="multi_label_classification"),
        lambda: with_labels(torch.rand(12, 3).round()),
    ),
    "regression": (lambda: bert(labels=1), lambda: with_labels(torch.randn(12))),
    "tokens": (lambda: bert(BertForTokenClassification), lambda: tokens_of(3)),
    "masked language model": (lambda: bert(BertForMaskedLM), lambda: tokens_of(texts.VOCABULARY)),
    "GPT-2": (gpt2, lambda: language(0, 4)),
    "Llama": (llama, lambda: language(0, 4)),
    "BART": (bart, lambda: tokens_of(texts.VOCABULARY)),
}


@pytest.mark.parametrize("task", TASKS)
def test_example_losses_summed_over_labels_are_the_loss_of_the_model(task: str) -> None:
    make, batch_of = TASKS[task]
    model, batch = make().eval(), batch_of()
    with torch.no_grad():
        losses, own = example_losses(model, batch), model(**batch).loss
    assert losses.shape == (12,)
    assert float(losses.sum() / labelled(model, batch)) == pytest.approx(float(own), rel=1e-5)


@pytest.mark.parametrize(("make", "parts"), [(bert, 1), (gpt2, 1), (gpt2, 3)])
def test_steps_change_weights_as_the_plain_trainer_does(make: Any, parts: int, tmp_path: Path) -> None:
    # At a rate of nothing every mask is open, so that only the scaling of the losses is left to differ. BERT's own loss takes
    # no notice of accumulation, and comes out three times too large in the plain trainer.
    plain, data = make(), texts.which_module(0, 16) if make is bert else language(0, 16)
    start, ours = copy.deepcopy(plain), lbdrop.convert(copy.deepcopy(plain), scheme="mc", rate=1e-9, verbose=False)
    for module in plain.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    settings = {"gradient_accumulation_steps": parts, "per_device_train_batch_size": 24 // parts, "optim": "sgd",
                "warmup_steps": 0, "max_grad_norm": 0.0, "weight_decay": 0.1}  # fmt: skip
    other = Trainer(plain, arguments(tmp_path, **settings), train_dataset=texts.rows(data))  # pyright: ignore
    other.remove_callback(PrinterCallback)
    other.train()
    trained(ours, tmp_path, data, **settings, rule=lambda model: lbdrop.Bound(model, examples=48, weight=0.0))
    want, began = dict(plain.named_parameters()), dict(start.named_parameters())
    for name, value in ours.named_parameters():
        torch.testing.assert_close(value, want[name], rtol=1e-4, atol=2e-6)
    assert max(float((want[name] - began[name]).detach().abs().max()) for name in want) > 1e-4


def test_loss_function_has_to_return_one_loss_per_example(tmp_path: Path) -> None:
    def mean(outputs: Any, labels: Tensor, num_items_in_batch: Any) -> Tensor:
        return F.cross_entropy(outputs.logits, labels)

    def each(outputs: Any, labels: Tensor, num_items_in_batch: Any) -> Tensor:
        return F.cross_entropy(outputs.logits, labels, reduction="none")

    data = texts.which_module(0, 20)
    with pytest.raises(lbdrop.DropoutError, match="want one loss per example.*use reduction='none'"):
        trained(bert(), tmp_path, data, compute_loss_func=mean)
    model = bert()
    trained(model, tmp_path, data, compute_loss_func=each)
    assert all(layer.p != pytest.approx(0.1, abs=1e-6) for layer in learned_layers(model).values())


def test_model_or_input_without_a_loss_is_refused_with_a_next_step(tmp_path: Path) -> None:
    with pytest.raises(lbdrop.DropoutError, match="got BertForQuestionAnswering.*compute_loss_func"):
        trained(bert(BertForQuestionAnswering), tmp_path, texts.which_module(0, 4))
    with pytest.raises(lbdrop.DropoutError, match="want labels to learn from"):
        example_losses(bert(), texts.foreign(4))


# ------------------------------------------------------------------------------------------------- training as it is


def test_rates_are_a_group_of_their_own_without_decay(tmp_path: Path) -> None:
    model = bert()
    trainer = trained(model, tmp_path, texts.which_module(0, 20), rate_lr=2e-2, weight_decay=0.1, warmup_steps=0)
    logits = {id(layer.logit) for layer in noise_layers(model).values()}
    groups = trainer.optimizer.param_groups
    assert [all(id(p) in logits for p in group["params"]) for group in groups] == [False, False, True]
    assert not any(id(p) in logits for group in groups[:2] for p in group["params"])
    assert groups[2]["initial_lr"] == 2e-2
    assert groups[2]["weight_decay"] == 0.0


def test_learning_rate_of_rates_that_a_rule_moves_is_refused(tmp_path: Path) -> None:
    data, held_out = texts.which_module(0, 20), texts.rows(texts.which_module(250, 260))
    with pytest.raises(lbdrop.DropoutError, match=r"rate_lr: want it where rates learn by gradients, got 0\.1"):
        trained(bert(), tmp_path, data, held_out=held_out, rate_lr=0.1)


def test_optimiser_without_the_rates_is_refused(tmp_path: Path) -> None:
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(lbdrop.DropoutError, match="want one that has the rates.*parameter_groups"):
        trained(model, tmp_path, texts.which_module(0, 20), optimizers=(optimizer, None))


def test_resumed_run_with_held_out_data_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    data, held_out = texts.which_module(0, 20), texts.rows(texts.which_module(250, 260))
    settings: dict[str, Any] = {
        "held_out": held_out, "num_train_epochs": 10, "save_strategy": "steps", "save_steps": 12,
        "per_device_train_batch_size": 16, "per_device_eval_batch_size": 30,
    }  # fmt: skip
    start = bert()
    whole = trained(copy.deepcopy(start), tmp_path, data, **settings)
    rule = whole.objective.rule
    assert "kept out" in repr(rule)
    assert rule.phase == "frozen"
    assert rule.frozen_after == rule.step == rule.measurements.count == 16  # of 40 steps
    assert max(abs(layer.p - CONSTANTS.start) for layer in learned_layers(whole.model).values()) > 0.01
    assert not any(layer.logit.requires_grad for layer in learned_layers(whole.model).values())
    # In the middle of measuring, and when rates are frozen.
    for steps, phase in ((12, "measuring"), (24, "frozen")):
        checkpoint = tmp_path / f"checkpoint-{steps}"
        saved = torch.load(checkpoint / "learned_rates_state.pt", weights_only=True)
        assert (saved["rule"], saved["state"]["step"]) == ("Balanced", min(steps, 16))
        assert saved["state"]["frozen"] == (phase == "frozen")
        resumed = trained(copy.deepcopy(start), tmp_path / "again", data, resume=str(checkpoint), **settings)
        assert resumed.state.global_step == 40
        assert torch.equal(resumed.objective.rule.measurements.sums, rule.measurements.sums)
        for name, value in whole.model.state_dict().items():
            assert torch.equal(value, resumed.model.state_dict()[name]), name
    (tmp_path / "checkpoint-36" / "learned_rates_state.pt").unlink()
    with (
        pytest.warns(
            UserWarning, match=r"want learned_rates_state\.pt in .*checkpoint-36, got none.* the rule begins anew"
        ),
        pytest.warns(UserWarning, match="ended before, in the phase 'measuring'"),
    ):
        anew = trained(bert(), tmp_path / "again", data, resume=str(tmp_path / "checkpoint-36"), **settings)
    assert anew.objective.rule.step == 4


@pytest.mark.parametrize(("parts", "limit"), [(1, {}), (3, {}), (3, {"max_steps": 3})])
def test_rule_counts_the_calls_of_the_loss(parts: int, limit: dict[str, int], tmp_path: Path) -> None:
    class Counting(LearnedRatesTrainer):
        calls = 0

        def _losses(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
            self.calls += model.training
            return super()._losses(model, inputs)

    settings = arguments(tmp_path, num_train_epochs=2, gradient_accumulation_steps=parts, **limit)
    data, held_out = (texts.rows(texts.which_module(*ends)) for ends in ((0, 40), (250, 260)))
    trainer = Counting(bert(), settings, train_dataset=data, held_out=held_out)  # pyright: ignore
    trainer.remove_callback(PrinterCallback)
    early = trainer.objective.rule.frozen_after
    trainer.train()
    assert trainer.calls == (8 if not limit else 7)
    assert trainer.objective.rule.frozen_after == early == math.ceil(0.4 * 8)


def test_held_out_losses_are_means_over_tokens_whatever_the_lengths(tmp_path: Path) -> None:
    """Sums would take the longer held-out sequences for worse ones."""
    short = {key: value[:, : texts.LENGTH // 4] for key, value in language(0, 40).items()}
    full = language(250, 280)
    held_out = texts.rows({key: value[full["labels"][:, -1] != -100] for key, value in full.items()})
    settings: dict[str, Any] = {"held_out": held_out, "num_train_epochs": 4, "learning_rate": 1e-4}
    measured = trained(gpt2(), tmp_path, short, **settings).objective.last
    assert measured["plain_loss"] == pytest.approx(math.log(texts.VOCABULARY), rel=0.1)
    assert measured["held_out_loss"] == pytest.approx(math.log(texts.VOCABULARY), rel=0.1)


@pytest.mark.parametrize("parts", [1, 3])
def test_steps_under_held_out_data_change_weights_as_the_plain_trainer_does(parts: int, tmp_path: Path) -> None:
    plain, data = gpt2(), language(0, 16)
    ours = lbdrop.convert(copy.deepcopy(plain), rate=0.1, verbose=False)
    for module in plain.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for layer in learned_layers(ours).values():
        layer.logit.data.fill_(20.0)  # every mask is open
        layer.logit.requires_grad_(False)
    settings = {"gradient_accumulation_steps": parts, "per_device_train_batch_size": 24 // parts, "optim": "sgd",
                "warmup_steps": 0, "max_grad_norm": 0.0, "weight_decay": 0.0}  # fmt: skip
    other = Trainer(plain, arguments(tmp_path, **settings), train_dataset=texts.rows(data))  # pyright: ignore
    other.remove_callback(PrinterCallback)
    other.train()
    with pytest.warns(UserWarning, match="require no gradient"):
        trained(ours, tmp_path, data, held_out=texts.rows(data), **settings)
    want = dict(plain.named_parameters())
    for name, value in ours.named_parameters():
        if name in want:
            torch.testing.assert_close(value, want[name], rtol=1e-4, atol=2e-6)


def test_held_out_examples_are_released_where_the_size_of_the_training_set_is_given(tmp_path: Path) -> None:
    data, held_out = texts.which_module(0, 40), texts.rows(texts.which_module(250, 280))
    trainer = trained(bert(), tmp_path, data, held_out=held_out, examples=120, num_train_epochs=2)
    assert "released" in repr(trainer.objective.rule)
    assert trainer.state.global_step == 8


def test_bfloat16_leaves_rates_in_full_precision(tmp_path: Path) -> None:
    model = bert()
    trained(model, tmp_path, texts.which_module(0, 40), bf16=True, rate_lr=3e-2)
    for layer in learned_layers(model).values():
        assert layer.logit.dtype == torch.float32
        assert layer.p != pytest.approx(0.1, abs=1e-5)


def test_evaluation_draws_no_masks(tmp_path: Path) -> None:
    model, test = bert(), texts.which_module(250, 270)
    trainer = trained(model, tmp_path, texts.which_module(0, 20), eval_dataset=texts.rows(test))
    once, again = trainer.evaluate()["eval_loss"], trainer.evaluate()["eval_loss"]
    with torch.no_grad():
        want = F.cross_entropy(model.eval()(**test).logits, test["labels"])
    assert once == again == pytest.approx(float(want), rel=1e-4)


# ----------------------------------------------------------------------------------------------- what is kept and shown


def test_saved_weights_load_as_ever_and_rates_load_beside_them(tmp_path: Path) -> None:
    model, test = bert(), texts.foreign(8)
    lbdrop.convert(model, per="model", verbose=False)
    trainer = trained(model, tmp_path, texts.which_module(0, 40), rate_lr=3e-2)
    trainer.save_model(tmp_path / "kept")
    again, said = BertForSequenceClassification.from_pretrained(tmp_path / "kept", output_loading_info=True)  # pyright: ignore
    assert not said["missing_keys"]
    assert not said["unexpected_keys"]
    load_rates(lbdrop.convert(again, per="model", verbose=False), tmp_path / "kept")
    torch.manual_seed(0)
    want = lbdrop.predict(model, test).mean
    torch.manual_seed(0)
    torch.testing.assert_close(lbdrop.predict(again, test).mean, want)


def test_rates_of_another_conversion_are_refused(tmp_path: Path) -> None:
    save_rates(lbdrop.convert(bert(), verbose=False), tmp_path)
    other = lbdrop.convert(bert(), per="unit", example=texts.foreign(2), verbose=False)
    with pytest.raises(lbdrop.DropoutError, match=r"want those of the same conversion.*lbdrop\.convert"):
        load_rates(other, tmp_path)
    (tmp_path / FILE).unlink()
    with pytest.raises(lbdrop.DropoutError, match=r"save_rates\(model, folder\)"):
        load_rates(other, tmp_path)


def test_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    data = texts.which_module(0, 40)
    settings: dict[str, Any] = {"num_train_epochs": 2, "save_strategy": "epoch", "rate_lr": 3e-2}
    start = bert()
    whole = trained(copy.deepcopy(start), tmp_path, data, **settings)
    (tmp_path / "checkpoint-4" / "learned_rates_state.pt").unlink()  # the bound has no state that could be missing
    resumed = trained(copy.deepcopy(start), tmp_path / "again", data, resume=str(tmp_path / "checkpoint-4"), **settings)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_best_model_comes_with_its_rates(tmp_path: Path) -> None:
    settings = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    trainer = trained(
        bert(), tmp_path, texts.which_module(0, 40), eval_dataset=texts.rows(texts.which_module(250, 270)),
        num_train_epochs=3, rate_lr=3e-2, greater_is_better=True, **settings,
    )  # fmt: skip
    best = Path(trainer.state.best_model_checkpoint)
    want = load_rates(lbdrop.convert(bert(), verbose=False), best)
    assert {name: layer.p for name, layer in noise_layers(trainer.model).items()} == {
        name: layer.p for name, layer in noise_layers(want).items()
    }
    assert int(best.name.split("-")[1]) < trainer.state.global_step  # the highest loss, so not the last


def test_rates_are_in_the_history_and_in_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    model = bert()
    trainer = trained(model, tmp_path, texts.which_module(0, 40), report_to=["tensorboard"], rate_lr=3e-2)
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["rates/dropout"] == pytest.approx(model.dropout.p)
    (run,) = {path.parent for path in (tmp_path / "events").rglob("events*")}
    events = EventAccumulator(str(run)).Reload()
    assert events.Scalars("rates/dropout")[-1].value == pytest.approx(model.dropout.p, abs=1e-6)
    assert events.Histograms("rates/all")[-1].histogram_value.num == len(noise_layers(model))
