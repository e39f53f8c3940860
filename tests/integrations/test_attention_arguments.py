"""An argument of a model's attention that our attention does not compute is refused; the model is never changed in silence."""

from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2Model,
    GptOssConfig,
    GptOssModel,
    LlamaConfig,
    LlamaModel,
    T5Config,
    T5Model,
)

import lbdrop

SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 2, "head_dim": 8, "attention_dropout": 0.1, "pad_token_id": 0}  # fmt: skip
IDS = torch.arange(1, 15).view(2, 7)


def t5() -> Any:
    return T5Model(T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.1))


def gpt_oss() -> Any:
    return GptOssModel(GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1))


@pytest.mark.parametrize(
    ("make", "argument"),
    [(t5, "position_bias"), (gpt_oss, "s_aux"), (lambda: Gemma2Model(Gemma2Config(**SMALL)), "softcap")],
)
def test_attention_argument_that_would_be_left_out_is_refused(make: Any, argument: str) -> None:
    model = lbdrop.convert(make().eval(), verbose=False)
    inputs = {"input_ids": IDS} | ({"decoder_input_ids": IDS} if make is t5 else {})
    with torch.no_grad(), pytest.raises(lbdrop.DropoutError, match=f"got {argument} too"):
        model(**inputs)


def test_attention_without_further_arguments_computes_what_it_did() -> None:
    model = LlamaModel(LlamaConfig(**SMALL)).eval()
    with torch.no_grad():
        before = model(input_ids=IDS).last_hidden_state
        after = lbdrop.convert(model, verbose=False)(input_ids=IDS).last_hidden_state
    torch.testing.assert_close(after, before)
