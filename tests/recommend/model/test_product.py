"""A product of experts: what its scores, masks and parts are, by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lbdrop.recommend.answer.explain import leave_one_out, through_experts
from lbdrop.recommend.answer.scoring import scoring
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.linear.closed_form import EDLAE
from lbdrop.recommend.model.product import Experts, Product
from lbdrop.recommend.model.settings import method
from lbdrop.recommend.model.vae import VAE

T, LEVEL, SLOPE = 5.0, -0.3, -0.2


@pytest.fixture(scope="module")
def product() -> Product:
    data = Interactions.from_frame(generate_shop(users=80, items=20, groups=4).interactions)
    torch.manual_seed(0)
    network = VAE(len(data.items), method("sivae-lbd-dense", hidden=8, latent=4, layers=2, rate=0.3))
    made = Product(network, EDLAE(0.4, 10.0, device="cpu").fit(data.rows)).eval()
    made.weights[:] = torch.tensor([T, LEVEL, SLOPE])
    return made


@pytest.fixture(scope="module")
def batch() -> Batch:
    data = Interactions.from_frame(generate_shop(users=80, items=20, groups=4).interactions)
    return Rows.from_csr(data.rows).batch([0, 3, 11])


def added_up(product: Product, batch: Batch) -> Tensor:
    both = product.network.scores(batch, samples=0) + T * product.linear.scores(batch)
    return both * torch.exp(LEVEL + SLOPE * batch.counts.log())[:, None]


def test_score_is_the_log_of_the_experts_product(product: Product, batch: Batch) -> None:
    z, seen = added_up(product, batch), batch.dense() > 0
    expected = torch.log_softmax(z.masked_fill(seen, -math.inf), 1)
    torch.testing.assert_close(product.scores(batch)[~seen], expected[~seen])


def test_probabilities_of_unseen_items_add_up_to_one(product: Product, batch: Batch) -> None:
    scores, seen = product.scores(batch), batch.dense() > 0
    torch.testing.assert_close(scores.exp().masked_fill(seen, 0).sum(1), torch.ones(3))
    assert (scores <= 0).all()


def test_users_own_item_is_scored_as_if_it_were_open(product: Product, batch: Batch) -> None:
    z, own = added_up(product, batch), batch.item[batch.user == 0]
    open_too = (batch.dense()[0] == 0).index_fill(0, own[:1], True)
    expected = torch.log_softmax(z[0].masked_fill(~open_too, -math.inf), 0)[own[0]]
    torch.testing.assert_close(product.scores(batch)[0, own[0]], expected)


def test_user_with_every_item_has_finite_scores(product: Product) -> None:
    everything = Rows(np.array([0, 20]), torch.arange(20), 20).batch([0])
    assert torch.isfinite(product.scores(everything)).all()


def test_masks_of_each_expert_have_its_own_rate(product: Product) -> None:
    masks = product.shared_masks(4_000, seed=0)
    assert masks is not None
    assert masks[..., 0].mean() == pytest.approx(0.7, abs=0.01)
    assert masks[..., 1].mean() == pytest.approx(0.6, abs=0.01)


def test_mask_of_ones_scales_the_linear_row_alone(product: Product, batch: Batch) -> None:
    found = product.experts(batch, torch.ones(len(batch.item), 2))
    torch.testing.assert_close(found.linear, T * product.linear.scores(batch) / 0.6)


def test_score_is_of_the_pass_without_masks_and_uncertainty_of_both_experts(product: Product, batch: Batch) -> None:
    score, spread = scoring(product, 30, seed=0)(batch)
    torch.testing.assert_close(score, product.scores(batch))
    masks = product.shared_masks(30, seed=0)
    assert masks is not None
    assert spread is not None
    each = torch.stack([product.masked_scores(batch, mask[batch.item]) for mask in masks])
    torch.testing.assert_close(spread, each.std(0), rtol=1e-3, atol=1e-4)


def test_effects_through_experts_add_up_to_the_effect(product: Product, batch: Batch) -> None:
    history = batch.item[batch.user == 1].numpy()
    item = int(torch.tensor([i for i in range(20) if i not in history])[0])
    through = through_experts(product, history, item, "cpu")
    whole = leave_one_out(scoring(product, 0, 0), history, item, 20, "cpu")
    torch.testing.assert_close(through.sum(1), whole, rtol=1e-5, atol=1e-5)


def test_item_is_similar_to_what_it_makes_more_likely(product: Product) -> None:
    found = product.similarity(torch.tensor([2, 5]))
    one = product.scores(Rows(np.array([0, 1]), torch.tensor([5]), 20).batch([0]))
    none = product.scores(Rows(np.array([0, 0]), torch.zeros(0, dtype=torch.int64), 20).batch([0]))
    torch.testing.assert_close(found[1:], one - none)


def test_tensors_restore_every_score(product: Product, batch: Batch) -> None:
    again = Product(VAE(20, product.network.settings), EDLAE(device="cpu")).restore(product.tensors()).eval()
    assert torch.equal(again.scores(batch), product.scores(batch))


def test_combined_takes_experts_apart(product: Product, batch: Batch) -> None:
    network, linear = product.experts(batch)
    assert torch.equal(product.combined(Experts(network, linear), batch), product.scores(batch))
