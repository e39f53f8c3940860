"""The KL of a sample against densities computed in another way: flows by their Jacobian, two levels by their joint density."""

import math

import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.latent import Latent
from lbdrop.recommend.model.networks import Encoder, Posterior
from lbdrop.recommend.model.settings import Settings

ITEMS, LATENT, USERS = 6, 2, 3
SIZES = {"hidden": 5, "latent": LATENT, "flow_hidden": 7, "pseudo_inputs": 4}


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def batch() -> Batch:
    return Rows.from_csr(csr_array([[1, 1, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 1, 1]])).batch([0, 1, 2])


def parts(masks: int = 1, **changes) -> tuple[Latent, Encoder, Posterior]:
    settings = Settings(**(SIZES | changes))
    encoder = Encoder(ITEMS, settings)
    latent = Latent(ITEMS, settings, encoder)
    for p in (*encoder.parameters(), *latent.parameters()):
        torch.nn.init.normal_(p, std=0.5)
    with torch.no_grad():
        return latent, encoder, encoder(torch.rand(masks, len(batch().item)), batch())


def normal(mean: Tensor, log_variance: Tensor) -> Normal:
    return Normal(mean, torch.exp(log_variance / 2))


def test_kl_of_flowed_samples_agrees_with_the_jacobian() -> None:
    latent, encoder, q = parts(flows=3)
    noise = torch.randn(USERS, LATENT)
    eta, kl = latent.sample(q, noise, latent.density(encoder, batch()))
    start = q.mean[0] + torch.exp(q.log_variance[0] / 2) * noise
    for user in range(USERS):
        context = q.hidden[0, user : user + 1]
        jacobian = torch.autograd.functional.jacobian(lambda x, c=context: latent.flows(x[None], c)[0][0], start[user])
        log_q = normal(q.mean[0, user], q.log_variance[0, user]).log_prob(start[user]).sum()
        log_q = log_q - torch.linalg.slogdet(jacobian).logabsdet
        torch.testing.assert_close(kl[user], log_q - Normal(0.0, 1.0).log_prob(eta[user]).sum())


def test_two_levels_with_one_mask_have_an_exact_lower_part() -> None:
    latent, encoder, q = parts(levels=2)
    noise = torch.randn(USERS, 2 * LATENT)
    eta, kl = latent.sample(q, noise, latent.density(encoder, batch()))
    below, upper = eta.split(LATENT, -1)
    torch.testing.assert_close(upper, q.mean[0] + torch.exp(q.log_variance[0] / 2) * noise[:, :LATENT])
    posterior = normal(*(part[0] for part in latent.lower.posterior(q.hidden, upper)))
    torch.testing.assert_close(below, posterior.mean + posterior.stddev * noise[:, LATENT:])
    expected = kl_divergence(normal(q.mean[0], q.log_variance[0]), Normal(0.0, 1.0)).sum(-1)
    expected = expected + kl_divergence(posterior, normal(*latent.lower.prior(upper))).sum(-1)
    torch.testing.assert_close(kl, expected)


@pytest.mark.parametrize("levels", [1, 2])
def test_masks_mix_the_joint_density_of_all_levels(levels) -> None:
    latent, encoder, q = parts(masks=4, levels=levels, extra_masks=3)
    eta, kl = latent.sample(q, torch.randn(USERS, levels * LATENT), latent.density(encoder, batch()))
    upper = eta[:, -LATENT:]
    each = normal(q.mean, q.log_variance).log_prob(upper).sum(-1)
    log_p = Normal(0.0, 1.0).log_prob(upper).sum(-1)
    if levels == 2:
        below = eta[:, :LATENT]
        each = each + normal(*latent.lower.posterior(q.hidden, upper)).log_prob(below).sum(-1)
        log_p = log_p + normal(*latent.lower.prior(upper)).log_prob(below).sum(-1)
    torch.testing.assert_close(kl, each.exp().mean(0).log() - log_p)


def test_two_levels_under_a_vamp_prior_agree_with_many_single_samples() -> None:
    latent, encoder, q = parts(levels=2, prior="vamp")
    density = latent.density(encoder, batch())
    draws = 1000
    q = type(q)(*(part.repeat(1, draws, 1) for part in q))  # all draws of all users in one batch
    with torch.no_grad():
        eta, kl = latent.sample(q, torch.randn(draws * USERS, 2 * LATENT), density)
        below, upper = eta.split(LATENT, -1)
        posterior = normal(*(part[0] for part in latent.lower.posterior(q.hidden, upper)))
        log_q = normal(q.mean[0], q.log_variance[0]).log_prob(upper).sum(-1) + posterior.log_prob(below).sum(-1)
        log_p = density(upper) + normal(*latent.lower.prior(upper)).log_prob(below).sum(-1)
    found, single = kl.view(draws, USERS), (log_q - log_p).view(draws, USERS)
    difference = found - single
    assert bool((difference.mean(0).abs() < 4 * difference.std(0) / math.sqrt(draws)).all())
    assert bool((found.std(0) < single.std(0)).all())  # the closed form has less variance


def test_sample_without_noise_is_the_mean() -> None:
    for changes in ({}, {"levels": 2}, {"flows": 2}):
        latent, encoder, q = parts(**changes)
        zero = torch.zeros(USERS, LATENT * latent.settings.levels)
        torch.testing.assert_close(latent.sample(q, zero, latent.density(encoder, batch()))[0], latent.mean(q))


def test_closed_form_needs_one_mask_and_a_normal_prior() -> None:
    def closed(**changes) -> bool:
        latent, encoder, _ = parts(**changes)
        return latent.density(encoder, batch()) is None

    assert closed()
    assert closed(levels=2)
    assert not any(closed(**c) for c in ({"flows": 1}, {"extra_masks": 1}, {"prior": "vamp"}, {"prior": "composite"}))
