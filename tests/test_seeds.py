"""A seed decides training and prediction to the last bit."""

import pytest
import torch
import torch.nn.functional as F
from helpers.states import state
from torch import Tensor, nn

import lbdrop
from lbdrop import LearnableDropout, Objective


def trained(seed: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), LearnableDropout(6, 0.3), nn.Linear(6, 2))
    x, y = torch.rand(8, 3), torch.arange(8) % 2
    optimizer, objective = torch.optim.Adam(model.parameters(), 0.01), Objective(model, examples=8)
    torch.manual_seed(seed)
    for _ in range(15):
        optimizer.zero_grad()
        objective(lambda m, x, y: F.cross_entropy(m(x), y, reduction="none"), x, y).backward()
        optimizer.step()
    return model, x


def weights(seed: int) -> dict[str, Tensor]:
    return state(trained(seed)[0])


def prediction(seed: int) -> dict[str, Tensor]:
    return {"mean": lbdrop.predict(*trained(seed), samples=7).mean}


@pytest.mark.parametrize("run", [weights, prediction])
def test_same_seed_gives_the_same_bits_and_another_seed_does_not(run) -> None:
    first, again, other = run(5), run(5), run(6)
    assert all(first[name].equal(again[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)
