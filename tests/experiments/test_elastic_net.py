"""The elastic nets of all items at once against those of scikit-learn, one item at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.linear_model import ElasticNet

from experiments.collaborative.elastic_net import SLIMAtOnce, non_negative_elastic_net
from lbdrop.recommend.linear.methods import SLIM

USERS = 60


def likes(items: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random((USERS, items)) < 0.3).astype(np.float64)


def one_at_a_time(x: np.ndarray, alpha: float, ratio: float) -> np.ndarray:
    found = np.zeros((x.shape[1], x.shape[1]))
    for item in range(x.shape[1]):
        others = x.copy()
        others[:, item] = 0
        net = ElasticNet(alpha, l1_ratio=ratio, positive=True, fit_intercept=False, tol=1e-12, max_iter=100_000)
        found[:, item] = net.fit(others, x[:, item]).coef_
    return found


@settings(max_examples=25, deadline=None)
@given(
    items=st.integers(2, 9),
    seed=st.integers(0, 1000),
    alpha=st.floats(0.003, 0.3),
    ratio=st.floats(0.01, 0.9),
)
def test_weights_equal_a_regression_for_each_item(items: int, seed: int, alpha: float, ratio: float) -> None:
    x = likes(items, seed)
    gram = torch.from_numpy(x.T @ x)
    kept = gram.clone()
    found = non_negative_elastic_net(
        gram, USERS * alpha * ratio, USERS * alpha * (1 - ratio), tolerance=1e-10, max_steps=20_000
    )
    np.testing.assert_allclose(found.numpy(), one_at_a_time(x, alpha, ratio), atol=2e-7)
    assert gram.equal(kept)


def test_slim_of_irspack_has_the_same_weights() -> None:
    x = likes(9, 3)
    expected = SLIM(alpha=0.02, l1_ratio=0.1, device="cpu").fit(csr_array(x)).state["weights"]
    found = non_negative_elastic_net(torch.from_numpy(x.T @ x), USERS * 0.02 * 0.1, USERS * 0.02 * 0.9, tolerance=1e-9)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-3)  # irspack stops at 1e-4 a pass
    assert found.max() > 0.1
    at_once = SLIMAtOnce(alpha=0.02, l1_ratio=0.1, device="cpu").fit(csr_array(x)).state["weights"]
    np.testing.assert_allclose(at_once.numpy(), found.numpy(), atol=1e-3)


def test_large_l1_and_items_without_likes_give_zero_weights() -> None:
    gram = torch.from_numpy(likes(6, 0).T @ likes(6, 0)).float()
    assert non_negative_elastic_net(gram, 100.0, 1.0).eq(0).all()
    gram[2] = gram[:, 2] = 0
    found = non_negative_elastic_net(gram, 0.1, 1.0)
    assert found.isfinite().all()
    assert found[2].eq(0).all()
    assert found[:, 2].eq(0).all()
    assert found.sum() > 0
    assert non_negative_elastic_net(torch.zeros(3, 3), 0.1, 1.0).eq(0).all()


def test_too_few_steps_warn() -> None:
    x = likes(9, 0)
    with pytest.warns(UserWarning, match="weights still move by more than 1e-12 a step after 10 steps"):
        non_negative_elastic_net(torch.from_numpy(x.T @ x), 0.1, 0.01, tolerance=1e-12, max_steps=10)


def test_matmul_precision_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_float32_matmul_precision()
    asked = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    non_negative_elastic_net(torch.eye(3), 0.1, 1.0)
    assert asked == ["high", "highest", before]
