"""The rivals: their noise, and that they serve wherever a learned dropout does."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lbdrop
from lbdrop import (
    Bound,
    ConcreteDropout,
    DropoutError,
    FixedDropout,
    GaussianDropout,
    LearnableDropout,
    Objective,
    RegularDropout,
    masks,
    predict,
)
from lbdrop.dropout import noise_layers

SCHEMES = {
    "learned": LearnableDropout,
    "concrete": ConcreteDropout,
    "gaussian": GaussianDropout,
    "mc": FixedDropout,
    "regular": RegularDropout,
}


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 8), nn.Dropout(0.2), nn.Linear(8, 3)
    )


@pytest.mark.parametrize("per", ["unit", "layer", "model"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_serves_the_same_model(scheme, per) -> None:
    x, y = torch.randn(10, 4), torch.randint(0, 3, (10,))
    model = network().eval()
    before = model(x)
    lbdrop.convert(model, scheme=scheme, per=per, example=x, verbose=False)
    layers = noise_layers(model)
    assert {type(layer) for layer in layers.values()} == {SCHEMES[scheme]}
    torch.testing.assert_close(model(x), before)  # the deterministic pass of all of them is the identity
    spread = predict(model, x, samples=10).variance
    assert bool((spread == 0).all() if scheme == "regular" else (spread > 0).all())
    model.train()
    loss = Objective(model, examples=100)(lambda m: F.cross_entropy(m(x), y, reduction="none"))
    loss.backward()
    assert all((layer.logit.grad is not None) == layer.learns for layer in layers.values())
    groups = lbdrop.parameter_groups(model)
    assert bool(groups[1]["params"]) == (scheme not in ("mc", "regular"))
    with masks.held(model):
        assert torch.equal(model(x), model(x))
    torch.testing.assert_close(lbdrop.bake(model)(x), before)


def test_fixed_rates_are_kept_and_zero_drops_nothing() -> None:
    x = torch.ones(100_000, 1)
    assert float((FixedDropout(rate=0.3)(x) == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert torch.equal(FixedDropout(rate=0.0)(x), x)
    assert not list(FixedDropout(rate=0.3).parameters())
    with pytest.raises(DropoutError, match="rate: want"):
        ConcreteDropout(rate=0.0)


def test_concrete_masks_have_the_distribution_of_the_paper() -> None:
    """Half of the mask's values lie on each side of ½ as often as Bernoulli masks keep; low temperature means 0 or 1."""
    layer = ConcreteDropout(1, 0.3, scale="none")
    z = layer(torch.ones(200_000, 1))
    assert float((z > 0.5).float().mean()) == pytest.approx(0.7, abs=0.01)
    assert float(((z < 0.05) | (z > 0.95)).float().mean()) > 0.8
    (gradient,) = torch.autograd.grad(z.mean(), layer.logit)
    step = 0.01
    up = torch.sigmoid((layer.logit + step + torch.logit(torch.linspace(0.0005, 0.9995, 1000))) / 0.1).mean()
    down = torch.sigmoid((layer.logit - step + torch.logit(torch.linspace(0.0005, 0.9995, 1000))) / 0.1).mean()
    assert gradient.item() == pytest.approx(((up - down) / (2 * step)).item(), rel=0.05)


def test_gaussian_noise_has_mean_one_and_the_variance_of_its_rate_up_to_one() -> None:
    for rate, variance in [(0.2, 0.25), (0.5, 1.0), (0.9, 1.0)]:
        z = GaussianDropout(1, rate)(torch.ones(400_000, 1)).detach()
        assert float(z.mean()) == pytest.approx(1.0, abs=0.01)
        assert float(z.var()) == pytest.approx(variance, rel=0.02)


def test_gaussian_noise_is_the_normal_quantile_of_its_uniforms_and_finite_at_both_ends() -> None:
    """What torch.rand gives are multiples of 2⁻²⁴; the mirror image of 0 is 1."""
    layer = GaussianDropout(1, 0.5)
    uniforms = torch.tensor([1, 17_000, 2**22, 2**23, 15_000_000, 2**24 - 1]) * 2.0**-24
    found = layer.mask_of(uniforms, 1).detach() - 1
    torch.testing.assert_close(found.double(), torch.special.ndtri(uniforms.double()), rtol=0, atol=2e-6)
    low, high = layer.mask_of(torch.tensor([0.0, 1.0]), 1).detach() - 1
    assert low == -high
    assert 5 < high < 6


def test_rival_takes_one_pass_a_step() -> None:
    model = lbdrop.convert(network(), scheme="concrete", verbose=False)
    objective = Objective(model, Bound(model, 1, weight=0.0), generator=torch.Generator().manual_seed(0))
    assert objective.evaluation(lambda m: m(torch.randn(6, 4)).sum(1)).losses().shape == (1, 6)


def test_scale_of_gaussian_noise_is_refused() -> None:
    with pytest.raises(DropoutError, match="scale: want none with Gaussian noise, whose mean is 1, got 'alpha'"):
        GaussianDropout(4, scale="alpha")
