"""Swapping dropout in models that were not written for it."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

import lbdrop
from lbdrop import LearnableDropout, Objective, masks, predict
from lbdrop.dropout import learned_layers


class ResidualCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.drop = nn.BatchNorm2d(8), nn.Dropout2d(0.3)
        self.head_drop, self.head = nn.Dropout(0.2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.drop(self.branch(x)))
        return self.head(self.head_drop(x.mean((2, 3))))


class Encoder(nn.Module):
    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.embed, self.batch_first = nn.Embedding(11, 16), batch_first
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) if self.batch_first else self.embed(x).transpose(0, 1)
        return self.head(self.encoder(x).mean(1 if self.batch_first else 0))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, **settings) -> None:
        super().__init__()
        self.rnn = kind(5, 6, num_layers=3, dropout=0.3, batch_first=True, **settings)
        self.head = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0].mean(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
         "num_labels": 3, "pad_token_id": 0}  # fmt: skip


def bert() -> nn.Module:
    return BertForSequenceClassification(BertConfig(**SMALL))


def llama() -> nn.Module:
    return LlamaForSequenceClassification(LlamaConfig(**SMALL, num_key_value_heads=1, attention_dropout=0.2))


MODELS = {
    "residual CNN": (ResidualCNN, lambda: torch.randn(6, 3, 8, 8), 2),
    "transformer encoder": (Encoder, lambda: torch.randint(0, 11, (6, 5)), 8),
    "sequence-first encoder": (lambda: Encoder(False), lambda: torch.randint(0, 11, (6, 5)), 8),
    "LSTM": (Recurrent, lambda: torch.randn(6, 7, 5), 2),
    "bidirectional GRU": (lambda: Recurrent(nn.GRU, bidirectional=True), lambda: torch.randn(6, 7, 5), 2),
    "projected LSTM": (lambda: Recurrent(proj_size=4), lambda: torch.randn(6, 7, 5), 2),
    "plain RNN": (lambda: Recurrent(nn.RNN), lambda: torch.randn(6, 7, 5), 2),
    "attention": (Attention, lambda: torch.randn(6, 4, 8), 1),
    "BERT": (bert, lambda: torch.randint(1, 50, (6, 9)), 8),
    "Llama": (llama, lambda: torch.randint(1, 50, (6, 9)), 2),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    kind, inputs, _ = MODELS[name]
    model, x = kind().eval(), inputs()
    with torch.no_grad():
        model(x)  # lazy layers
    return model, x


def logits(output) -> Tensor:
    return getattr(output, "logits", output)


@pytest.mark.parametrize("per", ["layer", "unit", "model"])
@pytest.mark.parametrize("name", MODELS)
class TestEveryModel:
    def test_outputs_variance_and_gradients(self, name: str, per) -> None:
        model, x = build(name)
        before = logits(model(x)).detach()
        keys = set(model.state_dict())
        model = lbdrop.convert(model, per=per, example=x if per == "unit" else None, verbose=False)
        layers = learned_layers(model)
        assert len(layers) == MODELS[name][2]
        assert keys <= set(model.state_dict())  # checkpoints of the original still load
        # In eval mode nothing has changed,
        torch.testing.assert_close(logits(model(x)), before, atol=2e-6, rtol=1e-5)
        # every dropout by itself makes the output vary,
        for layer in layers.values():
            with torch.no_grad():
                kept = {other: other.logit.clone() for other in layers.values()}
                for other in layers.values():
                    other.logit.fill_(0.0 if other is layer or per == "model" else 30.0)
                assert float(predict(model, x, samples=8).variance.max()) > 0
                for other, logit in kept.items():
                    other.logit.copy_(logit)
        # held masks repeat,
        with masks.held(model):
            assert torch.equal(logits(model(x)), logits(model(x)))
        # and every rate gets a gradient.
        model.train()
        y = torch.randint(0, 3, (6,))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the loss of one example depends")
            loss = Objective(model, examples=60)(lambda m: F.cross_entropy(logits(m(x)), y, reduction="none"))
        loss.backward()
        for at, layer in layers.items():
            assert layer.logit.grad is not None, at
            assert bool((layer.logit.grad != 0).any()), at

    def test_bake_gives_plain_modules_with_the_same_deterministic_pass(self, name: str, per) -> None:
        model, x = build(name)
        model = lbdrop.convert(model, per=per, example=x if per == "unit" else None, rate=0.3, verbose=False)
        plain = lbdrop.bake(model)
        assert not [m for m in plain.modules() if type(m).__module__.startswith("lbdrop")]
        torch.testing.assert_close(logits(plain(x)), logits(model(x)), atol=1e-6, rtol=1e-5)
        assert learned_layers(model)  # the original is as it was


@pytest.mark.parametrize(
    ("module", "channels", "scale"),
    [
        (nn.Dropout, False, "inverted"),
        (nn.Dropout1d, True, "inverted"),
        (nn.Dropout2d, True, "inverted"),
        (nn.Dropout3d, True, "inverted"),
        (nn.AlphaDropout, False, "alpha"),
        (nn.FeatureAlphaDropout, True, "alpha"),
    ],
)
def test_each_kind_of_dropout_keeps_its_axes_scale_and_rate(module, channels: bool, scale: str) -> None:
    net = lbdrop.convert(nn.Sequential(nn.Linear(3, 3), module(0.25)), verbose=False)
    assert isinstance(net[1], LearnableDropout)
    assert (net[1].channels, net[1].scale) == (channels, scale)
    assert net[1].p == pytest.approx(0.25)


def test_summary_names_what_was_converted(capsys: pytest.CaptureFixture[str]) -> None:
    lbdrop.convert(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.25), nn.Dropout(0.0)))
    assert capsys.readouterr().out == "lbdrop: 1 dropout learned: 1 (rate 0.25); left alone, rate 0: 2\n"


def test_dropout_that_is_the_model_or_stands_in_two_places_is_converted() -> None:
    assert isinstance(lbdrop.convert(nn.Dropout(0.2), verbose=False), LearnableDropout)
    twice = nn.Dropout(0.2)
    net = lbdrop.convert(nn.Sequential(twice, nn.Linear(2, 2), twice), verbose=False)
    assert net[0] is net[2]


def test_rate_is_shared_by_the_model_or_by_named_layers() -> None:
    def net() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.2), nn.Linear(2, 2), nn.Dropout(0.3), nn.Dropout(0.4))

    one = learned_layers(lbdrop.convert(net(), per="model", verbose=False))
    assert len({id(layer.logit) for layer in one.values()}) == 1
    two = learned_layers(lbdrop.convert(net(), share=[["1", "4"]], verbose=False))
    assert two["1"].logit is two["4"].logit
    assert two["1"].logit is not two["3"].logit


def test_dropout_is_inserted_behind_named_modules() -> None:
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 5), nn.Linear(5, 2))
    x = torch.randn(4, 3, 6, 6)
    before = net(x)
    lbdrop.convert(net, after=["0", "3"], per="unit", rate=0.4, verbose=False)
    layers = learned_layers(net)
    assert [layer.units for layer in layers.values()] == [6, 5]
    assert [layer.channels for layer in layers.values()] == [True, False]
    torch.testing.assert_close(net.eval()(x), before)
    assert float(predict(net, x, samples=5).variance.max()) > 0
    assert str(lbdrop.bake(net)) == str(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5), nn.Linear(5, 2)))  # fmt: skip


def test_packed_sequences_pass_a_converted_lstm_unchanged() -> None:
    rnn = nn.LSTM(4, 5, num_layers=2, dropout=0.4, batch_first=True).eval()
    x, lengths = torch.randn(3, 6, 4), torch.tensor([2, 6, 6])
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    output, (h, c) = rnn(packed)
    ours, (our_h, our_c) = lbdrop.convert(copy.deepcopy(rnn), verbose=False)(packed)
    for a, b in [(output, ours)]:
        torch.testing.assert_close(pad_packed_sequence(a, batch_first=True), pad_packed_sequence(b, batch_first=True))
    torch.testing.assert_close((h, c), (our_h, our_c))


@pytest.mark.parametrize("batch_first", [True, False])
def test_sequence_without_a_batch_axis_passes_a_converted_lstm_unchanged(batch_first: bool) -> None:
    rnn = nn.LSTM(4, 5, num_layers=2, dropout=0.4, batch_first=batch_first).eval()
    converted, x = lbdrop.convert(copy.deepcopy(rnn), verbose=False), torch.randn(6, 4)
    torch.testing.assert_close(converted(x), rnn(x))
    assert not torch.equal(converted.train()(x)[0], rnn(x)[0])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kdim": 6, "vdim": 7},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"bias": False},
        {"batch_first": True},
    ],
)
def test_attention_equals_that_of_torch_with_every_option(settings: dict) -> None:
    original = nn.MultiheadAttention(8, 2, dropout=0.1, **settings).double().eval()
    ours = lbdrop.convert(copy.deepcopy(original), verbose=False)
    shape = lambda width: (3, 5, width) if settings.get("batch_first") else (5, 3, width)  # noqa: E731
    q = torch.randn(shape(8)).double()
    k, v = torch.randn(shape(settings.get("kdim", 8))).double(), torch.randn(shape(settings.get("vdim", 8))).double()
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    for call in (
        {},
        {"key_padding_mask": padding, "average_attn_weights": False},
        {"attn_mask": causal},
        {"attn_mask": torch.randn(6, 5, 5).double()},
    ):
        torch.testing.assert_close(ours(q, k, v, **call), original(q, k, v, **call))
    torch.testing.assert_close(ours(q[0], k[0], v[0]), original(q[0], k[0], v[0]))


def test_causal_attention_needs_no_mask() -> None:
    original = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True).double().eval()
    ours, x = lbdrop.convert(copy.deepcopy(original), verbose=False), torch.randn(3, 5, 8).double()
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x, x, x, is_causal=True), original(x, x, x, attn_mask=causal))


def test_encoder_layer_stays_off_the_fused_path_that_ignores_dropout() -> None:
    """Why the encoder layer needs care: in eval mode torch's own goes around every dropout, called or not."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True).eval()
    layer.self_attn.dropout = 0.0  # nothing to learn in the attention, yet the fused path must stay off
    lbdrop.convert(layer, verbose=False)
    assert len(learned_layers(layer)) == 3
    assert float(predict(layer, torch.randn(2, 4, 8), samples=6, kind="regression").variance.min()) > 0


class Around(nn.Module):
    """A Hugging Face model inside a module of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = llama()

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone(x).logits


def test_hugging_face_model_inside_another_module_is_converted() -> None:
    model, x = Around().eval(), torch.randint(1, 50, (4, 6))
    before = model(x)
    lbdrop.convert(model, verbose=False)
    assert len(learned_layers(model)) == 2
    assert float(predict(model, x, samples=6).variance.max()) > 0
    plain = lbdrop.bake(model)
    torch.testing.assert_close(plain(x), before, atol=2e-6, rtol=1e-5)
    assert plain.backbone.config._attn_implementation != "lbdrop"
