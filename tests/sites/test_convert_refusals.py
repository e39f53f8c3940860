"""Dropout that cannot be reached is named, and so are wrong settings; the model is left as it was."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lbdrop
from lbdrop import DropoutError, LearnableDropout, Objective, predict

# -------------------------------------------------------------------------------------------------- what is not reached


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(3, 3), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.drop(self.fc(x)), 0.3, training=self.training)


class Fused(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1 if self.training else 0.0)


class DropPath(nn.Module):
    drop_prob = 0.1

    def forward(self, x: Tensor) -> Tensor:
        return x


def hidden_dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5, training=True)


class Hidden(nn.Module):
    """A functional dropout that the source of the class does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(3, 3), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return hidden_dropout(self.drop(self.fc(x)))


@pytest.mark.parametrize(
    ("inside", "named"),
    [
        (Functional, r"0 \(Functional, line \d+: F.dropout\)"),
        (Fused, "scaled_dot_product_attention"),
        (DropPath, r"0 \(DropPath\)"),
    ],
)
def test_unreachable_dropout_is_named_and_the_model_left_alone(inside, named: str) -> None:
    net = nn.Sequential(inside(), nn.Linear(3, 3), nn.Dropout(0.1))
    with pytest.raises(DropoutError, match=named):
        lbdrop.convert(net)
    assert isinstance(net[2], nn.Dropout)
    with pytest.warns(UserWarning, match=named):
        lbdrop.convert(net, unreached="warn", verbose=False)
    assert isinstance(net[2], LearnableDropout)


def test_functional_dropout_hidden_from_the_source_is_an_error_at_the_first_step() -> None:
    net = lbdrop.convert(Hidden(), verbose=False)
    with pytest.raises(DropoutError, match=r"drops out inside a function: \['dropout\(p=0.5\)'\]"):
        Objective(net, examples=5)(lambda m: m(torch.randn(5, 3)).sum(1))


def test_functional_dropout_that_is_on_at_test_time_is_an_error_in_prediction() -> None:
    with pytest.raises(DropoutError, match="drops out inside a function"):
        predict(lbdrop.convert(Hidden(), verbose=False), torch.randn(5, 3))


class SpatialDropout(nn.Dropout2d):
    """A torch layer with a forward of its own: a learned dropout in its place would do something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)


class StochasticDepth(nn.Module):
    p = 0.2

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("kind", [SpatialDropout, StochasticDepth])
def test_modules_that_only_look_like_a_dropout_of_torch_are_named(kind) -> None:
    with pytest.raises(DropoutError, match=kind.__name__):
        lbdrop.convert(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1), kind()))


class Clean(nn.Module):
    """Mentions dropout without doing any: rates of 0 are no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(F.scaled_dot_product_attention(x, x, self.drop(x)), p=0.0)


def test_functional_dropout_of_rate_zero_is_allowed() -> None:
    net = lbdrop.convert(Clean(), verbose=False)
    Objective(net, examples=4)(lambda m: m(torch.randn(4, 2, 3)).sum((1, 2)))


# --------------------------------------------------------------------------------------------- wrong settings


def test_model_without_dropout_is_an_error_with_the_next_step() -> None:
    with pytest.raises(DropoutError, match=r"no dropout in Sequential; pass after=\['0'\]"):
        lbdrop.convert(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(DropoutError, match=r"those at \['0'\] have rate 0, pass rate=0.5"):
        lbdrop.convert(nn.Sequential(nn.Dropout(0.0)))
    assert isinstance(lbdrop.convert(nn.Sequential(nn.Dropout(0.0)), rate=0.5, verbose=False)[0], LearnableDropout)


def test_wrong_settings_are_refused_and_the_model_left_alone() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    for settings, message in [
        ({"per": "unit"}, "pass example=x"),
        ({"rate": 1.5}, "rate: want"),
        ({"after": ["fc9"]}, r"got \['fc9'\]; there are \['0', '1'\]"),
    ]:
        with pytest.raises(DropoutError, match=message):
            lbdrop.convert(net, **settings)
        assert isinstance(net[1], nn.Dropout)
    with pytest.raises(DropoutError, match="keeps nothing"):
        lbdrop.convert(nn.Sequential(nn.Dropout(1.0)))
    with pytest.raises(DropoutError, match="convert a model once"):
        lbdrop.convert(lbdrop.convert(net, verbose=False))
    for group in (["0", "1"], ["1", "9"]):
        fresh = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
        with pytest.raises(DropoutError, match="share: want names"):
            lbdrop.convert(fresh, share=[group])
        assert isinstance(fresh[1], nn.Dropout)
    with pytest.raises(DropoutError, match="want a module that returns one tensor"):
        lbdrop.convert(nn.Sequential(nn.LSTM(2, 2)), after=["0"])
