"""Small models of transformers, and the trainer with learned rates on the texts of these tests."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

from helpers import texts
from lbdrop.integrations.transformers import LearnedRatesTrainer

pytestmark = pytest.mark.process

SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64,
                         "vocab_size": texts.VOCABULARY, "max_position_embeddings": texts.LENGTH}  # fmt: skip


def bert(kind: Any = BertForSequenceClassification, labels: int = len(texts.MODULES), **settings: Any) -> Any:
    return kind(BertConfig(**SIZES, type_vocab_size=1, initializer_range=0.1, num_labels=labels, **settings))


def gpt2() -> Any:
    ends = {"bos_token_id": 1, "eos_token_id": 0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=texts.VOCABULARY, n_embd=32, n_layer=1, n_head=4, n_positions=texts.LENGTH, **ends)
    )


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.1))


def bart() -> Any:
    sizes = {f"{side}_{size}": value for side in ("encoder", "decoder")
             for size, value in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 64))}  # fmt: skip
    return BartForConditionalGeneration(BartConfig(vocab_size=texts.VOCABULARY, d_model=32, **sizes))


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    usual = {"num_train_epochs": 1, "per_device_train_batch_size": 32, "learning_rate": 5e-3, "warmup_steps": 10}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_strategy": "epoch"}
    return TrainingArguments(str(folder), **usual | quiet | settings)


def trained(model: Any, folder: Path, data: dict[str, Tensor], resume: Any = None, **settings: Any) -> Any:
    ours = ("rate_lr", "examples", "held_out", "rule", "compute_loss_func", "eval_dataset", "optimizers", "estimator")
    given = {key: settings.pop(key) for key in ours if key in settings}
    trainer = LearnedRatesTrainer(model, arguments(folder, **settings), train_dataset=texts.rows(data), **given)  # pyright: ignore
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses_of(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def language(start: int, stop: int) -> dict[str, Tensor]:
    """Lines to be continued; what is padding is not learned."""
    batch = texts.which_module(start, stop)
    return batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}
