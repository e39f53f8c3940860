"""Dropout that cannot be reached is named, and so are wrong settings; the model is left as it was."""

from typing import Any

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


def hidden_dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5, training=True)


class Hidden(nn.Module):
    """A functional dropout that the source of the class does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(3, 3), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return hidden_dropout(self.drop(self.fc(x)))


def test_functional_dropout_without_an_example_is_an_error_at_the_first_step() -> None:
    net = lbdrop.convert(nn.Sequential(Functional(), nn.Linear(3, 3)), verbose=False)

    def losses(m: nn.Module) -> Tensor:
        return m(torch.randn(5, 4, 3)).sum((1, 2))

    with pytest.raises(
        DropoutError, match=r"drops out inside a function: \['dropout\(p=0.3\)'\].* convert it with example=x"
    ):
        Objective(net, examples=5)(losses)
    with pytest.warns(UserWarning, match="drops out inside a function"):
        Objective(net, examples=5, unreached="warn")(losses).backward()


def test_module_that_draws_in_a_function_is_named_and_an_example_reaches_it() -> None:
    net = nn.Sequential(Fused(), nn.Linear(3, 3), nn.Dropout(0.1))
    with pytest.raises(DropoutError, match=r"\['0 \(Fused\)'\].* convert it with example=x"):
        lbdrop.convert(net)
    assert isinstance(net[2], nn.Dropout)
    lbdrop.convert(net, example=torch.randn(2, 4, 3), verbose=False)
    assert [*lbdrop.dropout.learned_layers(net)] == ["0.learned_draws.attention0", "2"]


class FunctionalAlone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.fc(x), 0.3, training=self.training)


def test_model_with_dropout_in_functions_alone_asks_for_an_example() -> None:
    with pytest.raises(DropoutError, match="if its dropout is in a function, pass example=x"):
        lbdrop.convert(FunctionalAlone())


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


class BatchDepth(nn.Module):
    """One draw for a whole batch: no mask of an example."""

    drop_prob = 0.2

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(()).gt(self.drop_prob) / (1 - self.drop_prob) if self.training else x


class BlockDropout(nn.Module):
    """Neighbours are dropped together, as by DropBlock."""

    drop_prob = 0.2

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand(len(x), 1, *x.shape[2:], device=x.device).gt(self.drop_prob)
        return x * kept / (1 - self.drop_prob)


class UnscaledDropout(nn.Module):
    drop_prob = 0.2

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(x.shape).gt(self.drop_prob) if self.training else x


@pytest.mark.parametrize("kind", [SpatialDropout, BatchDepth, BlockDropout, UnscaledDropout])
def test_modules_that_drop_in_another_way_than_ours_are_named_and_the_model_left_alone(kind) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1), kind())
    with pytest.raises(DropoutError, match=kind.__name__):
        lbdrop.convert(net)
    assert isinstance(net[1], nn.Dropout)
    with pytest.warns(UserWarning, match=kind.__name__):
        lbdrop.convert(net, unreached="warn", verbose=False)
    assert isinstance(net[1], LearnableDropout)


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


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": "learnt"}, "scheme: want one of learned, concrete, .*, got 'learnt'"),
        ({"per": "channel"}, "per: want 'unit', 'layer' or 'model', got 'channel'"),
        ({"per": "unit"}, "pass example=x"),
        ({"rate": 1.5}, "rate: want"),
        ({"rank_gates": -1.0}, "rank_gates: want a cost of 0 or more"),
        ({"rank_gates": 1.0, "scheme": "mc"}, "rank_gates: .* and scheme='learned', got 1.0, 'mc'"),
        ({"after": ["fc9"]}, r"got \['fc9'\]; there are \['0', '1', '2'\]"),
        (
            {"after": ["2"], "per": "unit", "example": torch.zeros(1, 2)},
            "after: want a layer with out_features or out_",
        ),
        ({"share": [["0", "1"]]}, r"share: want names of converted dropouts, got \['0'\]"),
        ({"share": [["1"]], "per": "model"}, "share: want it with per='layer' or 'unit', got per='model'"),
        ({"unreached": "ignore"}, "unreached: want 'error' or 'warn', got 'ignore'"),
        ({"share": [["1", "9"]]}, r"share: want names of converted dropouts, got \['9'\]"),
    ],
)
def test_wrong_settings_are_refused_and_the_model_left_alone(settings: dict[str, Any], message: str) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.Tanh())
    with pytest.raises(DropoutError, match=message):
        lbdrop.convert(net, **settings)
    assert isinstance(net[1], nn.Dropout)


class TwoWidths(nn.Module):
    """One dropout at two widths, and another that is reached in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.late = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(x)
        x = self.drop(x[:, :3]) if len(x) > 1 else x
        return self.late(x) if self.training else x


def test_units_that_an_example_does_not_show_are_refused() -> None:
    net = TwoWidths()
    with pytest.raises(
        DropoutError, match="drop: want one number of units, got 4 and 3; give each use its own dropout"
    ):
        lbdrop.convert(net, per="unit", example=torch.zeros(2, 4))
    assert isinstance(net.drop, nn.Dropout)
    with pytest.raises(
        DropoutError, match=r"example: want one batch of inputs.* got none that shows it for \['drop', 'late'\]"
    ):
        lbdrop.convert(net, per="unit")
    unlike = nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 3), nn.Dropout(0.1))
    with pytest.raises(DropoutError, match="share: want equal numbers of units, got 3 at '2' and 4 at '0'"):
        lbdrop.convert(unlike, per="unit", example=torch.zeros(1, 4), share=[["0", "2"]])


def test_models_that_cannot_be_converted_are_refused() -> None:
    with pytest.raises(DropoutError, match="keeps nothing"):
        lbdrop.convert(nn.Sequential(nn.Dropout(1.0)))
    converted = lbdrop.convert(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), verbose=False)
    with pytest.raises(DropoutError, match="convert a model once"):
        lbdrop.convert(converted)
    with pytest.raises(DropoutError, match="want a module that returns one tensor"):
        lbdrop.convert(nn.Sequential(nn.LSTM(2, 2)), after=["0"])


class Resting(nn.Module):
    """A dropout beside a buffer that grows with its input, as tables of positions do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(2))
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.table) < x.shape[1]:
            self.table = torch.ones(x.shape[1])
        return self.drop(x) * self.table[: x.shape[1]]


def test_buffer_that_grows_in_the_example_is_put_back() -> None:
    model = lbdrop.convert(Resting(), example=torch.randn(2, 5), verbose=False)
    assert torch.equal(model.table, torch.ones(2))


def test_error_of_the_model_leaves_it_as_it_was() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.3)

        def forward(self, x: Tensor) -> Tensor:
            if not isinstance(self.drop, nn.Dropout):
                raise KeyError("mine")
            return self.drop(x)

    model = Picky()
    with pytest.raises(KeyError, match="mine"):
        lbdrop.convert(model, example=torch.randn(2, 5), verbose=False)
    assert isinstance(model.drop, nn.Dropout)


def test_error_restores_dropouts_inside_a_module_that_got_another_behind_it() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.2)), nn.Linear(3, 3))
    before = str(model)
    with pytest.raises(DropoutError, match="share: want names"):
        lbdrop.convert(model, after=["0"], share=[["nope"]], verbose=False)
    assert str(model) == before


def test_parts_in_another_mode_keep_it_where_a_dropout_is_put_behind_them() -> None:
    part = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model = nn.Sequential(part, nn.Linear(3, 3))
    part[1].eval()
    lbdrop.convert(model, after=["0"], verbose=False)
    assert [module.training for module in model[0].modules()] == [True, True, True, False, True]


def test_example_that_is_too_small_to_train_on_is_an_error_of_ours() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.2))
    with pytest.raises(
        DropoutError, match="example: want a batch that the model can be called with in training .* two or more"
    ):
        lbdrop.convert(model, example=torch.zeros(1, 4), verbose=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:.*outside of its dropouts")
@pytest.mark.parametrize("example", [None, torch.randn(4, 3)])
def test_scripted_part_that_drops_is_named_and_one_that_does_not_is_left_alone(example: Tensor | None) -> None:
    def scripted(*inside: nn.Module) -> nn.Module:
        return nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(3, 3), *inside)), nn.Dropout(0.1))

    with pytest.raises(DropoutError, match=r"cannot be reached: \['0 \(compiled by torch.jit: convert it before\)'"):
        lbdrop.convert(scripted(nn.Dropout(0.2)), example=example, verbose=False)
    with pytest.warns(UserWarning, match="compiled by torch.jit"):
        model = lbdrop.convert(scripted(nn.Dropout(0.2)), example=example, unreached="warn", verbose=False)
    Objective(model.train(), examples=9, unreached="warn")(lambda m: m(torch.randn(4, 3)).square().sum(1)).backward()
    lbdrop.convert(scripted(nn.ReLU()), example=example, verbose=False)
