"""The KL of a mask is that of its definition, and weighs the weights that a unit feeds."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from lbdrop import ConcreteDropout, FixedDropout, GaussianDropout, LearnableDropout, Objective
from lbdrop.masks import entropy
from lbdrop.rules.priors import bernoulli_kl, mask_kl, outgoing_norms


def test_kl_terms_equal_their_definitions() -> None:
    logit = torch.linspace(-4, 4, 9, dtype=torch.double)
    q = torch.distributions.Bernoulli(logits=logit)
    torch.testing.assert_close(entropy(logit), q.entropy())
    prior = torch.distributions.Bernoulli(probs=torch.tensor(0.3, dtype=torch.double))
    torch.testing.assert_close(bernoulli_kl(logit, 0.3), torch.distributions.kl_divergence(q, prior))


@pytest.mark.parametrize(("scale", "power"), [("none", 1), ("inverted", -1)])
def test_gaussian_kl_weighs_outgoing_weights_as_the_mask_does(scale, power: int) -> None:
    """E‖z W‖²/2s² over masks, with z of {0, 1} or {0, 1/keep}; and one rate counts once for every unit."""
    norms = torch.tensor([1.0, 4.0, 9.0])
    layer = LearnableDropout(3, 0.2, scale=scale)
    expected = (norms * 0.8**power / 2 + math.log(2) - torch.distributions.Bernoulli(0.8).entropy()).sum()
    torch.testing.assert_close(mask_kl(layer, norms, 3, 1.0, 0.5), expected)
    one = LearnableDropout(None, 0.2, scale=scale)
    torch.testing.assert_close(mask_kl(one, norms, 3, 1.0, 0.5), expected)


@pytest.mark.parametrize("kind", [LearnableDropout, ConcreteDropout, FixedDropout, GaussianDropout])
@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5, 0.7])
def test_kl_is_never_below_zero_so_that_the_bound_is_above_the_loss(kind: Any, rate: float) -> None:
    for norms in (torch.zeros(3), None):
        layer = kind(3, min(rate, 0.5) if kind is GaussianDropout else rate)
        assert float(mask_kl(layer, norms, 3, 1.0, 0.5).detach()) > -1e-5


@pytest.mark.parametrize(
    ("layer", "units"),
    [
        (nn.Linear(6, 4), 6),
        (nn.Linear(12, 4), 3),
        (nn.Conv2d(6, 4, 3), 6),
        (nn.Conv2d(6, 4, 3, groups=2), 6),
        (nn.ConvTranspose2d(6, 4, 3), 6),
    ],
)
def test_outgoing_norms_are_the_weights_that_a_unit_feeds(layer: nn.Module, units: int) -> None:
    """Found by switching units on one at a time and asking which weights get a gradient."""
    norms = outgoing_norms(layer, units)
    for unit in range(units):
        if isinstance(layer, nn.Linear):
            x = torch.zeros(1, units, layer.in_features // units)
            x[0, unit] = 1
            y = layer(x.flatten(1))
        else:
            x = torch.zeros(1, units, 6, 6)
            x[0, unit] = 1
            y = layer(x)
        weight = layer.get_parameter("weight")
        (gradient,) = torch.autograd.grad(y.sum(), weight)
        torch.testing.assert_close(norms[unit], (weight * (gradient != 0)).pow(2).sum())


@pytest.mark.parametrize("side", [8, 16])
def test_single_rate_on_maps_stands_for_channels_whatever_their_size(side: int) -> None:
    """nn.Dropout between convolutions: the KL knows the weights behind it and does not depend on the image."""
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), LearnableDropout(rate=0.3), nn.Conv2d(6, 4, 3))
    objective = Objective(model, examples=9)
    objective(lambda m: m(torch.randn(2, 3, side, side)).flatten(1).pow(2).mean(1))
    norms = model[2].weight.pow(2).sum((0, 2, 3))
    expected = (norms / 0.7 / 2).sum() + 6 * (math.log(2) - torch.distributions.Bernoulli(0.7).entropy())
    torch.testing.assert_close(objective.rule.kl(objective.layers), expected)


def test_prior_of_each_layer_is_shown() -> None:
    model = nn.Sequential(
        nn.Linear(3, 8), LearnableDropout(8), nn.ReLU(), nn.Linear(8, 4), LearnableDropout(4), nn.Tanh()
    )
    assert "'1': 'Gaussian, s=1.0', '4': 'Bernoulli, keep=0.5'" in repr(Objective(model, examples=10))


def test_gaussian_kl_follows_the_integral_it_approximates() -> None:
    """−KL = ½ log a − E log|ε| + const for ε ~ N(1, a) (Kingma et al. 2015): differences between two variances."""
    draws = torch.randn(2_000_000, dtype=torch.double)

    def exact(a: float) -> float:
        return float(-0.5 * torch.log(torch.tensor(a)) + torch.log((1 + a**0.5 * draws).abs()).mean())

    def ours(a: float) -> float:
        layer = GaussianDropout(1, a / (1 + a)).double()
        return mask_kl(layer, None, 1, 1.0, 0.5).item()

    for a, b in [(0.1, 0.3), (0.3, 0.6), (0.6, 0.95)]:
        assert ours(a) - ours(b) == pytest.approx(exact(a) - exact(b), abs=0.02)


def test_kl_of_fixed_rates_leaves_out_the_entropy_of_masks() -> None:
    norms = torch.tensor([1.0, 2.0])
    entropy = torch.distributions.Bernoulli(0.7).entropy()
    fixed, learned = FixedDropout(2, 0.3), LearnableDropout(2, 0.3)
    masks = 2 * (math.log(2) - entropy)
    torch.testing.assert_close(mask_kl(fixed, norms, 2, 1.0, 0.5) + masks, mask_kl(learned, norms, 2, 1.0, 0.5))
    torch.testing.assert_close(
        mask_kl(ConcreteDropout(2, 0.3), norms, 2, 1.0, 0.5), mask_kl(learned, norms, 2, 1.0, 0.5)
    )
