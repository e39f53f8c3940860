"""Models of others, converted: compiled, exported, copied, checkpointed, from threads, with PEFT, as the plain model."""

import copy
import io
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import lbdrop
from lbdrop import Objective, bake, masks, predict
from lbdrop.dropout import learned_layers

IDS = torch.arange(1, 15).view(2, 7)
BATCH = {"input_ids": IDS}
BERT: dict[str, Any] = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
                        "num_attention_heads": 2, "pad_token_id": 0}  # fmt: skip
OPT: dict[str, Any] = {"vocab_size": 30, "hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                       "word_embed_proj_dim": 16, "attention_dropout": 0.1, "use_cache": False, "pad_token_id": 0}  # fmt: skip
MODELS = {  # dropout as modules and in attention; dropout in functions
    "BERT": lambda: hf.BertForSequenceClassification(hf.BertConfig(**BERT)),
    "OPT": lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT)),
}
everywhere = pytest.mark.parametrize("name", MODELS)


def made(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]()


def converted(name: str) -> Any:
    return lbdrop.convert(made(name), example=BATCH, verbose=False)


def logits(model: Any, batch: dict[str, Tensor] = BATCH) -> Tensor:
    return model(**batch).logits


def gradients(model: nn.Module, called: nn.Module | None = None) -> list[Tensor]:
    """Of all weights and rates, through a model that may be a wrapper of it."""
    model.zero_grad()
    objective = Objective(
        model if called is None else called,
        estimator="double-cv-4",
        examples=9,
        generator=torch.Generator().manual_seed(3),
    )
    objective(lambda m: logits(m).flatten(1).square().mean(1)).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def drawn(model: nn.Module) -> Tensor:
    torch.manual_seed(5)
    with torch.no_grad(), masks.drawn(model):
        return logits(model.eval())


@pytest.mark.filterwarnings("ignore")  # of the compiler, about what it reads
@everywhere
def test_compiled_model_computes_learns_and_predicts_what_it_does_uncompiled(name: str) -> None:
    model = converted(name).train()
    compiled: Any = torch.compile(model, backend="eager")
    torch.testing.assert_close(gradients(model, compiled), gradients(model), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(logits(compiled.eval()), logits(model.eval()))
    found = [
        predict(
            each,
            BATCH,
            samples=3,
            kind="regression",
            forward=logits,
            generator=torch.Generator().manual_seed(1),
            progress=False,
        )
        for each in (model, compiled)
    ]
    torch.testing.assert_close(found[0].samples, found[1].samples)
    assert float(found[0].variance.max()) > 0


@everywhere
def test_exported_model_is_that_of_eval_mode_baked_or_not(name: str) -> None:
    model = converted(name).eval()
    for each in (model, bake(model)):
        torch.testing.assert_close(logits(torch.export.export(each, (), BATCH).module()), logits(model))


@everywhere
def test_copies_pickles_and_states_draw_what_the_model_draws(name: str) -> None:
    model, other = converted(name), converted(name)
    for layer in learned_layers(model).values():
        layer.logit.data.add_(0.5)
    stored = io.BytesIO()
    torch.save(model.state_dict(), stored)
    stored.seek(0)
    other.load_state_dict(torch.load(stored, weights_only=True))
    expected = drawn(model)
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), other):
        assert torch.equal(drawn(each), expected)


def weights_step(model: Any) -> list[Tensor]:
    """The gradients of a step by the rule for held-out data, which draws one mask."""
    torch.manual_seed(4)
    objective = Objective(model.train(), held_out=[(IDS,)], steps=20, examples=9)
    objective(lambda m, ids: logits(m, {"input_ids": ids}).flatten(1).square().mean(1), IDS).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@everywhere
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_under_the_models_own_checkpointing_are_those_without(name: str, reentrant: bool) -> None:
    model, checkpointed = converted(name), converted(name)
    checkpointed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about inputs that need no gradient
        torch.testing.assert_close(weights_step(checkpointed), weights_step(model), rtol=1e-4, atol=1e-6)


@everywhere
@pytest.mark.parametrize("reentrant", [False, True])
def test_bound_refuses_the_models_own_checkpointing(name: str, reentrant: bool) -> None:
    model = converted(name).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    with pytest.raises(lbdrop.DropoutError, match=r"checkpoint: want no .*held_out="):
        gradients(model)


@everywhere
def test_two_threads_predict_at_once_what_each_predicts_alone(name: str) -> None:
    model = converted(name).eval()

    def found(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return predict(
            model, BATCH, samples=8, kind="regression", forward=logits, generator=generator, progress=False
        ).samples

    alone = [found(seed) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            for mine, expected in zip(pool.map(found, (1, 2)), alone, strict=True):
                assert torch.equal(mine, expected)


class Int8Linear(nn.Module):
    """A linear layer of a quantised base: weights of one byte and a scale for each row, neither of them trained."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype), self.bias.to(x.dtype))


def quantised(model: Any) -> Any:
    for parent in list(model.modules()):
        for key, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and "classifier" not in key:
                setattr(parent, key, Int8Linear(child))
    return model


@pytest.mark.parametrize("base", ["int8", "half", "float"])
def test_adapters_on_a_converted_base_learn_beside_its_rates(base: str) -> None:
    from peft import LoraConfig, get_peft_model

    plain = made("BERT")
    if base == "int8":
        for layer in plain.bert.encoder.layer:
            layer.intermediate, layer.output = quantised(layer.intermediate), quantised(layer.output)
    if base == "half":
        plain = plain.to(torch.bfloat16)
    adapted: Any = get_peft_model(
        plain, LoraConfig(r=2, lora_dropout=0.1, target_modules=["query", "value"], task_type="SEQ_CLS")
    )
    before = logits(adapted.eval())
    model = lbdrop.convert(adapted, example=BATCH, verbose=False)
    torch.testing.assert_close(logits(model.eval()), before)
    objective = Objective(model.train(), examples=9)
    objective(lambda m: logits(m).float().flatten(1).square().mean(1)).backward()
    layers = learned_layers(model)
    assert any("lora_dropout" in name for name in layers)
    assert any("learned_draws" in name for name in layers)
    assert all(layer.logit.dtype == torch.float32 for layer in layers.values())
    moved = [n for n, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())]
    assert any("lora_A" in n or "lora_B" in n for n in moved)
    assert any("logit" in n for n in moved)
    found = predict(
        model, BATCH, samples=4, kind="regression", forward=lambda m, b: logits(m, b).float(), progress=False
    )
    assert float(found.variance.max()) > 0
    torch.testing.assert_close(logits(bake(model)), logits(model.eval()))


def test_rates_that_adapters_have_frozen_are_told() -> None:
    from peft import LoraConfig, get_peft_model

    adapted: Any = get_peft_model(converted("BERT"), LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))
    with pytest.warns(
        UserWarning, match="under adapters of peft that came later: rates stay as they are; call requires_grad_"
    ):
        Objective(adapted.train(), examples=9)(lambda m: logits(m).flatten(1).square().mean(1)).backward()
