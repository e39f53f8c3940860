"""Masks that share a pass: the scores of masks one by one, and the same bits in any batch."""

import numpy as np
import pytest
import torch

from lbdrop.recommend import Recommender
from lbdrop.recommend.answer import scoring as module
from lbdrop.recommend.answer.scoring import Scored, batches_of, padding_rows, scoring
from lbdrop.recommend.data.shop import Shop, generate_shop

METHODS = {
    "learned": Recommender(dropout="learned", epochs=1, patience=None, progress=False, device="cpu"),
    "normalised after the mask": Recommender(
        "recvae", samples=3, normalise="after", epochs=1, patience=None, progress=False, device="cpu"
    ),
    "gaussian": Recommender(dropout="gaussian", samples=4, epochs=1, patience=None, progress=False, device="cpu"),
    "one mask": Recommender(dropout="learned", samples=1, epochs=1, patience=None, progress=False, device="cpu"),
    "no dropout": Recommender(dropout="none", epochs=1, patience=None, progress=False, device="cpu"),
    "ease": Recommender("ease", device="cpu"),
    "ials": Recommender("ials", device="cpu"),
    "popularity": Recommender("popularity", device="cpu"),
}
NOTHING = np.empty(0, np.int64)


@pytest.fixture(scope="module")
def small() -> Shop:
    return generate_shop(users=60, items=30, groups=3, likes=6)


@pytest.fixture(scope="module")
def fitted() -> Recommender:
    shop = generate_shop(users=300, items=80, groups=4, likes=8)
    return Recommender(dropout="learned", epochs=2, patience=None, progress=False, device="cpu").fit(shop.interactions)


def histories(model: Recommender, count: int) -> list[np.ndarray]:
    assert model.interactions_ is not None
    rows = model.interactions_.rows
    return [np.sort(rows.indices[rows.indptr[u] : rows.indptr[u + 1]]).astype(np.int64) for u in range(count)]


def scored(model: Recommender, some: list[np.ndarray]) -> Scored:
    own = scoring(model.model_, model.samples(), model.seed)
    parts = [own(batch) for batch in batches_of(some, len(model.items_), "cpu")]
    spreads = [part.spread for part in parts if part.spread is not None]
    return Scored(torch.cat([part.scores for part in parts]), torch.cat(spreads) if spreads else None)


@pytest.mark.filterwarnings("ignore:validation")
@pytest.mark.parametrize("name", METHODS)
def test_masks_in_one_pass_score_as_masks_one_by_one(name: str, small: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    model = METHODS[name].fit(small.interactions)
    some = [*histories(model, 7), NOTHING]
    together = scored(model, some)
    monkeypatch.setattr(module, "users_at_once", lambda items: 12)  # the eight with their padding
    one_by_one = scored(model, some)
    for a, b in zip(together, one_by_one, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
    assert (together.spread is None) == (model.samples() < 2)


@pytest.mark.parametrize("users", [1, 2, 3, 5, 8, 13])
def test_scores_have_the_same_bits_in_any_batch(users: int, fitted: Recommender) -> None:
    everybody = histories(fitted, 40)
    alone = scored(fitted, [everybody[0]])
    assert alone.spread is not None
    for place in range(users):
        batch = everybody[20 : 20 + users]
        batch[place] = everybody[0]
        together = scored(fitted, batch)
        assert together.spread is not None
        assert torch.equal(together.scores[place], alone.scores[0])
        assert torch.equal(together.spread[place], alone.spread[0])


def test_what_does_not_fit_one_table_is_scored_in_pieces(fitted: Recommender, monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = histories(fitted, 10)
    whole = scored(fitted, everybody)
    monkeypatch.setattr(module, "users_at_once", lambda items: 3)
    pieces = scored(fitted, everybody)
    assert torch.equal(whole.scores, pieces.scores)
    assert whole.spread is not None
    assert pieces.spread is not None
    assert torch.equal(whole.spread, pieces.spread)


@pytest.mark.parametrize("rows", range(1, 9))
def test_padding_fills_up_to_a_multiple_of_four(rows: int) -> None:
    assert padding_rows(rows) >= 4
    assert (rows + padding_rows(rows)) % 4 == 0
