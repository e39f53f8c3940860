"""The latent priors against densities computed in another way."""

import math

import pytest
import torch
from scipy.sparse import csr_array
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence

from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.latent_priors import (
    CompositePrior,
    NormalPrior,
    VampPrior,
    gaussian_kl,
    gaussian_log_density,
)
from lbdrop.recommend.model.networks import Encoder
from lbdrop.recommend.model.settings import Settings

ITEMS, LATENT = 6, 3


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def batch() -> Batch:
    return Rows.from_csr(csr_array([[1, 1, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0]])).batch([0, 1])


def encoder(**changes) -> Encoder:
    net = Encoder(ITEMS, Settings(hidden=5, latent=LATENT, **changes))
    for p in net.parameters():
        torch.nn.init.normal_(p)
    return net


def test_closed_form_agrees_with_the_monte_carlo_kl() -> None:
    mean, log_variance = torch.randn(4, LATENT), torch.randn(4, LATENT)
    exact = gaussian_kl(mean, log_variance)
    torch.testing.assert_close(
        exact, kl_divergence(Normal(mean, torch.exp(log_variance / 2)), Normal(0.0, 1.0)).sum(-1)
    )
    draws = 100_000
    eta = mean + torch.exp(log_variance / 2) * torch.randn(draws, 4, LATENT)
    log_q = gaussian_log_density(eta, mean, log_variance).sum(-1)
    samples = log_q - NormalPrior().density(encoder(), batch())(eta)
    assert bool(((samples.mean(0) - exact).abs() < 4 * samples.std(0) / math.sqrt(draws)).all())


def test_gaussian_density_agrees_with_torch() -> None:
    eta, mean, log_variance = torch.randn(3, 4, LATENT).unbind()
    torch.testing.assert_close(
        gaussian_log_density(eta, mean, log_variance), Normal(mean, torch.exp(log_variance / 2)).log_prob(eta)
    )


def test_vamp_prior_is_an_even_mixture_of_the_pseudo_inputs_posteriors() -> None:
    net, prior = encoder(), VampPrior(ITEMS, 7)
    torch.nn.init.normal_(prior.inputs, 0.5, 0.5)  # some outside [0, 1]
    eta = torch.randn(4, LATENT)
    rows = prior.inputs.clamp(0, 1)
    q = net.of_dense(rows / rows.norm(dim=-1, keepdim=True))
    parts = Independent(Normal(q.mean, torch.exp(q.log_variance / 2)), 1)
    expected = MixtureSameFamily(Categorical(torch.ones(7)), parts).log_prob(eta)
    torch.testing.assert_close(prior.density(net, batch())(eta), expected)


def test_vamp_prior_keeps_its_digits_in_single_precision_at_tiny_variances() -> None:
    net, prior = encoder(log_variance_range=(-12.0, 4.0)), VampPrior(ITEMS, 7)
    with torch.no_grad():
        net.head.linear.weight[LATENT:] = 0
        net.head.linear.bias[LATENT:] = -12.0
        eta = prior.posteriors(net).mean[:4] + 0.003 * torch.randn(4, LATENT)
        exact = prior.density(net, batch())(eta)
        single = prior.float().density(net.float(), batch())(eta.float())
    # What is left is the rounding of η itself, blown up by 1/σ = e⁶.
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=0.2)


def test_pseudo_inputs_start_at_their_mean_and_learn() -> None:
    net, prior = encoder(), VampPrior(2000, 50)
    assert abs(float(prior.inputs.detach().mean()) - 0.05) < 4 * 0.01 / math.sqrt(prior.inputs.numel())
    prior = VampPrior(ITEMS, 7)
    prior.density(net, batch())(torch.randn(2, LATENT)).sum().backward()
    assert bool((prior.inputs.grad != 0).any(-1).all())
    assert net.table.weight.grad is not None  # the prior trains the encoder too


def test_composite_prior_mixes_three_gaussians_in_every_dimension() -> None:
    net = encoder()
    prior = CompositePrior(net)
    x = batch().dense(dtype=torch.float64)
    q = net.of_dense(x / x.norm(dim=-1, keepdim=True))
    eta = 3 * torch.randn(2, LATENT)
    mean = torch.stack([torch.zeros(2, LATENT), q.mean, torch.zeros(2, LATENT)], -1)
    deviation = torch.stack(
        [torch.ones(2, LATENT), torch.exp(q.log_variance / 2), torch.full((2, LATENT), math.exp(5))], -1
    )
    weights = Categorical(torch.tensor([0.15, 0.75, 0.10]).expand(2, LATENT, 3))
    expected = MixtureSameFamily(weights, Normal(mean, deviation)).log_prob(eta).sum(-1)
    torch.testing.assert_close(prior.density(net, batch())(eta), expected)


def test_composite_prior_follows_the_encoder_an_epoch_behind() -> None:
    net = encoder()
    prior = CompositePrior(net)
    eta = torch.randn(2, LATENT)
    before = prior.density(net, batch())(eta)
    with torch.no_grad():
        net.table.weight.add_(1.0)
    assert torch.equal(prior.density(net, batch())(eta), before)
    prior.end_of_epoch(net)
    after = prior.density(net, batch())(eta)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, CompositePrior(net).density(net, batch())(eta))
    assert not any(p.requires_grad for p in prior.parameters())
