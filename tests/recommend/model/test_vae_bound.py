"""The bound against a reference, and the estimators' gradients against enumeration over all masks."""

import itertools
import math

import pytest
import torch
from helpers.small_vae import BETA, ITEMS, LATENT, TWO_USERS, batch_of, dense_values, perturbed, random_batch, small
from torch import Tensor

from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.row_objective import RowObjective

pytestmark = pytest.mark.usefixtures("double_precision")


def reference(model: VAE, values: Tensor, row: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """−log p(x|η) and KL of one user with a one-hidden-layer model; ``values`` (masks, items) written out densely."""
    e, d = model.encoder, model.decoder
    h = torch.tanh(values @ e.table.weight + e.table.bias)
    mean, log_variance = (h @ e.head.linear.weight.T + e.head.linear.bias).chunk(2, -1)
    q = torch.distributions.Normal(mean, torch.exp(log_variance / 2))
    eta = mean[0] + torch.exp(log_variance[0] / 2) * noise
    out = torch.tanh(d.layers[0].linear.weight @ eta + d.layers[0].linear.bias)
    log_p = torch.log_softmax(d.out.weight @ out + d.out.bias, -1)
    normal = torch.distributions.Normal(torch.zeros(LATENT), torch.ones(LATENT))
    if len(values) == 1:
        kl = torch.distributions.kl_divergence(
            torch.distributions.Normal(mean[0], torch.exp(log_variance[0] / 2)), normal
        )
        return -(row * log_p).sum(), kl.sum()
    mixture = q.log_prob(eta).sum(-1).exp().mean().log()
    return -(row * log_p).sum(), mixture - normal.log_prob(eta).sum()


def exact_gradient(model: VAE, noise: Tensor) -> Tensor:
    """∇α of the mean over users of the expected loss, by a sum over every set of masks."""
    s, logit = model.settings, model.masks.logit
    keep = torch.sigmoid(logit).expand(ITEMS)
    total = torch.zeros(())
    for user, likes in enumerate(TWO_USERS):
        row = torch.tensor(likes, dtype=keep.dtype)
        has = row.nonzero()[:, 0]
        for bits in itertools.product([0.0, 1.0], repeat=len(has) * (s.extra_masks + 1)):
            mask = torch.zeros(s.extra_masks + 1, ITEMS)
            mask[:, has] = torch.tensor(bits).view(s.extra_masks + 1, -1)
            chance = torch.where(mask == 1, keep, 1 - keep)[:, has].prod()
            nll, kl = reference(model, dense_values(mask, row, keep, s.normalise), row, noise[user])
            total = total + chance * (nll + BETA * kl) / len(TWO_USERS)
        p = keep[has]
        cost = (p * (2 * p).log() + (1 - p) * (2 * (1 - p)).log()).sum()
        total = total + s.mask_kl * cost / len(TWO_USERS)
    (gradient,) = torch.autograd.grad(total, logit)
    return gradient


WAYS = [("disarm", *way) for way in itertools.product(["item", "model"], [0, 2], ["after", "before"])]


@pytest.mark.parametrize(
    ("estimator", "per", "extra_masks", "normalise"),
    [*WAYS, *((each, "item", 2, "before") for each in ("arm", "double-cv-3", None))],
)
def test_gradient_of_rates_agrees_with_enumeration(estimator, per, extra_masks, normalise, monkeypatch) -> None:
    model = perturbed(small("sivae-lbd", per=per, extra_masks=extra_masks, estimator=estimator, normalise=normalise))
    noise = torch.randn(2, LATENT)
    exact = exact_gradient(model, noise)
    copies, rounds = 400, 25
    batch = batch_of(TWO_USERS * copies)
    monkeypatch.setattr(model, "latent_noise", lambda *_: noise.repeat(copies, 1))
    objective, estimates = RowObjective(model), []
    share = objective.share(batch, BETA)
    for _ in range(rounds):
        learning, plain = (
            torch.autograd.grad(objective(batch, BETA, learn=learn).total, model.masks.logit)[0]
            for learn in (True, False)
        )
        estimates.append(share * learning + (1 - share) * plain)
    assert (share < 1) == (estimator is None)
    estimates = torch.stack(estimates)
    if per == "item":
        assert torch.equal(estimates[:, [1, 4, 5]], torch.zeros(rounds, 3))  # items in nobody's row
    error = (estimates.mean(0) - exact).abs()
    assert bool((error <= 4 * estimates.std(0) / math.sqrt(rounds) + 1e-12).all())
    assert bool((exact.abs().max() > 5 * error.max()).all())  # the gradient is not lost in the noise


def test_mixture_over_many_masks_approaches_the_enumerated_density() -> None:
    model = perturbed(small("sivae-lbd", extra_masks=4000, normalise="after"))
    batch, row = batch_of(TWO_USERS[:1]), torch.tensor(TWO_USERS[0], dtype=torch.float64)
    keep = model.keep
    noise = torch.randn(1, LATENT)
    model.latent_noise = lambda *_: noise
    has = row.nonzero()[:, 0]
    with torch.no_grad():
        found = model.losses(batch, 1.0).kl
        # η comes from the first mask, which the mixture does not say: try each, one of them must fit.
        masks = torch.zeros(4, ITEMS)
        masks[:, has] = torch.tensor(list(itertools.product([0.0, 1.0], repeat=2)))
        chance = torch.where(masks == 1, keep, 1 - keep)[:, has].prod(-1)
        values = dense_values(masks, row, keep, "after")
        h = torch.tanh(values @ model.encoder.table.weight + model.encoder.table.bias)
        mean, log_variance = (h @ model.encoder.head.linear.weight.T + model.encoder.head.linear.bias).chunk(2, -1)
        eta = mean + torch.exp(log_variance / 2) * noise
        density = torch.distributions.Normal(mean, torch.exp(log_variance / 2)).log_prob(eta[:, None]).sum(-1).exp()
        kl = (density @ chance).log() - torch.distributions.Normal(0.0, 1.0).log_prob(eta).sum(-1)
    assert float((kl - found).abs().min()) < 0.1
    assert float(kl.max() - kl.min()) > 0.5  # so that the fit says something


def test_bound_of_one_mask_agrees_with_the_reference() -> None:
    model = perturbed(small("vae-drop", dropout="none"))
    batch = batch_of(TWO_USERS)
    noise = torch.randn(2, LATENT)
    model.latent_noise = lambda *_: noise
    losses = RowObjective(model)(batch, BETA)
    expected = []
    for user, likes in enumerate(TWO_USERS):
        row = torch.tensor(likes, dtype=torch.float64)
        expected.append(torch.stack(reference(model, (row / row.norm())[None], row, noise[user])))
    nll, kl = torch.stack(expected).mean(0)
    torch.testing.assert_close(losses.nll, nll.detach())
    torch.testing.assert_close(losses.kl, kl.detach())
    torch.testing.assert_close(losses.total, nll + BETA * kl)


def test_semi_implicit_bound_without_drops_equals_the_single_sample_bound() -> None:
    # The rate is so small that no mask drops anything: every extra mask gives the same Gaussian.
    model, plain = small("sivae-lbd", rate=1e-12), small("vae")
    plain.load_state_dict(model.state_dict(), strict=False)
    batch, noise = random_batch(), torch.randn(12, LATENT)
    model.latent_noise = plain.latent_noise = lambda *_: noise
    torch.testing.assert_close(model.losses(batch, BETA).nll, plain.losses(batch, BETA).nll)
    plain.latent.density = plain.latent.prior.density
    torch.testing.assert_close(model.losses(batch, BETA).kl, plain.losses(batch, BETA).kl)
