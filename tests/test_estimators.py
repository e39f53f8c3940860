"""Every estimator that claims to be unbiased is held against the exact gradient over all masks."""

import warnings

import pytest
import torch
from helpers.scenarios import Normed, NormedTwice, Plain, Residual, exact_gradient, logits_of, squared
from torch import Tensor, nn

from lbdrop import Bound, DropoutError, Objective, estimators
from lbdrop.dropout import Scale, learned_layers

UNBIASED = ["arm", "disarm", "rloo-2", "rloo-3", "arms-2", "arms-4", "double-cv", "double-cv-4"]
NETWORKS = {"plain": (Plain, {"drop1": 4, "drop2": 3}), "residual": (Residual, {"drop1": 5, "drop2": 5})}


def estimates(model: nn.Module, x: Tensor, estimator: str, count: int) -> Tensor:
    objective = Objective(model, Bound(model, 1, weight=0.0), estimator=estimator)
    logits = logits_of(model)
    drawn = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the loss of one example depends")
        for _ in range(count):
            drawn.append(torch.cat([g.flatten() for g in torch.autograd.grad(objective(squared(x)), logits)]))
    return torch.stack(drawn)


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
    kind, units = NETWORKS[network]
    model, x = kind(per, scale).double(), torch.randn(2, 3, dtype=torch.double)
    drawn = estimates(model, x.repeat(64, 1), estimator, 100)
    assert standard_errors_off(drawn, exact_gradient(model, x, units)) < 4


@pytest.mark.parametrize("estimator", ["arm", "disarm", "rloo-3", "arms-4", "double-cv"])
@pytest.mark.parametrize("per", ["unit", "layer", "shared"])
@pytest.mark.parametrize("scale", ["none", "inverted"])
def test_batch_norm_behind_a_mask_leaves_no_bias(scale: Scale, per: str, estimator: str) -> None:
    model, x = NormedTwice(per, scale).double(), torch.randn(2, 3, dtype=torch.double)
    drawn = estimates(model, x, estimator, 500)
    assert standard_errors_off(drawn, exact_gradient(model, x, {"drop1": 2, "drop2": 2})) < 4


def test_per_example_differences_behind_batch_norm_are_biased() -> None:
    """The test above can fail: without batch totals it does."""
    model, x = Normed("layer", "none").double(), torch.randn(3, 3, dtype=torch.double)
    objective = Objective(model, Bound(model, 1, weight=0.0), estimator="disarm", coupled=False)
    drawn = [torch.autograd.grad(objective(squared(x)), logits_of(model))[0].flatten() for _ in range(2500)]
    assert standard_errors_off(torch.stack(drawn), exact_gradient(model, x, {"drop1": 3})) > 4


class _Concrete:
    """Gal's relaxation: a sigmoid of the logit plus logistic noise, differentiated path-wise."""

    def mask(self, layer, x: Tensor) -> Tensor:
        u = torch.rand_like(x)
        return torch.sigmoid((layer.spread(layer.logit, x.dim()) + torch.log(u) - torch.log1p(-u)) / 0.1)


def test_concrete_is_biased_where_the_others_are_not() -> None:
    model, x = Residual("unit", "inverted").double(), torch.randn(2, 3, dtype=torch.double)
    for layer in learned_layers(model).values():
        layer.source = _Concrete()
    losses = [squared(x.repeat(1000, 1))(model).mean() for _ in range(200)]
    drawn = [torch.cat([g.flatten() for g in torch.autograd.grad(loss, logits_of(model))]) for loss in losses]
    assert standard_errors_off(torch.stack(drawn), exact_gradient(model, x, {"drop1": 5, "drop2": 5})) > 4


def test_disarm_is_the_mean_of_arm_given_both_masks() -> None:
    p, f = torch.tensor(0.7), torch.tensor([2.0, 0.5])
    u = torch.rand(400_000)
    z, mirror = (u > 1 - p).float(), (u < p).float()
    per_draw = estimators.arm(u, f[:, None].expand(2, len(u)))
    for kept, kept_too in [(1, 1), (0, 1), (1, 0)]:
        here = (z == kept) & (mirror == kept_too)
        expected = estimators.disarm(torch.tensor([[kept], [kept_too]]).float(), p.view(1), f[:, None])
        torch.testing.assert_close(per_draw[here].mean(), expected[0], atol=5e-3, rtol=0)


def test_arms_of_two_masks_is_disarm() -> None:
    p = torch.tensor([0.2, 0.5, 0.9])
    z, f = estimators.copula(p, 2, (7, 3)).z, torch.randn(2, 7, 1)
    torch.testing.assert_close(estimators.arms(z, p, f), estimators.disarm(z, p, f))


@pytest.mark.parametrize("draw", [estimators.antithetic, estimators.independent, estimators.copula])
def test_every_mask_of_a_draw_keeps_at_its_rate(draw) -> None:
    keep = torch.tensor([0.05, 0.3, 0.5, 0.8, 0.99])
    z = draw(keep, 2 if draw is estimators.antithetic else 4, (200_000, 5)).z
    torch.testing.assert_close(z.mean(1), keep.expand(len(z), 5), atol=5e-3, rtol=0)


def test_copula_masks_exclude_each_other() -> None:
    z = estimators.copula(torch.tensor([0.2]), 4, (100_000, 1)).z
    assert float((z[0] * z[1]).mean()) < 0.5 * 0.2**2


def test_a_linear_loss_has_no_variance_under_the_double_control_variate() -> None:
    weights, p = torch.randn(6), torch.full((6,), 0.7)
    z = estimators.independent(p, 2, (50, 6)).z
    g = estimators.double_control_variate(z, p, (z * weights).sum(-1, keepdim=True), weights.expand(2, 50, 6))
    torch.testing.assert_close(g, (weights * p * (1 - p)).expand(50, 6))


@pytest.mark.parametrize("name", ["reinforce", "rloo-1", "arm-4", "", "double-cv-x"])
def test_an_unknown_estimator_is_named_in_the_error(name: str) -> None:
    with pytest.raises(DropoutError, match="estimator: want"):
        estimators.get(name)
