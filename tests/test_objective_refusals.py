"""What is wrong with a loss, a model or a setting is said and changes nothing; coupled examples are warned of."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers.one_dropout import batch, losses, network
from torch import Tensor, nn

import lbdrop
from lbdrop import Bound, DropoutError, LearnableDropout, Objective

# ------------------------------------------------------------------------------------------------------------ bad input


def unchanged(model: nn.Module, function) -> bool:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    function()
    return all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda m, x, y: F.cross_entropy(m(x), y), r"want one loss per example, shape \(batch,\), got \(\)"),
        (lambda m, x, y: None, "got NoneType"),
        (lambda m, x, y: m(x).sum().item(), "got float"),
        (lambda m, x, y: m(x), r"got \(16, 2\); use reduction='none'"),
        (lambda m, x, y: m(x).flatten(), r"want one loss for each of the 16 examples that reach dropout '2', got 32"),
        (lambda m, x, y: m(x)[:, 0] / 0 * 0, r"NaN or infinity for examples \[0, 1"),
        (lambda m, x, y: m(x[:0])[:, 0], r"want one loss per example"),
        (lambda m, x, y: m(x.long()), "|".join(["expected", "dtype"])),
    ],
)
def test_a_bad_loss_is_named_and_nothing_changes(loss, message: str) -> None:
    model, (x, y) = network(), batch()

    def step() -> None:
        with pytest.raises((DropoutError, RuntimeError), match=message):
            Objective(model, examples=10)(lambda m: loss(m, x, y))

    assert unchanged(model, step)


def test_missing_and_wrong_settings_are_named() -> None:
    model = network()
    with pytest.raises(DropoutError, match="examples: want the size of the training set"):
        Objective(model)
    with pytest.raises(DropoutError, match="at least 1, got 0"):
        Objective(model, examples=0)
    with pytest.raises(DropoutError, match="no learned dropout in Linear"):
        Objective(nn.Linear(2, 2), examples=1)
    with pytest.raises(DropoutError, match="prior: want s > 0"):
        Bound(model, 1, s=0.0)


class Dead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.used, self.dead = nn.Linear(3, 2), LearnableDropout(2), LearnableDropout(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.fc(x))


def test_dead_dropout_is_an_error_never_silence() -> None:
    model, (x, y) = Dead(), batch()
    with pytest.raises(DropoutError, match=r"never reached in a pass: \['dead'\]"):
        Objective(model, examples=10)(losses(x, y))
    with pytest.warns(UserWarning, match="never reached"):
        Objective(model, examples=10, unreached="warn")(losses(x, y)).backward()
    with pytest.raises(DropoutError, match="never reached"):
        lbdrop.predict(model, x)


# ----------------------------------------------------------------------------------------------------- coupled examples


def test_coupling_is_found_and_said() -> None:
    model = nn.Sequential(nn.Linear(3, 8), LearnableDropout(8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    x, y = batch()
    objective = Objective(model, examples=10)
    with pytest.warns(UserWarning, match="BatchNorm in training mode"):
        objective(losses(x, y))
    model.eval()  # running statistics: examples are independent again, and nothing is said
    objective(losses(x, y))
    early = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), LearnableDropout(8), nn.Linear(8, 2))
    Objective(early, examples=10)(losses(x, y))


def test_coupling_is_asked_again_for_another_loss_and_not_learned_from_one_example() -> None:
    model = nn.Sequential(nn.Linear(3, 4), LearnableDropout(4), nn.Linear(4, 2))
    objective, x = Objective(model, examples=10), torch.randn(4, 3)
    objective(lambda m: m(x).sum(1))
    with pytest.warns(UserWarning, match="masks of others"):
        objective(lambda m: (m(x) @ m(x).T).sum(1))
    normed = nn.Sequential(nn.Conv1d(3, 4, 1), LearnableDropout(4, channels=True), nn.BatchNorm1d(4), nn.Flatten())
    objective = Objective(normed, examples=10)
    objective(lambda m: m(torch.randn(1, 3, 5)).sum(1))
    with pytest.warns(UserWarning, match="masks of others"):
        objective(lambda m: m(torch.randn(3, 3, 5)).pow(2).sum(1))


def test_sequence_first_data_is_exact_either_way() -> None:
    """(time, batch, units): told the axis, examples are apart; not told, batch totals are used."""
    x = torch.randn(5, 5, 4)

    def loss(m: nn.Module) -> Tensor:
        return m(x).pow(2).sum((0, 2))

    told = nn.Sequential(nn.Linear(4, 4), LearnableDropout(4, batch_dim=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Objective(told, examples=10)(loss)
    with pytest.warns(UserWarning, match="batch_dim"):
        Objective(nn.Sequential(nn.Linear(4, 4), LearnableDropout(4)), examples=10)(loss)
