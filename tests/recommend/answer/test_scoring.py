"""Scores over masks that all users share, and the best items of all users in batches."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from lbdrop.recommend.answer.scoring import Scored, best_items, scoring
from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.settings import method
from lbdrop.recommend.model.vae import VAE

USERS, ITEMS = 17, 30


def table() -> torch.Tensor:
    return torch.randn(USERS, ITEMS, generator=torch.Generator().manual_seed(4))


def from_table(batch: Batch) -> Scored:
    return Scored(table()[batch.number])


@pytest.mark.parametrize("filter_viewed", [True, False])
def test_best_items_of_all_users_come_in_batches_in_order(filter_viewed: bool) -> None:
    seen = np.random.default_rng(2).random((USERS, ITEMS)) < 0.3
    rows = Rows.from_csr(csr_array(seen.astype(np.float32)))
    chunks = list(best_items(from_table, rows, 5, batch=4, filter_viewed=filter_viewed))
    assert [len(chunk.item) for chunk in chunks] == [4, 4, 4, 4, 1]
    scores = table()
    if filter_viewed:
        scores[torch.from_numpy(seen)] = -torch.inf
    values, indices = scores.topk(5)
    assert torch.cat([chunk.item for chunk in chunks]).equal(indices)
    assert torch.cat([chunk.score for chunk in chunks]).equal(values)


def test_user_with_every_item_gets_no_recommendation() -> None:
    (chunk,) = best_items(from_table, Rows.from_csr(csr_array(np.ones((2, ITEMS)))), 3)
    assert chunk.item.eq(-1).all()


def test_spread_is_the_standard_deviation_of_log_probabilities_over_masks() -> None:
    model = VAE(5, method("vae-drop", hidden=6, latent=3)).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():  # weights large enough that masks matter
            p.add_(0.8 * torch.randn(p.shape, generator=generator))
    batch = Rows.from_csr(csr_array([[1, 0, 1, 0, 0]])).batch([0])
    found = scoring(model, 250, seed=0)(batch)
    assert found.spread is not None
    logs = model.scores(Rows.from_csr(csr_array([[1, 0, 1, 0, 0]] * 1000)).batch(range(1000)), 1)
    torch.testing.assert_close(found.spread[0], logs.std(0), rtol=0.2, atol=1e-3)
    torch.testing.assert_close(found.scores[0], logs.exp().mean(0).log(), rtol=0, atol=0.2)
    assert scoring(model, 1, seed=0)(batch).spread is None
