"""The regression on neighbours: exact where all others are neighbours, best of those of its size, bounded in memory."""

import itertools

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array

from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.data.splits import Split, split_users
from lbdrop.recommend.linear import neighbours
from lbdrop.recommend.linear.closed_form import EDLAE
from lbdrop.recommend.linear.neighbours import neighbour_weights, sparse_co_occurrence, sparse_scores
from lbdrop.recommend.train.evaluate import evaluate


@pytest.fixture(scope="module")
def split() -> Split:
    return split_users(Interactions.from_frame(generate_shop(users=400, items=40, groups=4).interactions), 80)


def dense(state: dict[str, torch.Tensor], items: int) -> np.ndarray:
    return csr_array((state["weights"], state["targets"], state["starts"]), shape=(items, items)).toarray()


def test_weights_are_exact_where_all_others_are_neighbours(split: Split) -> None:
    whole = EDLAE(0.4, 10.0, device="cpu").fit(split.train.rows)
    sparse = EDLAE(0.4, 10.0, max_items=1, device="cpu").fit(split.train.rows)
    np.testing.assert_allclose(dense(sparse.state, 40), whole.state["weights"].numpy(), atol=2e-6)
    torch.testing.assert_close(sparse.state["rates"], whole.state["rates"])
    batch = Rows.from_csr(split.test.fold_in).batch(range(20))
    torch.testing.assert_close(sparse.scores(batch), whole.scores(batch), rtol=1e-4, atol=1e-5)
    indices = torch.tensor([3, 7])
    torch.testing.assert_close(sparse.similarity(indices), whole.similarity(indices), rtol=1e-4, atol=1e-5)


def test_one_neighbour_is_the_item_that_predicts_best() -> None:
    x = random_array((60, 6), density=0.4, rng=np.random.default_rng(3), format="csr")
    x = csr_array((x.toarray() != 0).astype(np.float32))
    found = dense(neighbour_weights(sparse_co_occurrence(x, None), np.full(6, 2.0), neighbours=1), 6)
    g = (x.T @ x).toarray()
    for target in range(6):
        gain = {i: g[i, target] ** 2 / (g[i, i] + 2) for i in range(6) if i != target}
        best = max(gain, key=lambda i: gain[i])
        assert found[best, target] == pytest.approx(g[best, target] / (g[best, best] + 2), rel=1e-5)
        assert np.count_nonzero(found[:, target]) == 1


def test_weights_of_entries_are_added_up_by_user() -> None:
    state = {
        "starts": torch.tensor([0, 2, 2, 3]),
        "targets": torch.tensor([1, 2, 0]),
        "weights": torch.tensor([1.0, 2.0, 5.0]),
    }
    batch = Rows.from_csr(csr_array(np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1]]))).batch([0, 1, 2])
    assert sparse_scores(state, batch).tolist() == [[0, 1, 2], [0, 0, 0], [5, 1, 2]]


def test_few_neighbours_find_nearly_as_much(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour_weights, "__defaults__", (8,))
    few = EDLAE(0.4, 10.0, max_items=1, device="cpu").fit(split.train.rows)
    whole = EDLAE(0.4, 10.0, device="cpu").fit(split.train.rows)
    measured = [evaluate(model, split.test, device="cpu").mean["ndcg@100"] for model in (few, whole)]
    assert measured[0] > measured[1] - 0.02


def test_pairs_are_bounded_by_cutting_the_longest_histories(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = split.train.rows
    monkeypatch.setattr(neighbours, "MAX_PAIRS", 2_000)
    gram = sparse_co_occurrence(rows, None)
    lengths = np.diff(rows.indptr)
    longest = max(n for n in itertools.takewhile(lambda n: (np.minimum(lengths, n) ** 2).sum() <= 2_000, range(1, 99)))
    assert gram.diagonal().sum() == np.minimum(lengths, longest).sum()
    assert (gram.toarray() <= (rows.T @ rows).toarray()).all()


def test_rates_are_learned_and_held_out_users_join(split: Split) -> None:
    learned = EDLAE(0.4, balance=0.0, max_items=1, device="cpu").fit(split.train.rows, split.validation)
    whole = EDLAE(0.4, balance=0.0, device="cpu").fit(split.train.rows, split.validation)
    assert learned.ridge is not None
    assert whole.ridge is not None
    assert learned.ridge.regularisation == pytest.approx(whole.ridge.regularisation, rel=1e-2)
    np.testing.assert_allclose(dense(learned.state, 40), whole.state["weights"].numpy(), atol=1e-3)
