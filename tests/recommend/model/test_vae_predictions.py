"""Predictions are probabilities averaged over masks, repeatable without masks, and of a user's group after training."""

import itertools
import math

import pytest
import torch
from helpers.small_vae import ITEMS, TWO_USERS, batch_of, perturbed, random_batch, small
from scipy.sparse import csr_array

from lbdrop.guards.optimizers import parameter_groups
from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.model.settings import method
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.row_objective import RowObjective

pytestmark = pytest.mark.usefixtures("double_precision")


def test_scores_average_probabilities_over_masks() -> None:
    model, batch = perturbed(small("vae-drop", normalise="before")), batch_of(TWO_USERS[:1])
    expected = torch.zeros(ITEMS)
    for bits in itertools.product([0.0, 1.0], repeat=2):
        mask = torch.zeros(1, ITEMS)
        mask[0, [0, 2]] = torch.tensor(bits)
        expected += model.masked_scores(batch, mask[0, [0, 2]]).detach().exp()[0] / 4
    copies, samples = 400, 10  # of one user, each with masks of its own
    found = model.scores(batch_of(TWO_USERS[:1] * copies), samples, torch.Generator().manual_seed(0)).exp().mean(0)
    torch.testing.assert_close(found, expected, rtol=0, atol=4 * 0.5 / math.sqrt(copies * samples))


def test_scores_without_masks_are_repeatable() -> None:
    model, batch = small("sivae-lbd"), random_batch()
    assert torch.equal(model.scores(batch, 0), model.scores(batch, 0))
    assert not torch.equal(model.scores(batch, 1), model.scores(batch, 1))


def test_keep_rates_start_at_the_rate() -> None:
    assert small("sivae-lbd", rate=0.2).keep.shape == (ITEMS,)
    torch.testing.assert_close(small("sivae-lbd-one", rate=0.2).keep, torch.tensor(0.8))
    torch.testing.assert_close(small("sivae-gaussian", rate=0.2).keep, torch.full((ITEMS,), 0.8))
    assert float(small("vae").keep) == 1.0


def test_model_learns_to_recommend_within_groups() -> None:
    torch.set_default_dtype(torch.float32)
    taste = torch.arange(200) % 2
    likes = torch.rand(200, 20, generator=torch.Generator().manual_seed(0)) < 0.6
    likes &= (torch.arange(20) % 2)[None] == taste[:, None]
    rows = Rows.from_csr(csr_array(likes.int().numpy()))
    model = VAE(20, method("sivae-lbd", hidden=16, latent=4))
    objective, optimiser = RowObjective(model), torch.optim.Adam(parameter_groups(model, 0.01, lr=0.01))
    generator = torch.Generator().manual_seed(0)
    for _ in range(15):
        for batch in rows.batches(50, shuffle=True, generator=generator):
            optimiser.zero_grad()
            objective(batch, 0.1, generator).total.backward()
            optimiser.step()
    probabilities = model.scores(rows.batch(range(200)), 5, generator).exp()
    within = (probabilities * ((torch.arange(20) % 2)[None] == taste[:, None])).sum(-1)
    assert float(within.mean()) > 0.9
