"""One step of every method: a single backward pass for weights and rates, finite, without waiting for the device."""

import math

import pytest
import torch
from helpers.small_vae import BETA, ITEMS, LATENT, TWO_USERS, batch_of, perturbed, random_batch, small
from torch import Tensor

from lbdrop.recommend.model.row_dropout import plain_values
from lbdrop.recommend.model.settings import METHODS
from lbdrop.recommend.train.row_objective import RowObjective

pytestmark = pytest.mark.usefixtures("double_precision")

# --------------------------------------------------------------------------------------------------------- every method


@pytest.mark.parametrize("name", METHODS)
def test_one_backward_serves_weights_and_rates(name) -> None:
    model, batch = small(name), random_batch()
    losses = RowObjective(model)(batch, BETA)
    losses.total.backward()
    assert all(bool(torch.isfinite(part)) for part in losses)
    for label, p in model.named_parameters():
        assert bool(torch.isfinite(p.grad).all()) if p.requires_grad else p.grad is None, label
    if model.settings.learns_rates:
        assert bool((model.masks.logit.grad != 0).any())


@pytest.mark.parametrize("name", METHODS)
def test_scores_are_log_probabilities(name) -> None:
    model, batch = perturbed(small(name)), random_batch()
    for samples in (0, 3):
        scores = model.scores(batch, samples)
        total = scores.exp().sum(-1)
        if model.settings.likelihood == "multinomial":
            torch.testing.assert_close(total, torch.ones_like(total))
        else:
            assert bool(((scores < 0) & torch.isfinite(scores)).all())


@pytest.mark.parametrize("name", METHODS)
def test_step_never_waits_for_the_device(name, monkeypatch) -> None:
    model, batch = small(name), random_batch()
    beta, objective = torch.tensor(BETA), RowObjective(model)
    for learn in (True, False):
        objective(batch, beta, learn=learn)  # the first looks around

    def asked(*_):
        raise AssertionError("a value was copied to the host")

    for read in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy", "nonzero"):
        monkeypatch.setattr(torch.Tensor, read, asked)
    for copied in ("tensor", "as_tensor", "from_numpy"):  # a number made on the host waits for the device too
        monkeypatch.setattr(torch, copied, asked)
    objective(batch, beta).total.backward()
    objective(batch, beta, learn=False).total.backward()


@pytest.mark.parametrize("name", ["vae-drop", "sivae-lbd", "sivae-concrete", "sivae-gaussian"])
def test_empty_rows_and_fully_masked_rows_stay_finite(name) -> None:
    model = small(name, rate=0.9)
    batch = batch_of([[0] * ITEMS, [1, 0, 0, 0, 0, 0], [0] * ITEMS] * 20)
    losses = RowObjective(model)(batch, BETA)
    losses.total.backward()
    assert bool(torch.isfinite(losses.total))
    assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    assert bool(torch.isfinite(model.scores(batch, 5)).all())
    empty = batch_of([[0] * ITEMS] * 3)
    assert bool(torch.isfinite(model.scores(empty, 2)).all())
    assert bool(torch.isfinite(RowObjective(model)(empty, BETA).total))


def test_same_generator_gives_the_same_step() -> None:
    objective, batch = RowObjective(small("sivae-lbd")), random_batch()
    one, two, other = (objective(batch, BETA, torch.Generator().manual_seed(seed)).total for seed in (3, 3, 4))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_latent_noise_is_standard_normal() -> None:
    noise = small("vae", latent=100).latent_noise(random_batch(1000))
    assert abs(float(noise.mean())) < 4 / math.sqrt(noise.numel())
    assert abs(float(noise.pow(2).mean()) - 1) < 4 * math.sqrt(2 / noise.numel())


def test_latent_vectors_spread_as_the_kl_assumes() -> None:
    # The decoder is made to return η itself, so the loss shows the noise that was really added.
    model, batch = small("vae"), random_batch(4000)
    seen = []
    model.decoder.forward = lambda eta, offsets=None, width=None: (
        seen.append(eta.detach()) or eta @ torch.zeros(LATENT, ITEMS)
    )
    model.losses(batch, BETA)
    with torch.no_grad():
        q = model.encoder(plain_values(batch, "before", torch.float64)[None], batch)
        standard = (seen[0] - q.mean[0]) / torch.exp(q.log_variance[0] / 2)
    assert abs(float(standard.std()) - 1) < 4 / math.sqrt(2 * standard.numel())


def test_gamma_weighs_the_kl_by_the_users_items() -> None:
    model, batch = small("vae", gamma=0.5), batch_of(TWO_USERS)
    noise = torch.randn(2, LATENT)
    model.latent_noise = lambda *_: noise
    losses = RowObjective(model)(batch, 123.0)  # beta has no say
    torch.testing.assert_close(losses.total, losses.nll + 0.5 * 2 * losses.kl)  # both users have two items


def test_squared_weights_are_part_of_the_dae_loss() -> None:
    model, batch = small("dae", dropout="none", l2=0.3), random_batch()
    norms = model.encoder.table.weight.pow(2).sum() + model.decoder.out.weight.pow(2).sum()
    losses = RowObjective(model)(batch, 0.0)
    torch.testing.assert_close(losses.total, losses.nll + 0.3 * norms)


def test_train_only_freezes_the_other_half() -> None:
    model, batch = small("recvae"), random_batch()
    objective = RowObjective(model)
    for part, learns, rests in (("encoder", model.encoder, model.decoder), ("decoder", model.decoder, model.encoder)):
        model.zero_grad(set_to_none=True)
        model.train_only(part)
        objective(batch, BETA).total.backward()
        assert all(p.grad is not None for p in learns.parameters())
        assert all(p.grad is None for p in rests.parameters())
    noise = torch.randn(12, LATENT)
    model.latent_noise = lambda *_: noise
    # The decoder's turn drops nothing.
    assert torch.equal(objective(batch, BETA).total, objective(batch, BETA).total)
    model.train_only("both")
    assert not torch.equal(objective(batch, BETA).total, objective(batch, BETA).total)


# ------------------------------------------------------------------------------------------------- other dropout, users


def test_concrete_gradient_is_the_slope_along_the_same_uniforms() -> None:
    model, batch = perturbed(small("sivae-concrete")), random_batch()

    objective = RowObjective(model)

    def loss() -> Tensor:
        return objective(batch, BETA, torch.Generator().manual_seed(0)).total

    (gradient,) = torch.autograd.grad(loss(), model.masks.logit)
    step, item = 1e-6, 2
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            model.masks.logit[item] += sign * step
            values.append(loss())
            model.masks.logit[item] -= sign * step
    torch.testing.assert_close(gradient[item], (values[0] - values[1]) / (2 * step), rtol=1e-4, atol=1e-6)
    assert bool((gradient != 0).all())


def test_single_gaussian_rate_learns() -> None:
    model, batch = perturbed(small("sivae-gaussian", per="model", rate=0.3)), random_batch()
    model.masks.logit.data.fill_(1.0)
    (gradient,) = torch.autograd.grad(RowObjective(model)(batch, BETA).total, model.masks.logit)
    assert gradient.shape == ()
    assert float(gradient.abs()) > 0


def test_training_reaches_the_vector_of_each_user() -> None:
    model, batch = small("cdae"), random_batch()
    RowObjective(model)(batch, 0.0).total.backward()
    gradient = model.encoder.user.grad
    assert bool((gradient.abs().sum(-1) > 0).all())
    assert len(gradient.unique(dim=0)) == 12  # the mean vector would give all users the same


def test_known_users_use_their_vectors_and_others_the_mean() -> None:
    model, batch = small("cdae"), random_batch()
    with torch.no_grad():
        model.encoder.user.normal_()
    known, unknown = model.scores(batch, 0, known_users=True), model.scores(batch, 0)
    assert not torch.allclose(known, unknown)
    with torch.no_grad():
        model.encoder.user.copy_(model.encoder.user.mean(0).expand(12, -1).clone())
    torch.testing.assert_close(model.scores(batch, 0, known_users=True), unknown)
