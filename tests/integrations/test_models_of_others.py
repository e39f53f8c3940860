"""Models of transformers by name: every draw found, eval outputs as they were, predictions that vary."""

import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

import lbdrop
from benchmarks.zoo.models import Made, settle
from lbdrop import Objective, masks, predict
from lbdrop.dropout import learned_layers
from lbdrop.sites.example import random_draws

IDS = torch.arange(1, 15).view(2, 7)
PAIR = {"input_ids": IDS, "decoder_input_ids": IDS}
WIDTHS: dict[str, Any] = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
                          "num_attention_heads": 2, "pad_token_id": 0}  # fmt: skip
DECODER: dict[str, Any] = WIDTHS | {"num_key_value_heads": 1, "head_dim": 8, "attention_dropout": 0.1}
SPEECH: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 30, "attention_dropout": 0.1, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
WAVES: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "conv_dim": (8, 8),
    "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2, "layerdrop": 0.0, "mask_time_prob": 0.0,
}  # fmt: skip
T5: dict[str, Any] = {"vocab_size": 30, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2,
                      "decoder_start_token_id": 0}  # fmt: skip
SWIN: dict[str, Any] = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2],
                        "window_size": 4, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}  # fmt: skip

CONVNEXT: dict[str, Any] = {
    "image_size": 32,
    "hidden_sizes": [8, 8, 8, 8],
    "depths": [1, 2, 1, 1],
    "drop_path_rate": 0.2,
}
EFFICIENTNET: dict[str, Any] = {
    "image_size": 32, "width_coefficient": 0.2, "depth_coefficient": 0.2, "hidden_dim": 256, "dropout_rate": 0.2,
    "in_channels": [16, 16], "out_channels": [16, 16], "kernel_sizes": [3, 3], "strides": [1, 1], "depthwise_padding": [],
    "num_block_repeats": [1, 2], "expand_ratios": [1, 2],
}  # fmt: skip
MOBILEVIT: dict[str, Any] = {"image_size": 64, "hidden_sizes": [8, 8, 8], "neck_hidden_sizes": [8] * 7, "num_attention_heads": 2,
                             "attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1, "initializer_range": 0.3}  # fmt: skip


class GraphAttention(nn.Module):
    """Attention over edges, dropped and normalised as torch_geometric's GATConv does it."""

    def __init__(self, width: int):
        super().__init__()
        self.lin, self.source, self.target = nn.Linear(8, width), nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x, (source, target) = self.lin(x), edges
        alpha = F.leaky_relu(self.source(x)[source] + self.target(x)[target], 0.2).exp()
        alpha = alpha / torch.zeros(len(x), 1).index_add(0, target, alpha)[target]
        alpha = F.dropout(alpha, p=0.2, training=self.training)
        return torch.zeros_like(x).index_add(0, target, x[source] * alpha)


class GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GraphAttention(8), GraphAttention(3)])

    def forward(self, x: Tensor, edges: Tensor) -> SimpleNamespace:
        for conv in self.convs:
            x = conv(F.dropout(F.elu(x), p=0.1, training=self.training), edges)
        return SimpleNamespace(logits=x)


RING = torch.arange(6)
GRAPH = {"x": torch.randn(6, 8), "edges": torch.stack([RING.repeat(3), torch.cat([RING, RING.roll(1), RING.roll(2)])])}
COUPLED = ("DeBERTa-v2", "EfficientNet", "MobileViT", "GAT")
"""Embeddings of positions that all examples share, BatchNorm, and edges: one example depends on the masks of another."""

MODELS: dict[str, tuple[Callable[[], Any], dict[str, Tensor], bool]] = {
    # How it is made; its inputs; whether it needs them as an example.
    "T5": (lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)), PAIR, False),
    "BART": (lambda: hf.BartForConditionalGeneration(hf.BartConfig(**SPEECH)), PAIR, False),
    "GPT-OSS": (
        lambda: hf.GptOssForCausalLM(hf.GptOssConfig(**DECODER, num_local_experts=2, num_experts_per_tok=1)),
        {"input_ids": IDS}, False,
    ),
    "Gemma2": (lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**DECODER)), {"input_ids": IDS}, False),
    "ALBERT": (
        lambda: hf.AlbertForSequenceClassification(
            hf.AlbertConfig(**WIDTHS, embedding_size=8, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
        ),
        {"input_ids": IDS}, False,
    ),
    "DeBERTa-v2": (
        lambda: hf.DebertaV2ForSequenceClassification(
            hf.DebertaV2Config(**WIDTHS, relative_attention=True, pos_att_type=["p2c", "c2p"])
        ),
        {"input_ids": IDS}, False,
    ),
    "Whisper": (
        lambda: hf.WhisperForConditionalGeneration(
            hf.WhisperConfig(**SPEECH, num_mel_bins=8, max_source_positions=20, dropout=0.1)
        ),
        {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": IDS}, True,
    ),
    "WavLM": (
        lambda: hf.WavLMForSequenceClassification(hf.WavLMConfig(**WAVES, final_dropout=0.1, feat_proj_dropout=0.1)),
        {"input_values": torch.randn(2, 800)}, True,
    ),
    "ConvNeXt": (
        lambda: hf.ConvNextForImageClassification(hf.ConvNextConfig(**CONVNEXT, layer_scale_init_value=1.0)),
        {"pixel_values": torch.randn(2, 3, 32, 32)}, False,
    ),
    "EfficientNet": (
        lambda: hf.EfficientNetForImageClassification(hf.EfficientNetConfig(**EFFICIENTNET)),
        {"pixel_values": torch.randn(2, 3, 32, 32)}, False,
    ),
    "MobileViT": (
        lambda: hf.MobileViTForImageClassification(hf.MobileViTConfig(**MOBILEVIT)),
        {"pixel_values": torch.randn(2, 3, 64, 64)}, False,
    ),
    "GAT": (GAT, GRAPH, True),
    "Swin": (
        lambda: hf.SwinForImageClassification(hf.SwinConfig(**SWIN)), {"pixel_values": torch.randn(2, 3, 32, 32)}, False,
    ),
}  # fmt: skip


def made(name: str) -> tuple[Any, dict[str, Tensor], bool]:
    torch.manual_seed(0)
    make, inputs, shown = MODELS[name]
    model = make().eval()
    settle(Made(model, inputs))
    return model, inputs, shown


def logits(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    return model(**inputs).logits


@pytest.mark.parametrize("name", MODELS)
def test_model_of_others_is_converted_whole_and_computes_what_it_did(name: str) -> None:
    model, inputs, shown = made(name)
    with torch.no_grad():
        before = logits(model, inputs)
    lbdrop.convert(model, example=inputs if shown else None, verbose=False)
    with torch.no_grad():
        assert torch.equal(logits(model, inputs), before)
    layers = learned_layers(model)
    with masks.deterministic(model):
        assert not random_draws(model, lambda: model(**inputs))[1]
    found = predict(model, inputs, samples=4, kind="regression", forward=logits, progress=False)
    assert float(found.variance.max()) > 0
    objective = Objective(model.train(), examples=9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if name in COUPLED else "error")
        objective(lambda m: logits(m, inputs).flatten(1).square().mean(1)).backward()
    assert all(layer.logit.grad is not None and layer.logit.grad.abs() > 0 for layer in layers.values())
    with torch.no_grad():
        assert torch.equal(logits(lbdrop.bake(model), inputs), logits(model.eval(), inputs))


def test_t5_keeps_its_positions() -> None:
    model, inputs, _ = made("T5")
    turned = {"input_ids": IDS.flip(1), "decoder_input_ids": IDS}
    lbdrop.convert(model, verbose=False)
    with torch.no_grad(), masks.drawn(model, torch.Generator().manual_seed(0)):
        first = logits(model, inputs)
    with torch.no_grad(), masks.drawn(model, torch.Generator().manual_seed(0)):
        second = logits(model, turned)
    assert float((first - second).abs().max()) > 1e-3  # without positions only the rounding differs


def test_conversion_of_twelve_layers_takes_tenths_of_a_second() -> None:
    model = hf.BertForSequenceClassification(hf.BertConfig(**WIDTHS | {"num_hidden_layers": 12}))
    started = time.process_time()
    lbdrop.convert(model, verbose=False)
    assert time.process_time() - started < 1.5  # a tenth of that, where checks of types and shapes are off
