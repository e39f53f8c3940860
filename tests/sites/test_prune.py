"""Removing units equals setting them to zero."""

import copy

import pytest
import torch
from torch import Tensor, nn

import lbdrop
from lbdrop import DropoutError, LearnableDropout, masks, prune
from lbdrop.dropout import learned_layers


class Residual(nn.Module):
    """The second dropout's units are added to others: they cannot be taken out, only zeroed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop_a, self.b, self.drop_b = (
            nn.Linear(6, 9),
            LearnableDropout(9),
            nn.Linear(9, 6),
            LearnableDropout(6),
        )
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.drop_b(self.b(self.drop_a(torch.relu(self.a(x))))))


def channels(units: int) -> LearnableDropout:
    return LearnableDropout(units, channels=True)


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 9), nn.GELU(), LearnableDropout(9), nn.Linear(9, 2)), (3, 4)),
    "normed": (lambda: nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.ReLU(), LearnableDropout(9), nn.Linear(9, 2)), (3, 4)),
    "deep": (lambda: nn.Sequential(nn.Linear(4, 9), LearnableDropout(9), nn.Linear(9, 8), nn.ReLU(), LearnableDropout(8), nn.Linear(8, 2)), (3, 4)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(3, 9, 3), nn.BatchNorm2d(9), nn.ReLU(), channels(9), nn.MaxPool2d(2), nn.Conv2d(9, 2, 2)), (2, 3, 8, 8)),
    "conv to linear": (lambda: nn.Sequential(nn.Conv2d(3, 9, 3), channels(9), nn.Flatten(), nn.Linear(324, 2)), (2, 3, 8, 8)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 9, 2), channels(9), nn.ConvTranspose2d(9, 2, 2)), (2, 3, 8, 8)),
    "residual": (Residual, (3, 6)),
}  # fmt: skip


@pytest.mark.parametrize("scale", ["inverted", "none"])
@pytest.mark.parametrize("name", MODELS)
def test_pruned_model_equals_zeroed_units(name: str, scale) -> None:
    kind, shape = MODELS[name]
    model, x = kind().double().eval(), torch.randn(shape).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    fixed = {}
    for at, layer in learned_layers(model).items():
        layer.scale = scale
        with torch.no_grad():
            layer.logit.copy_(torch.tensor([-5.0, 2.0, 1.0] * 3)[: layer.units])
        keep = layer.keep.detach()
        # What a fixed mask multiplies by is divided by keep again where scaling is inverted.
        fixed[at] = keep * (keep > 0.1)
        if layer.channels:
            fixed[at] = fixed[at].view(-1, 1, 1)
    smaller = prune(model, threshold=0.1)
    with masks.fixed(model, fixed):
        torch.testing.assert_close(smaller(x), model(x), atol=1e-10, rtol=1e-10)
    count = lambda m: sum(p.numel() for n, p in m.named_parameters() if "logit" not in n)  # noqa: E731
    assert count(smaller) < count(model)
    assert not [m for m in smaller.modules() if type(m).__module__.startswith("lbdrop")]


def test_feed_forward_units_of_a_transformer_layer_are_removed() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.3, batch_first=True).eval()
    x = torch.randn(2, 4, 8)
    layer = lbdrop.convert(layer, per="unit", example=x, verbose=False)
    with torch.no_grad():
        layer.dropout.logit[:20] = -9
    smaller = prune(layer)
    assert (smaller.linear1.out_features, smaller.linear2.in_features) == (12, 12)
    kept = (torch.arange(32) >= 20).float()
    with masks.fixed(layer, {"dropout": kept * layer.dropout.keep.detach()}):
        torch.testing.assert_close(smaller(x), layer(x), atol=1e-6, rtol=1e-5)


def test_units_before_a_grouped_convolution_stay_and_are_zeroed() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), channels(8), nn.Conv2d(8, 4, 3, groups=2)).eval()
    model[1].logit.data[[0, 5]] = -9
    x = torch.randn(2, 3, 9, 9)
    keep = model[1].keep.detach()
    with masks.fixed(model, {"1": (keep * (keep > 0.1)).view(-1, 1, 1)}):
        torch.testing.assert_close(prune(model)(x), model(x), atol=1e-6, rtol=1e-5)


def test_original_is_left_alone() -> None:
    model = MODELS["linear"][0]()
    model[2].logit.data[:4] = -9
    before = copy.deepcopy(model.state_dict())
    prune(model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_threshold_that_removes_every_unit_is_refused() -> None:
    model = MODELS["linear"][0]()
    model[2].logit.data.fill_(-9)
    with pytest.raises(DropoutError, match=r"would remove every unit at \['2'\]"):
        prune(model)
    with pytest.raises(DropoutError, match="threshold: want"):
        prune(model, threshold=1.5)


class Deep(nn.Module):
    """Stochastic depth: two residual branches, and layers that are skipped by chance."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.drop = nn.Linear(4, 4), DropPath()

        def forward(self, x: Tensor) -> Tensor:
            return x + self.drop(torch.tanh(self.fc(x)))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training and torch.rand([]) < 0.2:
                continue
            x = layer(x)
        return x


class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.empty(len(x), 1).bernoulli_(0.8) / 0.8 if self.training else x


def test_branches_that_are_nearly_always_dropped_are_removed() -> None:
    model, x = lbdrop.convert(Deep(), example=torch.randn(5, 4), verbose=False).eval(), torch.randn(3, 4)
    layers = learned_layers(model)
    gone = ("layers.0.drop", "layers.1.learned_draws.branch")
    for name in gone:
        layers[name].logit.data.fill_(-9.0)
    with masks.fixed(
        model, {name: torch.zeros(3, 1) if name in gone else layer.keep.expand(3, 1) for name, layer in layers.items()}
    ):
        expected = model(x)
    plain = prune(model)
    torch.testing.assert_close(plain(x), expected)
    assert len(plain.layers) == 2
    assert not learned_layers(plain)
    assert len(model.layers) == 3
