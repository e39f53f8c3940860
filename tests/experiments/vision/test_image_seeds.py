"""A seed decides the training of an image model to the last bit."""

import torch
from helpers.states import state
from torch import Tensor, nn

from experiments.vision.batches import Batches
from experiments.vision.train import Schedule, fit
from lbdrop import LearnableDropout, Objective


def fitted(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.ReLU(), LearnableDropout(6), nn.Linear(6, 2))
    images = torch.randint(0, 256, (24, 3, 4, 4), generator=torch.Generator().manual_seed(4)).to(torch.uint8)
    batches = Batches(images, torch.arange(24) % 2, 8, train=True, generator=torch.Generator())
    fit(model, Objective(model, examples=24), batches, Schedule(2, 0.01, 0.1), seed=seed, progress=False)
    return state(model)


def test_same_seed_gives_the_same_bits_and_another_seed_does_not() -> None:
    first, again, other = fitted(5), fitted(5), fitted(6)
    assert all(first[name].equal(again[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)
