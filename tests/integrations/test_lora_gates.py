"""LoRA adapters of peft: their dropout is learned, their ranks are gated, and what is not needed is cut."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import texts
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
from transformers.trainer_callback import PrinterCallback

import lbdrop
from lbdrop.dropout import learned_layers, noise_layers
from lbdrop.integrations.rates import load_rates, save_rates, without_rates
from lbdrop.integrations.transformers import LearnedRatesTrainer
from lbdrop.sites.lora import RankGate, adapters

PLACES = ["q_proj", "v_proj", "down_proj"]


def llama(**settings: Any) -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=texts.VOCABULARY, **sizes, **settings)).eval()


def with_lora(model: Any, **settings: Any) -> Any:
    usual = {"r": 6, "lora_alpha": 12, "lora_dropout": 0.2, "target_modules": PLACES, "task_type": "CAUSAL_LM"}
    return get_peft_model(model, LoraConfig(**usual | settings))


def gated(**settings: Any) -> Any:
    """A model whose adapters do something, with gates from shut to open, and a layer with none open."""
    model = lbdrop.convert(with_lora(llama(), **settings), rank_gates=10.0, verbose=False)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_()
            if "gate.logit" in name:
                value.copy_(torch.tensor([-60.0, 2.0, -60.0, -1.0, 0.5, 3.0]))
            if "gate.logit" in name and "layers.1.self_attn.q_proj" in name:
                value.fill_(-60.0)
    return model.eval()


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=texts.which_module(0, 3)["input_ids"]).logits


def ranks(model: nn.Module) -> dict[str, int]:
    return {name.rpartition("layers.")[2]: layer.r["default"] for name, layer in adapters(model)}


# ----------------------------------------------------------------------------------------------------------- dropout


def test_only_adapters_and_rates_train_and_both_do(tmp_path: Path) -> None:
    model = lbdrop.convert(with_lora(llama(attention_dropout=0.1)), rank_gates=1.0, verbose=False)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    _train(model, tmp_path)
    still = {name for name, value in model.named_parameters() if torch.equal(value, before[name])}
    assert still == {name for name in before if "lora_" not in name and "logit" not in name}
    assert len([name for name in learned_layers(model) if "lora_dropout" in name]) == 2 * len(PLACES)


@pytest.mark.process
def test_resumed_run_has_the_rates_of_adapters_and_of_the_model_below(tmp_path: Path) -> None:
    def fresh() -> Any:
        return lbdrop.convert(with_lora(llama(attention_dropout=0.1)), rank_gates=1.0, verbose=False)

    torch.manual_seed(0)
    start = fresh()
    whole = _train(copy.deepcopy(start), tmp_path, save_strategy="epoch", num_train_epochs=2)
    first = sorted(tmp_path.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))[0]
    resumed = _train(copy.deepcopy(start), tmp_path, resume=str(first), num_train_epochs=2)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(value, resumed.state_dict()[name], msg=name)


def _train(model: Any, folder: Path, resume: str | None = None, **settings: Any) -> Any:
    usual = {"num_train_epochs": 1, "per_device_train_batch_size": 12, "learning_rate": 1e-2, "save_strategy": "no"}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True}
    batch = texts.which_module(0, 16)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    arguments = TrainingArguments(str(folder), **usual | quiet | settings)
    trainer = LearnedRatesTrainer(model, arguments, train_dataset=texts.rows(batch), rate_lr=3e-2)  # pyright: ignore
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    return model


def test_dropout_of_rate_0_starts_at_the_given_rate() -> None:
    with pytest.raises(lbdrop.DropoutError, match="lora_dropout.default.*pass rate=0.5"):
        lbdrop.convert(with_lora(llama(), lora_dropout=0.0), verbose=False)
    model = lbdrop.convert(with_lora(llama(), lora_dropout=0.0), rate=0.1, verbose=False)
    assert [round(layer.p, 6) for layer in learned_layers(model).values()] == [0.1] * 2 * len(PLACES)


def test_adapters_that_are_not_in_use_are_left_alone() -> None:
    model = with_lora(llama())
    model.add_adapter("other", LoraConfig(r=2, lora_dropout=0.3, target_modules=PLACES))
    lbdrop.convert(model, rank_gates=1.0, verbose=False)
    assert not [name for name in noise_layers(model) if "other" in name]
    objective = lbdrop.Objective(model, examples=9)  # an unreached dropout would be an error
    objective(lambda m: m(**texts.foreign(4)).logits.square().mean((1, 2))).backward()


# ------------------------------------------------------------------------------------------------------------- gates


@pytest.mark.parametrize("seed", [0, 1])
def test_open_ranks_are_as_many_as_the_task_has(seed: int) -> None:
    torch.manual_seed(seed)
    net, noise, examples = nn.Sequential(nn.Linear(16, 16)), 0.3, 400
    change = torch.randn(16, 2) @ torch.randn(2, 16) / 4  # what the adapter has to learn, of rank 2
    x = torch.randn(examples, 16)
    y = (net(x) + x @ change.T + noise * torch.randn(examples, 16)).detach()
    model = get_peft_model(net, LoraConfig(r=8, lora_alpha=8, target_modules=["0"]))  # pyright: ignore
    lbdrop.convert(model, rank_gates=5000.0, verbose=False)  # either direction is worth tens of thousands
    objective = lbdrop.Objective(model, examples=examples, estimator="double-cv-4")
    optimizer = torch.optim.Adam(lbdrop.parameter_groups(model, lr=2e-2, rate_lr=1e-1))
    for _ in range(250):
        rows = torch.randint(0, examples, (50,))
        optimizer.zero_grad()
        objective(lambda m, rows=rows: (m(x[rows]) - y[rows]).square().sum(1) / (2 * noise**2)).backward()
        optimizer.step()
    pruned = lbdrop.prune(model, threshold=0.5)
    assert [layer.r["default"] for _, layer in adapters(pruned)] == [2]
    with torch.no_grad():
        assert float((pruned(x) - y).square().mean()) < 1.1 * noise**2
        torch.testing.assert_close(
            pruned(x), model.eval()(x), atol=0.2, rtol=0.0
        )  # shut gates are open once in a while


def test_gates_are_merged_baked_and_pruned_into_the_same_function() -> None:
    model = gated()
    want = logits(model)
    assert (want - logits(llama())).abs().max() > 0.01  # the adapters matter
    for same in (lbdrop.bake(model), lbdrop.prune(model), copy.deepcopy(model).merge_and_unload(),
                 lbdrop.bake(model).merge_and_unload(), lbdrop.prune(model).merge_and_unload()):  # fmt: skip
        torch.testing.assert_close(logits(same), want, atol=1e-5, rtol=1e-4)
        assert not [module for module in same.modules() if isinstance(module, RankGate)]


def test_pruned_adapters_have_fewer_ranks_and_are_saved_so(tmp_path: Path) -> None:
    for settings in ({}, {"lora_dropout": 0.0, "use_rslora": True}):
        model = gated(**settings)
        pruned = lbdrop.prune(model)
        assert set(ranks(model).values()) == {6}
        # A layer with every gate shut keeps one rank, of weight zero.
        assert ranks(pruned) == {name: 1 if name == "1.self_attn.q_proj" else 4 for name in ranks(model)}
        pruned.save_pretrained(tmp_path)
        again = PeftModel.from_pretrained(llama(), str(tmp_path)).eval()
        torch.testing.assert_close(logits(again), logits(model), atol=1e-5, rtol=1e-4)


def test_adapter_with_gates_comes_back_from_its_files(tmp_path: Path) -> None:
    model = gated()
    model.save_pretrained(str(tmp_path), state_dict=without_rates(model))
    save_rates(model, tmp_path)
    again: Any = PeftModel.from_pretrained(llama(), str(tmp_path), is_trainable=True)
    load_rates(lbdrop.convert(again, rank_gates=10.0, verbose=False), tmp_path)
    assert torch.equal(logits(again.eval()), logits(model))


def test_gates_where_there_are_no_ranks_are_errors_with_a_next_step() -> None:
    with pytest.raises(
        lbdrop.DropoutError, match="want a model with LoRA adapters, got LlamaForCausalLM.*get_peft_model"
    ):
        lbdrop.convert(llama(attention_dropout=0.1), rank_gates=1.0)
    with pytest.raises(
        lbdrop.DropoutError, match="want plain LoRA on linear layers, got DoraLinearVariant at .*q_proj"
    ):
        lbdrop.convert(with_lora(llama(), use_dora=True), rank_gates=1.0)
    with pytest.raises(lbdrop.DropoutError, match="want a cost of 0 or more"):
        lbdrop.convert(with_lora(llama()), rank_gates=-1.0)
