"""All masks in one pass: the scores of the library, and the same bits in any batch."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from lbdrop.recommend import Recommender, Rows
from lbdrop.recommend.answer.scoring import scoring
from lbdrop.recommend.data.shop import Shop, generate_shop
from lbdrop.serve.batch_scoring import EMPTY_HISTORY, BatchScorer, padding_rows

METHODS = {
    "learned": Recommender(dropout="learned", epochs=1, patience=None, progress=False, device="cpu"),
    "normalised after the mask": Recommender(
        "recvae", samples=3, epochs=1, patience=None, progress=False, device="cpu"
    ),
    "gaussian": Recommender(dropout="gaussian", samples=4, epochs=1, patience=None, progress=False, device="cpu"),
    "one mask": Recommender(dropout="learned", samples=1, epochs=1, patience=None, progress=False, device="cpu"),
    "no dropout": Recommender(dropout="none", epochs=1, patience=None, progress=False, device="cpu"),
    "ease": Recommender("ease", device="cpu"),
    "ials": Recommender("ials", device="cpu"),
    "popularity": Recommender("popularity", device="cpu"),
}


def histories(model: Recommender, count: int) -> list[np.ndarray]:
    assert model.interactions_ is not None
    rows = model.interactions_.rows
    return [np.sort(rows.indices[rows.indptr[u] : rows.indptr[u + 1]]).astype(np.int64) for u in range(count)]


@pytest.fixture(scope="module")
def small() -> Shop:
    return generate_shop(users=60, items=30, groups=3, likes=6)


@pytest.mark.filterwarnings("ignore:validation")
@pytest.mark.parametrize("name", METHODS)
def test_scores_and_spread_equal_scoring_mask_by_mask(name: str, small: Shop) -> None:
    model = METHODS[name].fit(small.interactions)
    assert model.interactions_ is not None
    rows = csr_array(np.concatenate([model.interactions_.rows[:7].toarray(), np.zeros((1, 30), np.float32)]))
    own = scoring(model.model_, model.samples(), model.seed)(Rows.from_csr(rows).batch(range(8)))
    found = BatchScorer(model)([*histories(model, 7), EMPTY_HISTORY])
    torch.testing.assert_close(found.scores, own.scores.float(), atol=2e-5, rtol=1e-5)
    assert (found.spread is None) == (own.spread is None)
    if found.spread is not None and own.spread is not None:
        torch.testing.assert_close(found.spread, own.spread, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("users", [1, 2, 3, 5, 8, 13])
def test_scores_have_the_same_bits_in_any_batch(users: int, fitted: Recommender) -> None:
    scorer, everybody = BatchScorer(fitted), histories(fitted, 40)
    alone = scorer([everybody[0]])
    assert alone.spread is not None
    for place in range(users):
        batch = everybody[20 : 20 + users]
        batch[place] = everybody[0]
        together = scorer(batch)
        assert together.spread is not None
        assert torch.equal(together.scores[place], alone.scores[0])
        assert torch.equal(together.spread[place], alone.spread[0])


def test_what_does_not_fit_max_histories_is_scored_in_pieces(fitted: Recommender) -> None:
    scorer, everybody = BatchScorer(fitted), histories(fitted, 10)
    whole = scorer(everybody)
    scorer.max_histories = 3
    pieces = scorer(everybody)
    assert torch.equal(whole.scores, pieces.scores)
    assert whole.spread is not None
    assert pieces.spread is not None
    assert torch.equal(whole.spread, pieces.spread)


@pytest.mark.parametrize("rows", range(1, 9))
def test_padding_fills_up_to_a_multiple_of_four(rows: int) -> None:
    assert padding_rows(rows) >= 4
    assert (rows + padding_rows(rows)) % 4 == 0
