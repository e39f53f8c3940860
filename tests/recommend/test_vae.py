"""The bound against enumeration over all masks, the estimators' gradients, self-tuning, and what predictions promise."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.recommend.row_masks import row_values
from lbdrop.recommend.rows import Batch, Rows
from lbdrop.recommend.settings import METHODS, Settings, method
from lbdrop.recommend.vae import VAE

ITEMS, HIDDEN, LATENT = 6, 5, 2
TWO_USERS = [[1, 0, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0]]  # two items each; nobody has the last two items
BETA = 0.7


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def batch_of(matrix: list[list[int]]) -> Batch:
    return Rows.from_csr(csr_array(matrix)).batch(range(len(matrix)))


def random_batch(users: int = 12, seed: int = 0) -> Batch:
    likes = torch.rand(users, ITEMS, generator=torch.Generator().manual_seed(seed)) < 0.5
    return batch_of(likes.int().tolist())


def small(name: str, **changes) -> VAE:
    sizes = {"hidden": HIDDEN, "latent": LATENT, "pseudo_inputs": 4, "flow_hidden": 7}
    return VAE(ITEMS, method(name, **(sizes | changes)), users=12)


def perturbed(model: VAE) -> VAE:
    """Weights large enough that masks matter, rates that differ."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.8 * torch.randn(p.shape, generator=generator))
    return model


# ----------------------------------------------------------------------------------------- the bound, written out again


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


def dense_values(mask: Tensor, row: Tensor, keep: Tensor, normalise: str) -> Tensor:
    """Masks (n, items) of a row as the encoder sees them."""
    if normalise == "before":
        return mask * row / row.norm() / keep
    masked = mask * row
    return masked / masked.norm(dim=-1, keepdim=True).clamp(min=1e-9)


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


@pytest.mark.parametrize("normalise", ["after", "before"])
@pytest.mark.parametrize("extra_masks", [0, 2])
@pytest.mark.parametrize("per", ["item", "model"])
@pytest.mark.parametrize("estimator", ["arm", "disarm"])
def test_rates_gradient_is_that_of_enumeration(estimator, per, extra_masks, normalise, monkeypatch) -> None:
    model = perturbed(small("sivae-lbd", per=per, extra_masks=extra_masks, estimator=estimator, normalise=normalise))
    noise = torch.randn(2, LATENT)
    exact = exact_gradient(model, noise)
    copies, rounds = 400, 25
    batch = batch_of(TWO_USERS * copies)
    monkeypatch.setattr(model, "latent_noise", lambda *_: noise.repeat(copies, 1))
    estimates = []
    for _ in range(rounds):
        (gradient,) = torch.autograd.grad(model.losses(batch, BETA).total, model.masks.logit)
        estimates.append(gradient)
    estimates = torch.stack(estimates)
    if per == "item":
        assert torch.equal(estimates[:, [1, 4, 5]], torch.zeros(rounds, 3))  # items in nobody's row
    error = (estimates.mean(0) - exact).abs()
    assert bool((error <= 4 * estimates.std(0) / math.sqrt(rounds) + 1e-12).all())
    assert bool((exact.abs().max() > 5 * error.max()).all())  # the gradient is not lost in the noise


def test_both_passes_train_the_weights_and_the_rates_stay_right(monkeypatch) -> None:
    model = perturbed(small("sivae-lbd", both=True))
    noise = torch.randn(2, LATENT)
    exact = exact_gradient(model, noise)
    batch = batch_of(TWO_USERS * 400)
    monkeypatch.setattr(model, "latent_noise", lambda *_: noise.repeat(400, 1))
    g = [torch.autograd.grad(model.losses(batch, BETA).total, model.masks.logit)[0] for _ in range(20)]
    estimates = torch.stack(g)
    assert bool(((estimates.mean(0) - exact).abs() <= 4 * estimates.std(0) / math.sqrt(20) + 1e-12).all())


def test_mixture_over_many_masks_approaches_the_enumerated_density() -> None:
    model = perturbed(small("sivae-lbd", extra_masks=4000, normalise="after"))
    batch, row = batch_of(TWO_USERS[:1]), torch.tensor(TWO_USERS[0], dtype=torch.float64)
    keep = model.keep
    seen = {}
    model._bound = (lambda inner: lambda *args: seen.setdefault("kl", inner(*args)))(model._bound)
    noise = torch.randn(1, LATENT)
    model.latent_noise = lambda *_: noise
    has = row.nonzero()[:, 0]
    with torch.no_grad():
        model.losses(batch, 1.0)
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
    assert float((kl - seen["kl"][1]).abs().min()) < 0.1
    assert float(kl.max() - kl.min()) > 0.5  # so that the fit says something


def test_bound_of_one_mask_is_the_reference() -> None:
    model = perturbed(small("vae-drop", dropout="none"))
    batch = batch_of(TWO_USERS)
    noise = torch.randn(2, LATENT)
    model.latent_noise = lambda *_: noise
    losses = model.losses(batch, BETA)
    expected = []
    for user, likes in enumerate(TWO_USERS):
        row = torch.tensor(likes, dtype=torch.float64)
        expected.append(torch.stack(reference(model, (row / row.norm())[None], row, noise[user])))
    nll, kl = torch.stack(expected).mean(0)
    torch.testing.assert_close(losses.nll, nll.detach())
    torch.testing.assert_close(losses.kl, kl.detach())
    torch.testing.assert_close(losses.total, nll + BETA * kl)


def test_without_dropping_the_semi_implicit_bound_is_the_single_sample_one() -> None:
    # The rate is so small that no mask drops anything: every extra mask gives the same Gaussian.
    model, plain = small("sivae-lbd", rate=1e-12), small("vae")
    plain.load_state_dict(model.state_dict(), strict=False)
    batch, noise = random_batch(), torch.randn(12, LATENT)
    model.latent_noise = plain.latent_noise = lambda *_: noise
    torch.testing.assert_close(model.losses(batch, BETA).nll, plain.losses(batch, BETA).nll)
    plain.latent.density = plain.latent.prior.density
    torch.testing.assert_close(model.losses(batch, BETA).kl, plain.losses(batch, BETA).kl)


# ------------------------------------------------------------------------------------------------------- every method


@pytest.mark.parametrize("name", METHODS)
def test_one_backward_serves_weights_and_rates(name) -> None:
    model, batch = small(name), random_batch()
    losses = model.losses(batch, BETA)
    losses.total.backward()
    assert all(bool(torch.isfinite(part)) for part in losses)
    tuned = model.settings.rule == "self-tuning"
    for label, p in model.named_parameters():
        untouched = not p.requires_grad or (tuned and label == "masks.logit")
        assert (p.grad is None) if untouched else bool(torch.isfinite(p.grad).all()), label
    if model.settings.learns_rates and not tuned:
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
def test_groups_hold_every_trained_parameter_once(name) -> None:
    model = small(name)
    grouped = [id(p) for group in model.parameter_groups(1e-3, 0.01, 0.1) for p in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in model.parameters() if p.requires_grad}
    by_name = {group["name"]: group for group in model.parameter_groups(1e-3, 0.01, 0.1)}
    assert ("rates" in by_name) == model.settings.learns_rates
    assert id(model.encoder.table.weight) in {id(p) for p in by_name["weights"]["params"]}
    if "rates" in by_name:
        assert (by_name["rates"]["lr"], by_name["rates"]["weight_decay"]) == (0.01, 0.0)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_never_asks_the_device(name, monkeypatch) -> None:
    model, batch = small(name), random_batch()
    beta = torch.tensor(BETA)

    def asked(*_):
        raise AssertionError("a value was copied to the host")

    for read in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy", "nonzero"):
        monkeypatch.setattr(torch.Tensor, read, asked)
    for copied in ("tensor", "as_tensor", "from_numpy"):  # a number made on the host waits for the device too
        monkeypatch.setattr(torch, copied, asked)
    losses = model.losses(batch, beta)
    losses.total.backward()
    if model.settings.rule == "self-tuning":
        model.held_out_loss(batch, batch).backward()


@pytest.mark.parametrize("name", ["vae-drop", "sivae-lbd", "sivae-concrete", "sivae-gaussian", "sivae-lbd-tuned"])
def test_users_without_items_and_rows_that_lose_all_stay_finite(name) -> None:
    model = small(name, rate=0.9)
    batch = batch_of([[0] * ITEMS, [1, 0, 0, 0, 0, 0], [0] * ITEMS] * 20)
    losses = model.losses(batch, BETA)
    losses.total.backward()
    assert bool(torch.isfinite(losses.total))
    assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    assert bool(torch.isfinite(model.scores(batch, 5)).all())
    empty = batch_of([[0] * ITEMS] * 3)
    assert bool(torch.isfinite(model.scores(empty, 2)).all())
    assert bool(torch.isfinite(model.losses(empty, BETA).total))


def test_the_same_generator_gives_the_same_step() -> None:
    model, batch = small("sivae-lbd"), random_batch()
    one, two, other = (model.losses(batch, BETA, torch.Generator().manual_seed(seed)).total for seed in (3, 3, 4))
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
        q = model.encoder(row_values(None, None, batch, model.settings, torch.float64), batch)
        standard = (seen[0] - q.mean[0]) / torch.exp(q.log_variance[0] / 2)
    assert abs(float(standard.std()) - 1) < 4 / math.sqrt(2 * standard.numel())


def test_gamma_weighs_the_kl_by_the_users_items() -> None:
    model, batch = small("vae", gamma=0.5), batch_of(TWO_USERS)
    noise = torch.randn(2, LATENT)
    model.latent_noise = lambda *_: noise
    losses = model.losses(batch, 123.0)  # beta has no say
    torch.testing.assert_close(losses.total, losses.nll + 0.5 * 2 * losses.kl)  # both users have two items


def test_squared_weights_are_part_of_the_dae_loss() -> None:
    model, batch = small("dae", dropout="none", l2=0.3), random_batch()
    norms = model.encoder.table.weight.pow(2).sum() + model.decoder.out.weight.pow(2).sum()
    losses = model.losses(batch, 0.0)
    torch.testing.assert_close(losses.total, losses.nll + 0.3 * norms)


def test_halves_train_by_turns() -> None:
    model, batch = small("recvae"), random_batch()
    for part, learns, rests in (("encoder", model.encoder, model.decoder), ("decoder", model.decoder, model.encoder)):
        model.zero_grad(set_to_none=True)
        model.train_only(part)
        model.losses(batch, BETA).total.backward()
        assert all(p.grad is not None for p in learns.parameters())
        assert all(p.grad is None for p in rests.parameters())
    noise = torch.randn(12, LATENT)
    model.latent_noise = lambda *_: noise
    # The decoder's turn drops nothing.
    assert torch.equal(model.losses(batch, BETA).total, model.losses(batch, BETA).total)
    model.train_only("both")
    assert not torch.equal(model.losses(batch, BETA).total, model.losses(batch, BETA).total)


# ------------------------------------------------------------------------------------------------- other dropout, users


def test_concrete_gradient_is_the_slope_along_the_same_uniforms() -> None:
    model, batch = perturbed(small("sivae-concrete")), random_batch()

    def loss() -> Tensor:
        return model.losses(batch, BETA, torch.Generator().manual_seed(0)).total

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


def test_one_gaussian_rate_learns_too() -> None:
    model, batch = perturbed(small("sivae-gaussian", per="model", rate=0.3)), random_batch()
    model.masks.logit.data.fill_(1.0)
    (gradient,) = torch.autograd.grad(model.losses(batch, BETA).total, model.masks.logit)
    assert gradient.shape == ()
    assert float(gradient.abs()) > 0


def test_training_reaches_each_users_own_vector() -> None:
    model, batch = small("cdae"), random_batch()
    model.losses(batch, 0.0).total.backward()
    gradient = model.encoder.user.grad
    assert bool((gradient.abs().sum(-1) > 0).all())
    assert len(gradient.unique(dim=0)) == 12  # the mean vector would give all users the same


def test_known_users_have_vectors_others_the_mean() -> None:
    model, batch = small("cdae"), random_batch()
    with torch.no_grad():
        model.encoder.user.normal_()
    known, unknown = model.scores(batch, 0, known_users=True), model.scores(batch, 0)
    assert not torch.allclose(known, unknown)
    with torch.no_grad():
        model.encoder.user.copy_(model.encoder.user.mean(0).expand(12, -1).clone())
    torch.testing.assert_close(model.scores(batch, 0, known_users=True), unknown)


# --------------------------------------------------------------------------------------------------------- self-tuning


@pytest.mark.parametrize("per", ["item", "model"])
@pytest.mark.parametrize("name", ["sivae-lbd-tuned", "sivae-lbd-dense-tuned"])
def test_held_out_loss_moves_the_rates_alone(name, per) -> None:
    model, fold_in, held_out = perturbed(small(name, per=per)), random_batch(), random_batch(seed=1)
    model.losses(fold_in, BETA).total.backward()
    assert model.masks.logit.grad is None
    model.zero_grad(set_to_none=True)
    loss = model.held_out_loss(fold_in, held_out, torch.Generator().manual_seed(0))
    loss.backward()
    assert {label for label, p in model.named_parameters() if p.grad is not None} == {"masks.logit"}
    assert bool((model.masks.logit.grad != 0).all())


def test_held_out_gradient_is_the_slope_along_the_offset() -> None:
    model, fold_in, held_out = perturbed(small("sivae-lbd-tuned")), random_batch(), random_batch(seed=1)
    offsets = torch.randn(12, 1)
    model._offsets = lambda *_: offsets
    loss = model.held_out_loss(fold_in, held_out)
    (gradient,) = torch.autograd.grad(loss, model.masks.logit)

    def at(shift: float) -> Tensor:
        with torch.no_grad():
            return model.nll(model(fold_in, offsets=offsets + shift), held_out).sum() / len(held_out.item)

    torch.testing.assert_close(loss.detach(), at(0.0))
    torch.testing.assert_close(gradient, (at(1e-6) - at(-1e-6)) / 2e-6, rtol=1e-5, atol=1e-8)


def test_without_a_response_rates_have_no_gradient_and_predictions_never_see_one() -> None:
    model, batch = small("sivae-lbd-tuned"), random_batch()
    model.held_out_loss(batch, batch).backward()
    assert float(model.masks.logit.grad) == 0.0
    before = model.scores(batch, 0)
    with torch.no_grad():
        for label, p in model.named_parameters():
            if "response" in label:
                p.normal_()
    assert torch.equal(model.scores(batch, 0), before)
    model.zero_grad(set_to_none=True)
    model.held_out_loss(batch, batch).backward()
    assert float(model.masks.logit.grad) != 0.0


def test_every_layer_responds() -> None:
    model, batch = small("sivae-lbd-tuned"), random_batch()
    model.losses(batch, BETA).total.backward()
    responses = [p for label, p in model.named_parameters() if "response" in label]
    assert len(responses) == 6  # stretch and shift of the encoder's layer, its heads, and the decoder's layer
    assert all(bool((p.grad != 0).any()) for p in responses)


def test_masks_are_drawn_at_each_users_own_rate() -> None:
    model, batch = small("sivae-lbd-tuned"), batch_of([[1] * ITEMS] * 2)
    offsets = torch.tensor([[-1.0], [2.0]])
    logits = model.masks.logits(batch, offsets)
    masks = model.masks.draw(20000, logits)
    kept = torch.stack([masks[:, batch.user == user].mean() for user in (0, 1)])
    torch.testing.assert_close(kept, torch.sigmoid(offsets[:, 0]), rtol=0, atol=4 * 0.5 / math.sqrt(20000 * ITEMS))


# ---------------------------------------------------------------------------------------------------------- prediction


def test_scores_average_probabilities_over_masks() -> None:
    model, batch = perturbed(small("vae-drop", normalise="before")), batch_of(TWO_USERS[:1])
    row = torch.tensor(TWO_USERS[0], dtype=torch.float64)
    expected = torch.zeros(ITEMS)
    for bits in itertools.product([0.0, 1.0], repeat=2):
        mask = torch.zeros(1, ITEMS)
        mask[0, [0, 2]] = torch.tensor(bits)
        values = dense_values(mask, row, model.keep, "before")[:, [0, 2]]
        expected += model(batch, values).detach().softmax(-1)[0] / 4
    samples = 4000
    found = model.scores(batch, samples, torch.Generator().manual_seed(0)).exp()[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=4 * 0.5 / math.sqrt(samples))


def test_scores_without_masks_are_repeatable() -> None:
    model, batch = small("sivae-lbd"), random_batch()
    assert torch.equal(model.scores(batch, 0), model.scores(batch, 0))
    assert not torch.equal(model.scores(batch, 1), model.scores(batch, 1))


def test_keep_rates_start_at_the_rate() -> None:
    assert small("sivae-lbd", rate=0.2).keep.shape == (ITEMS,)
    torch.testing.assert_close(small("sivae-lbd-one", rate=0.2).keep, torch.tensor(0.8))
    torch.testing.assert_close(small("sivae-gaussian", rate=0.2).keep, torch.full((ITEMS,), 0.8))
    assert float(small("vae").keep) == 1.0


def test_it_learns_to_recommend_within_groups() -> None:
    torch.set_default_dtype(torch.float32)
    taste = torch.arange(200) % 2
    likes = torch.rand(200, 20, generator=torch.Generator().manual_seed(0)) < 0.6
    likes &= (torch.arange(20) % 2)[None] == taste[:, None]
    rows = Rows.from_csr(csr_array(likes.int().numpy()))
    model = VAE(20, method("sivae-lbd", hidden=16, latent=4))
    optimiser = torch.optim.Adam(model.parameter_groups(0.01, 0.01))
    generator = torch.Generator().manual_seed(0)
    for _ in range(15):
        for batch in rows.batches(50, shuffle=True, generator=generator):
            optimiser.zero_grad()
            model.losses(batch, 0.1, generator).total.backward()
            optimiser.step()
    probabilities = model.scores(rows.batch(range(200)), 5, generator).exp()
    within = (probabilities * ((torch.arange(20) % 2)[None] == taste[:, None])).sum(-1)
    assert float(within.mean()) > 0.9


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variational": False, "extra_masks": 1}, "extra_masks: want variational=True"),
        ({"variational": False, "prior": "vamp"}, "prior: want variational=True"),
        ({"dropout": "none", "rule": "self-tuning"}, "want dropout='learned'"),
        ({"dropout": "none", "extra_masks": 2}, "want 0 where dropout='none'"),
        ({"dropout": "fixed", "mask_kl": 1.0}, "rates are not learned"),
        ({"dropout": "learned", "rule": "self-tuning", "mask_kl": 1.0}, "held-out data alone"),
        ({"flows": 2, "extra_masks": 1}, "want 0 with flows"),
        ({"encoder": "direct"}, "needs a hidden layer"),
        ({"rate": 1.0}, "strictly between 0 and 1"),
        ({"prior": "flat"}, "want one of normal, vamp, composite"),
        ({"hidden": 0}, "want at least 1"),
        ({"extra_masks": -1}, "want at least 0"),
        ({"both": True}, "mirrored masks"),
        ({"dropout": "none", "samples": 3}, "no masks to average"),
        ({"lr": -1.0}, "lr: want at least 0, got -1.0"),
        ({"rate_lr": -1.0}, "rate_lr: want at least 0"),
        ({"weight_decay": -1.0}, "weight_decay: want at least 0"),
        ({"gamma": -5.0}, "gamma: want at least 0"),
        ({"gamma": "x"}, "gamma: want a number, got 'x'"),
        ({"log_variance_range": (4.0, -4.0)}, "log_variance_range: want the lower number first"),
        ({"log_variance_range": (4.0,)}, "log_variance_range: want two numbers or None"),
        ({"log_variance_range": (0.0, math.nan)}, "log_variance_range: want a finite number, got nan"),
        ({"beta_cap": math.inf}, "beta_cap: want a finite number, got inf"),
        ({"rate": math.nan, "dropout": "none"}, "rate: want a finite number, got nan"),
        ({"hidden": 2.5}, "hidden: want a whole number, got 2.5"),
        ({"latent": 8.0}, "latent: want a whole number, got 8.0"),
        ({"epochs": True}, "epochs: want a whole number, got True"),
        ({"both": 1}, "both: want True or False, got 1"),
    ],
)
def test_settings_that_contradict_each_other_say_so(changes, message) -> None:
    with pytest.raises(DropoutError, match=message):
        Settings(**changes)


def test_wrong_calls_say_what_to_do() -> None:
    with pytest.raises(DropoutError, match="number of training users"):
        VAE(ITEMS, METHODS["cdae"])
    with pytest.raises(DropoutError, match="want rule='self-tuning'"):
        small("sivae-lbd").held_out_loss(random_batch(), random_batch())
    with pytest.raises(DropoutError, match="want one of dae"):
        method("sivae")
    with pytest.raises(DropoutError, match="no width"):
        method("vae", width=3)


def test_beta_rises_to_its_cap() -> None:
    settings = replace(METHODS["vae"], beta_cap=0.2, anneal_steps=1000)
    assert [settings.beta(step) for step in (0, 100, 200, 5000)] == [0.0, 0.1, 0.2, 0.2]
