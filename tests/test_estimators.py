"""Every estimator that claims to be unbiased is held against the exact gradient over all masks."""

import warnings
from functools import cache

import pytest
import torch
from helpers.scenarios import Normed, Plain, Residual, exact_gradient, flat_gradient, squared
from torch import Tensor, nn

from lbdrop import Bound, DropoutError, Objective, estimators, masks
from lbdrop.dropout import Scale

UNBIASED = ["arm", "disarm", "rloo-2", "rloo-3", "arms-2", "arms-4", "double-cv", "double-cv-4"]
# Two rows of data for each; a row of the last is a pair of examples.
NETWORKS = {
    "plain": (Plain, (2, 3), {"drop1": 4, "drop2": 3}),
    "residual": (Residual, (2, 3), {"drop1": 5, "drop2": 5}),
    "pairs": (Normed, (2, 2, 3), {"drop1": 2, "drop2": 2}),
}


@cache
def network_and_exact_gradient(network: str, per: str, scale: Scale) -> tuple[nn.Module, Tensor, Tensor]:
    kind, shape, units = NETWORKS[network]
    torch.manual_seed(0)
    model, x = kind(per, scale).double(), torch.randn(shape, dtype=torch.double)
    return model, x, exact_gradient(model, x, units)


def estimates(model: nn.Module, x: Tensor, estimator: str, rows: int = 800, draws: int = 32) -> Tensor:
    """The logits' gradient from each of some draws, every draw a mean over as many rows."""
    objective = Objective(model, Bound(model, 1, weight=0.0), estimator=estimator)
    many = x.repeat(rows // len(x), *[1] * (x.dim() - 1))
    return torch.stack([flat_gradient(objective(squared(many)), model) for _ in range(draws)])


def standard_errors_off(drawn: Tensor, exact: Tensor) -> float:
    error = drawn.std(0) / len(drawn) ** 0.5
    return float(((drawn.mean(0) - exact).abs() / (error + 1e-12)).max())


@pytest.mark.parametrize("estimator", UNBIASED)
@pytest.mark.parametrize("per", ["unit", "layer", "shared"])
@pytest.mark.parametrize("scale", ["none", "inverted"])
@pytest.mark.parametrize("network", NETWORKS)
def test_mean_is_within_four_standard_errors_of_the_exact_gradient(
    network: str, scale: Scale, per: str, estimator: str
) -> None:
    model, x, exact = network_and_exact_gradient(network, per, scale)
    assert standard_errors_off(estimates(model, x, estimator), exact) < 4


@pytest.mark.parametrize("estimator", UNBIASED)
@pytest.mark.parametrize("per", ["unit", "layer", "shared"])
@pytest.mark.parametrize("scale", ["none", "inverted"])
def test_two_examples_that_batch_norm_couples_count_as_one(scale: Scale, per: str, estimator: str) -> None:
    """So that the mean over such batches is the exact gradient, as it is over pairs."""
    normed = Normed(per, scale, nn.BatchNorm1d(2, eps=0.5)).double()
    pairs = Normed(per, scale).double()
    pairs.load_state_dict(normed.state_dict(), strict=False)
    x = torch.randn(2, 3, dtype=torch.double)

    def gradient(model: nn.Module, x: Tensor) -> Tensor:
        generator = torch.Generator()
        objective = Objective(model, Bound(model, 1, weight=0.0), estimator=estimator, generator=generator)
        objective(squared(x))  # the first pass may draw twice, until it knows which engine the model needs
        generator.manual_seed(1)
        return flat_gradient(objective(squared(x)), model)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the loss of one example depends")
        coupled = gradient(normed, x)
    assert bool((coupled != 0).any())
    torch.testing.assert_close(coupled, gradient(pairs, x[None]))


def test_differences_of_single_examples_are_biased_where_examples_are_coupled() -> None:
    """The tests above can fail: where the two examples of a pair do not count as one, the mean is another."""
    model, x, exact = network_and_exact_gradient("pairs", "layer", "none")
    objective = Objective(model, Bound(model, 1, weight=0.0), estimator="disarm", coupled=False)
    examples = x.repeat(500, 1, 1).flatten(0, 1)
    drawn = torch.stack([flat_gradient(objective(squared(examples)), model) for _ in range(25)])
    assert standard_errors_off(drawn, exact) > 4


class _Concrete:
    """Gal's relaxation: a sigmoid of the logit plus logistic noise, differentiated path-wise."""

    def mask(self, layer, x: Tensor) -> Tensor:
        u = torch.rand_like(x)
        return torch.sigmoid((layer.spread(layer.logit, x.dim()) + torch.log(u) - torch.log1p(-u)) / 0.1)


def test_concrete_relaxation_is_biased() -> None:
    model, x = Residual("unit", "inverted").double(), torch.randn(2, 3, dtype=torch.double)
    with masks.use(model, _Concrete()):
        drawn = torch.stack([flat_gradient(squared(x.repeat(1000, 1))(model).mean(), model) for _ in range(25)])
    assert standard_errors_off(drawn, exact_gradient(model, x, {"drop1": 5, "drop2": 5})) > 4


def test_disarm_is_the_mean_of_arm_given_both_masks() -> None:
    p, f = torch.tensor(0.7), torch.tensor([2.0, 0.5])
    u = (torch.arange(10_000) + 0.5) / 10_000
    z, mirror = (u > 1 - p).float(), (u < p).float()
    per_draw = estimators.arm(u, f[:, None].expand(2, len(u)))
    for kept, kept_too in [(1, 1), (0, 1), (1, 0)]:
        here = (z == kept) & (mirror == kept_too)
        expected = estimators.disarm(torch.tensor([[kept], [kept_too]]).float(), p.view(1), f[:, None])
        torch.testing.assert_close(per_draw[here].mean(), expected[0], atol=1e-4, rtol=0)


def test_arms_of_two_masks_is_disarm() -> None:
    p = torch.tensor([0.2, 0.5, 0.9])
    z, f = estimators.copula(p, 2, (7, 3)).z, torch.randn(2, 7, 1)
    torch.testing.assert_close(estimators.arms(z, p, f), estimators.disarm(z, p, f))


def test_antithetic_draw_is_of_two_masks() -> None:
    with pytest.raises(DropoutError, match="antithetic: want n = 2, a mask and its mirror image, got 3"):
        estimators.antithetic(torch.full((5,), 0.5), 3, (5,))


@pytest.mark.parametrize("draw", [estimators.antithetic, estimators.independent, estimators.copula])
def test_every_mask_of_a_draw_keeps_at_its_rate(draw) -> None:
    keep = torch.tensor([0.05, 0.3, 0.5, 0.8, 0.99])
    z = draw(keep, 2 if draw is estimators.antithetic else 4, (200_000, 5)).z
    torch.testing.assert_close(z.mean(1), keep.expand(len(z), 5), atol=5e-3, rtol=0)


def test_copula_masks_exclude_each_other() -> None:
    z = estimators.copula(torch.tensor([0.2]), 4, (100_000, 1)).z
    assert float((z[0] * z[1]).mean()) < 0.5 * 0.2**2


def test_linear_loss_has_no_variance_under_the_double_control_variate() -> None:
    weights, p = torch.randn(6), torch.full((6,), 0.7)
    z = estimators.independent(p, 2, (50, 6)).z
    g = estimators.double_control_variate(z, p, (z * weights).sum(-1, keepdim=True), weights.expand(2, 50, 6))
    torch.testing.assert_close(g, (weights * p * (1 - p)).expand(50, 6))


@pytest.mark.parametrize("name", ["reinforce", "rloo-1", "arm-4", "", "double-cv-x"])
def test_unknown_estimator_is_named_in_the_error(name: str) -> None:
    with pytest.raises(DropoutError, match="estimator: want"):
        estimators.get(name)
