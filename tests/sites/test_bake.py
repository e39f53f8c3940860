"""The gain of masks that are not inverted goes into the weights, wherever the dropout is."""

import copy

import pytest
import torch
from torch import Tensor, nn

import lbdrop
from lbdrop import DropoutError, LearnableDropout, bake
from lbdrop.dropout import learned_layers
from lbdrop.sites.graph import neighbours


def scatter_rates(model: nn.Module) -> None:
    with torch.no_grad():
        for layer in learned_layers(model).values():
            layer.logit.copy_(torch.randn_like(layer.logit))


class BehindNorm(nn.Module):
    """Nothing linear on either side of the dropout."""

    def __init__(self, channels: bool, scale) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(5) if channels else nn.LayerNorm(5)
        self.drop = LearnableDropout(5, channels=channels, scale=scale)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.drop(self.norm(x)))


class Branch(nn.Module):
    """The dropout's output is added to something else: the gain has to go into the layer before it."""

    def __init__(self, scale) -> None:
        super().__init__()
        self.fc, self.drop, self.head = nn.Linear(5, 5), LearnableDropout(5, scale=scale), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.drop(torch.relu(self.fc(x))))


class Reused(nn.Module):
    """The layer behind the dropout serves other inputs too: it must not be touched."""

    def __init__(self, scale) -> None:
        super().__init__()
        self.drop, self.fc = LearnableDropout(5, scale=scale), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(torch.tanh(self.fc(x))))


class ReadByAttribute(nn.Module):
    """The weights behind the dropout are used a second time, without their module."""

    def __init__(self, scale) -> None:
        super().__init__()
        self.fc, self.drop, self.out = nn.Linear(6, 6), LearnableDropout(6, scale=scale), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(torch.tanh(self.fc(x)))) + nn.functional.linear(x, self.out.weight)


def sequential(scale) -> dict[str, tuple[nn.Module, Tensor]]:
    drop = lambda units, **settings: LearnableDropout(units, scale=scale, **settings)  # noqa: E731
    tied = nn.Sequential(nn.Linear(5, 5), drop(5), nn.Linear(5, 5), nn.Linear(5, 5))
    tied[3].weight = tied[2].weight
    return {
        "linear": (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), drop(5), nn.Linear(5, 2)), torch.randn(3, 4)),
        "one rate": (nn.Sequential(nn.Linear(4, 5), drop(None), nn.Linear(5, 2)), torch.randn(3, 4)),
        "sequence": (nn.Sequential(nn.Linear(4, 5), drop(5), nn.Linear(5, 2)), torch.randn(3, 6, 4)),
        "through ReLU": (nn.Sequential(nn.Linear(4, 5), drop(5), nn.ReLU(), nn.Linear(5, 2)), torch.randn(3, 4)),
        "through tanh": (nn.Sequential(nn.Linear(4, 5), drop(5), nn.Tanh(), nn.Linear(5, 2)), torch.randn(3, 4)),
        "two in a row": (nn.Sequential(nn.Linear(4, 5), drop(5), drop(5), nn.Linear(5, 2)), torch.randn(3, 4)),
        "last": (nn.Sequential(nn.Linear(4, 5), drop(5)), torch.randn(3, 4)),
        "first": (nn.Sequential(drop(4), nn.Linear(4, 5)), torch.randn(3, 4)),
        "alone": (nn.Sequential(drop(4)), torch.randn(3, 4)),
        "conv": (nn.Sequential(nn.Conv2d(3, 5, 3), drop(5, channels=True), nn.MaxPool2d(2), nn.Conv2d(5, 2, 2)), torch.randn(2, 3, 8, 8)),
        "grouped": (nn.Sequential(nn.Conv2d(3, 6, 3), drop(6, channels=True), nn.Conv2d(6, 4, 2, groups=2)), torch.randn(2, 3, 8, 8)),
        "flattened": (nn.Sequential(nn.Conv2d(3, 5, 3), drop(5, channels=True), nn.Flatten(), nn.Linear(180, 2)), torch.randn(2, 3, 8, 8)),
        "transposed": (nn.Sequential(nn.Conv2d(3, 5, 3), drop(5, channels=True), nn.ConvTranspose2d(5, 2, 2)), torch.randn(2, 3, 8, 8)),
        "transposed before": (nn.Sequential(nn.ConvTranspose2d(3, 5, 2), drop(5, channels=True)), torch.randn(2, 3, 4, 4)),
        "flattened sequence": (nn.Sequential(nn.Linear(8, 6), drop(6), nn.Flatten(), nn.Linear(30, 2)), torch.randn(3, 5, 8)),
        "over time": (nn.Sequential(nn.Linear(8, 5), drop(5), nn.Conv1d(5, 2, 1)), torch.randn(3, 5, 8)),
        "pooled units": (nn.Sequential(nn.Linear(8, 6), drop(6), nn.AvgPool1d(2), nn.Linear(3, 2)), torch.randn(3, 5, 8)),
        "read by attribute": (ReadByAttribute(scale), torch.randn(3, 6)),
        "norm": (BehindNorm(False, scale), torch.randn(3, 5)),
        "norm of maps": (BehindNorm(True, scale), torch.randn(3, 5, 4, 4)),
        "branch": (Branch(scale), torch.randn(3, 5)),
        "reused": (Reused(scale), torch.randn(3, 5)),
        "tied": (tied, torch.randn(3, 5)),
    }  # fmt: skip


@pytest.mark.parametrize("scale", ["none", "alpha", "inverted"])
@pytest.mark.parametrize("name", list(sequential("none")))
def test_baked_output_equals_the_deterministic_pass(name: str, scale) -> None:
    model, x = sequential(scale)[name]
    model.eval()(x)
    scatter_rates(model)
    torch.testing.assert_close(bake(model)(x), model(x), atol=1e-6, rtol=1e-5)
    double, x = copy.deepcopy(model).double(), x.double()
    plain = bake(double)
    torch.testing.assert_close(plain(x), double(x), atol=1e-10, rtol=1e-10)
    assert not [m for m in plain.modules() if type(m).__module__.startswith("lbdrop")]


def test_gains_of_attention_and_recurrent_layers_go_into_their_own_weights() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True).double()
    lstm = nn.LSTM(8, 6, num_layers=3, dropout=0.3, bidirectional=True, batch_first=True).double()
    x = torch.randn(2, 5, 8).double()
    for model, read in [(encoder, lambda y: y), (lstm, lambda y: y[0])]:
        model = lbdrop.convert(model.eval(), per="unit", scale="none", example=x, verbose=False)
        scatter_rates(model)
        model(x)
        torch.testing.assert_close(read(bake(model)(x)), read(model(x)), atol=1e-10, rtol=1e-10)


def test_gain_of_hugging_face_attention_has_no_weight_to_go_into_and_is_refused() -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    model = lbdrop.convert(BertModel(config), scale="none", verbose=False)
    with torch.no_grad():
        model(torch.ones(1, 3, dtype=torch.long))
    with pytest.raises(DropoutError, match="want scale='inverted'"):
        bake(model)


def test_neighbours_are_found_where_only_parts_can_be_traced() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(
                nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), LearnableDropout(5), nn.Linear(5, 2)
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x) if x.sum() > 0 else -self.part(x)

    found = neighbours(Branching())["part.3"]
    assert (found.consumers, found.producer, found.between) == (["part.4"], "part.0", ["part.2", "part.1"])


def test_baked_model_is_a_copy_in_eval_mode() -> None:
    model, _ = sequential("none")["linear"]
    before = copy.deepcopy(model.state_dict())
    assert not bake(model).training
    assert model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert set(bake(model).state_dict()) == {k for k in before if "logit" not in k}


def test_model_that_never_ran_cannot_be_baked_where_the_number_of_units_is_unknown() -> None:
    model = nn.Sequential(LearnableDropout(scale="none"), nn.Tanh())
    with pytest.raises(
        DropoutError, match="0: want a known number of units to bake, got a model that never ran; run it"
    ):
        bake(model)
    x = torch.randn(3, 4)
    model.eval()(x)
    torch.testing.assert_close(bake(model)(x), model(x))


def test_model_that_keeps_results_of_its_last_pass_in_a_dictionary_is_copied() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.drop = nn.Linear(3, 3), lbdrop.LearnableDropout()
            self.kept: dict[str, list[torch.Tensor]] = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept["hidden"] = [self.fc(x)]
            return self.drop(self.kept["hidden"][0])

    model, x = Keeping(), torch.randn(2, 3)
    model(x).sum().backward()
    torch.testing.assert_close(lbdrop.bake(model)(x), model.eval()(x))
