"""Where examples are in masks, and whether they are coupled, also where the first step or the ends of a batch tell nothing."""

import pytest
import torch
from torch import Tensor, nn

import lbdrop
from lbdrop import Objective
from lbdrop.masks import Layout


class Residual(nn.Module):
    """A branch that ends in ``last``, of which all outputs are 0 at first, as in many residual networks."""

    def __init__(self, last: nn.Module, frames: int = 1):
        super().__init__()
        self.fc, self.drop, self.last, self.frames = nn.Linear(3, 3), nn.Dropout(0.3), last, frames
        for parameter in last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:  # (batch, frames, units); frames go along the batch axis, a batch apart
        folded = x.transpose(0, 1).flatten(0, 1)
        branch = self.last(self.drop(torch.tanh(self.fc(folded))))
        return x + branch.unflatten(0, (self.frames, -1)).transpose(0, 1)


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x).flatten(1).sum(1) - 1).square()


def trained(model: nn.Module, x: Tensor, steps: int) -> Objective:
    objective = Objective(model, examples=100, estimator="double-cv-4")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(losses, x).backward()
        optimizer.step()
    return objective


def test_frames_behind_weights_that_start_at_zero_are_found_later() -> None:
    model = lbdrop.convert(Residual(nn.Linear(3, 3), frames=2), verbose=False)
    objective = trained(model, torch.randn(4, 2, 3), 4)
    assert [*objective.runner._layouts.values()] == [[Layout(0, interleaved=True)]]


def test_coupling_behind_weights_that_start_at_zero_is_found_later() -> None:
    model = lbdrop.convert(Residual(nn.BatchNorm1d(3)), verbose=False)
    with pytest.warns(UserWarning, match="the loss of one example depends on the masks of others"):
        trained(model, torch.randn(6, 1, 3), 4)


def test_coupling_between_examples_that_are_neither_first_nor_last_is_found() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.links = nn.Dropout(0.3), torch.eye(6)
            self.links[1:5, 1:5] = 0.25

        def forward(self, x: Tensor) -> Tensor:
            return self.links @ self.drop(x)

    objective = Objective(lbdrop.convert(Graph(), verbose=False), examples=100, estimator="double-cv-4")
    with pytest.warns(UserWarning, match="the loss of one example depends on the masks of others"):
        objective(losses, torch.randn(6, 3)).backward()
