"""A regression at its least squares behind a dropout of its inputs, where the cost of noise has a closed form."""

import torch
from torch import Tensor, nn

import lbdrop

Pair = tuple[Tensor, Tensor]


def squares(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x).squeeze(1) - y) ** 2


def linear(inputs: int, examples: int, noise: float, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A regression at its least squares, behind a dropout of its inputs."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(inputs, generator=generator, dtype=torch.float64)  # first: the same for any number of examples
    x = torch.randn(examples, inputs, generator=generator, dtype=torch.float64)
    y = x @ truth + noise * torch.randn(examples, generator=generator, dtype=torch.float64)
    model = nn.Sequential(lbdrop.LearnableDropout(rate=0.3), nn.Linear(inputs, 1, bias=False)).double()
    model[1].weight.data = torch.linalg.lstsq(x, y[:, None]).solution.T.clone()
    return model, x, y


def over_fitted(share: float, copies: int = 1) -> tuple[nn.Module, Pair, Pair, float]:
    """Twenty inputs, sixty examples, at least squares; the odds at which noise costs this share of the gap.

    With copies of each example a measurement has as many masks of it, and so is as much more certain.
    """
    torch.manual_seed(0)
    model, x, y = linear(20, 60, 3.0)
    _, more, answers = linear(20, 4060, 3.0)
    more, answers = more[60:], answers[60:]
    gap = (squares(model[1], more, answers).mean() - squares(model[1], x, y).mean()).detach()
    unit_cost = (x * model[1].weight.detach()).square().sum(1).mean()
    return model, (x.repeat(copies, 1), y.repeat(copies)), (more, answers), float(share * gap / unit_cost)
