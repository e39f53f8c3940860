"""The baselines against closed forms, their own packages and data with a known structure."""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, csr_matrix, random_array

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.linear.least_squares import fold_in
from lbdrop.recommend.linear.methods import EASE, IALS, LINEAR, SLIM, WMF, Linear, Popularity


@pytest.fixture
def matrix() -> csr_array:
    drawn = random_array((40, 12), density=0.3, rng=np.random.default_rng(1), format="csr")
    return csr_array((drawn.toarray() != 0).astype(np.float32))


def checkerboard(users: int = 60, items: int = 20) -> csr_array:
    """Even users like even items, odd users odd ones; each misses two of them."""
    board = (np.arange(users)[:, None] % 2 == np.arange(items) % 2).astype(np.float32)
    random = np.random.default_rng(0)
    for user in range(users):
        board[user, random.choice(np.flatnonzero(board[user]), 2, replace=False)] = 0
    return csr_array(board)


@pytest.mark.parametrize(
    "model",
    [
        EASE(10.0),
        SLIM(alpha=0.001),
        WMF(2, 0.1, 10.0, iterations=20),
        IALS(2, unobserved=0.1, epochs=20),
    ],
    ids=lambda model: model.name,
)
def test_every_baseline_recommends_the_missing_square_of_the_checkerboard(model: Linear) -> None:
    board = checkerboard()
    unseen = checkerboard(80)[60:]  # users that were not there in training
    model.device = torch.device("cpu")
    batch = Rows.from_csr(unseen).batch(range(20))
    scores = model.fit(board).scores(batch).masked_fill(batch.dense() != 0, -torch.inf)
    best = scores.topk(2).indices
    assert best.remainder(2).equal(torch.arange(20).remainder(2)[:, None].expand(20, 2))


@pytest.mark.parametrize("regularisation", [0.5, 20.0])
def test_ease_agrees_with_the_closed_form(matrix: csr_array, regularisation: float) -> None:
    x = matrix.toarray().astype(np.float64)
    p = np.linalg.inv(x.T @ x + regularisation * np.eye(12))
    expected = np.eye(12) - p / np.diag(p)
    np.fill_diagonal(expected, 0)
    model = EASE(regularisation, dtype=torch.float64, device="cpu").fit(matrix)
    np.testing.assert_allclose(model.state["weights"].numpy(), expected, atol=1e-12)
    scores = model.scores(Rows.from_csr(matrix).batch([3, 0])).numpy()
    np.testing.assert_allclose(scores, x[[3, 0]] @ expected, atol=1e-12)
    single = EASE(regularisation, device="cpu").fit(matrix).state["weights"]
    np.testing.assert_allclose(single.numpy(), expected, atol=1e-5)


def test_ease_predicts_an_item_without_the_item_itself() -> None:
    model = EASE(1.0, device="cpu").fit(csr_array(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])))
    assert model.state["weights"].diagonal().eq(0).all()
    assert model.state["weights"][0, 1] > 0.3
    assert model.state["weights"][0, 2] == 0


@pytest.mark.filterwarnings("ignore:OpenBLAS is configured")
def test_wmf_folds_users_in_as_implicit_recalculates_them(matrix: csr_array) -> None:
    from implicit.cpu.als import AlternatingLeastSquares

    model = WMF(5, 0.1, 7.0, device="cpu").fit(matrix)
    batch = Rows.from_csr(matrix).batch(range(40))
    theirs = AlternatingLeastSquares(5, 0.1, 7.0, num_threads=1)
    theirs.item_factors, theirs.user_factors = model.state["items"].numpy(), np.zeros((40, 5), np.float32)
    expected = theirs.recalculate_user(np.arange(40), csr_matrix(matrix))
    np.testing.assert_allclose(
        fold_in(batch, model.state["items"], model.system(batch.counts, 12)).numpy(), expected, atol=1e-4
    )
    np.testing.assert_allclose(model.scores(batch).numpy(), expected @ model.state["items"].numpy().T, atol=1e-4)


def test_ials_folds_users_in_as_irspack_does(matrix: csr_array) -> None:
    from irspack import IALSRecommender

    model = IALS(5, 0.2, 0.01, 0.5, device="cpu")
    theirs = IALSRecommender(
        csr_matrix(matrix), 5, 0.2, 0.01, 0.5, random_seed=0, solver_type="CG", prediction_time_max_cg_steps=50
    )
    theirs.start_learning()
    for _ in range(3):
        theirs.run_epoch()
    model.restore({"items": torch.from_numpy(np.array(theirs.get_item_embedding()))})
    expected = theirs.compute_user_embedding(csr_matrix(matrix))
    batch = Rows.from_csr(matrix).batch(range(40))
    np.testing.assert_allclose(
        fold_in(batch, model.state["items"], model.system(batch.counts, 12)).numpy(), expected, atol=1e-4
    )


@pytest.mark.parametrize("factors", [3, 12])
def test_alternating_least_squares_reach_the_loss_of_irspack(matrix: csr_array, factors: int) -> None:
    from irspack import IALSRecommender

    ours = IALS(factors, 0.2, 0.02, epochs=60, device="cpu").fit(matrix)
    theirs = IALSRecommender(csr_matrix(matrix), factors, 0.2, 0.02, 1.0, random_seed=0, solver_type="CHOLESKY")
    theirs.start_learning()
    for _ in range(60):
        theirs.run_epoch()
    x, batch = matrix.toarray(), Rows.from_csr(matrix).batch(range(40))

    def loss(items: np.ndarray) -> float:
        model = IALS(factors, 0.2, 0.02, device="cpu").restore({"items": torch.from_numpy(np.array(items))})
        users = fold_in(batch, model.state["items"], model.system(batch.counts, 12)).numpy()
        score = users @ items.T
        ridge = [0.02 * (0.2 * n + x.sum(1 - side)) for side, n in ((0, 12), (1, 40))]
        squares = ridge[0] @ (users**2).sum(1) + ridge[1] @ (items**2).sum(1)
        return float((x * (1 - score) ** 2).sum() + 0.2 * (score**2).sum() + squares)

    assert loss(ours.state["items"].numpy()) <= 1.005 * loss(theirs.get_item_embedding())


def test_entries_with_weights_pull_that_much(matrix: csr_array) -> None:
    model = IALS(4, device="cpu").fit(matrix)
    batch = Rows.from_csr(matrix).batch(range(40))
    gone = replace(batch, value=(batch.item != 3).float())
    without = matrix.tolil()
    without[:, 3] = 0
    system = model.system(batch.counts, 12)
    found = fold_in(gone, model.state["items"], system)
    expected = fold_in(Rows.from_csr(csr_array(without)).batch(range(40)), model.state["items"], system)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_user_without_items_gets_a_vector_of_zeros(matrix: csr_array) -> None:
    model = WMF(3, 0.1, device="cpu").fit(matrix)
    empty = Rows.from_csr(csr_array((2, 12))).batch([0, 1])
    assert model.scores(empty).eq(0).all()


def test_popularity_counts_users_and_is_the_same_for_all() -> None:
    model = Popularity("cpu").fit(csr_array(np.array([[5.0, 0, 2], [0, 0, 3]])))
    assert model.scores(Rows.from_csr(csr_array((2, 3))).batch([0, 1])).tolist() == [[1, 0, 2]] * 2


def test_baselines_ignore_weights(matrix: csr_array) -> None:
    weighted = matrix.copy()
    weighted.data[:] = 4.0
    assert EASE(device="cpu").fit(weighted).state["weights"].equal(EASE(device="cpu").fit(matrix).state["weights"])


@pytest.mark.filterwarnings("ignore:blend. want held-out users")
@pytest.mark.parametrize("name", sorted(LINEAR))
def test_restored_baseline_has_the_same_scores(name: str, matrix: csr_array) -> None:
    given = {"wmf": {"factors": 4}, "ials": {"factors": 4}, "edlae": {"rate": 0.3, "regularisation": 9.0}}
    given["blend"] = given["edlae"]
    settings: dict[str, Any] = given.get(name, {})
    first = LINEAR[name](**settings, device="cpu").fit(matrix)
    second = LINEAR[name](**settings, device="cpu").restore(first.state)
    batch = Rows.from_csr(matrix).batch([1, 2])
    assert first.scores(batch).equal(second.scores(batch))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EASE(0), "regularisation: want more than 0, got 0"),
        (lambda: EASE(float("nan")), "regularisation: want a finite number, got nan"),
        (lambda: SLIM(alpha=-1), "alpha: want at least 0, got -1"),
        (lambda: SLIM(l1_ratio=1.5), "l1_ratio: want at most 1, got 1.5"),
        (lambda: SLIM(iterations=0), "iterations: want at least 1, got 0"),
        (lambda: SLIM(top=2.5), "top: want a whole number, got 2.5"),  # type: ignore[arg-type]
        (lambda: WMF(2.5), "factors: want a whole number, got 2.5"),  # type: ignore[arg-type]
        (lambda: WMF(0), "factors: want at least 1, got 0"),
        (lambda: WMF(regularisation=0.0), "regularisation: want more than 0, got 0.0"),
        (lambda: WMF(alpha=0.0), "alpha: want more than 0"),
        (lambda: WMF(iterations=0), "iterations: want at least 1"),
        (lambda: WMF(seed=-1), "seed: want at least 0"),
        (lambda: IALS(0), "factors: want at least 1, got 0"),
        (lambda: IALS(unobserved=0.0), "unobserved: want more than 0"),
        (lambda: IALS(regularisation=-1.0), "regularisation: want more than 0"),
        (lambda: IALS(frequency=float("inf")), "frequency: want a finite number"),
        (lambda: IALS(epochs=1.5), "epochs: want a whole number"),  # type: ignore[arg-type]
        (lambda: IALS(seed=2**31), "seed: want at most 2,147,483,647"),
    ],
)
def test_numbers_out_of_range_are_named_in_the_error(make: Any, words: str) -> None:
    with pytest.raises(DropoutError, match=words):
        make()


def test_errors_say_the_next_step(matrix: csr_array, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DropoutError, match="call fit"):
        EASE(device="cpu").scores(Rows.from_csr(matrix).batch([0]))
    with pytest.raises(DropoutError, match="want a scipy sparse matrix"):
        EASE(device="cpu").fit(np.ones((2, 2)))
    monkeypatch.setitem(sys.modules, "irspack", None)
    with pytest.raises(DropoutError, match=r"irspack: package not found; pip install 'lbdrop\[rivals\]'"):
        SLIM(device="cpu").fit(matrix)
