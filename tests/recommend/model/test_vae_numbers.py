"""Rates stay in their range, bfloat16 does not overflow, and a seed decides every bit."""

import jaxtyping
import pytest
import torch
from helpers.small_recommender import likes, recommender
from helpers.states import state
from torch import Tensor, nn

from lbdrop.dropout import FURTHEST_LOGIT
from lbdrop.objective import Objective
from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.model.row_dropout import SparseRows, on_rows, row_dropout
from lbdrop.recommend.model.settings import method
from lbdrop.recommend.train.fit import fit


@pytest.mark.parametrize("name", ["sivae-lbd", "sivae-concrete", "sivae-gaussian"])
def test_rates_stay_in_their_range(name: str) -> None:
    model = recommender(name, rate_lr=50.0)
    fit(model, likes(), device="cpu", progress=False)
    assert model.masks.logit is not None
    least = 0.0 if name == "sivae-gaussian" else -FURTHEST_LOGIT
    logit = model.masks.logit.detach()
    assert ((logit >= least) & (logit <= FURTHEST_LOGIT)).all()
    assert ((logit == least) | (logit >= FURTHEST_LOGIT - 1e-6)).any()  # such steps would have gone further


def test_row_dropout_at_extreme_rates_stay_finite_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # its checks would take most of the time
    users, items, edge = 6, 120, FURTHEST_LOGIT + 1
    batch = Rows.from_csr(likes(users, items)).batch(range(users))
    masks = row_dropout(items, method("sivae-lbd")).bfloat16()
    masks.logit.data.copy_(torch.linspace(-edge, edge, items))
    weights = nn.Parameter(torch.randn(items, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([masks.logit, weights], lr=1e-3)
    objective = Objective(masks, examples=users, coupled=False, estimator="disarm")

    def losses(masks: SparseRows) -> Tensor:
        values = masks(torch.ones(1, len(batch.item), dtype=torch.bfloat16))[0]
        sums = torch.zeros(users, dtype=torch.bfloat16).index_add(0, batch.user, values * weights[batch.item])
        return (sums - 1).abs()

    for _ in range(1_000):
        with on_rows(batch):
            total = objective(losses)
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.isfinite(total)
    assert torch.isfinite(masks.logit).all()
    assert torch.isfinite(weights).all()
    assert masks.keep.min() < 0.01
    assert masks.keep.max() > 0.99


def test_same_seed_gives_the_same_bits_and_another_seed_does_not() -> None:
    def fitted(seed: int) -> dict[str, Tensor]:
        model = recommender()
        fit(model, likes(), device="cpu", seed=seed, progress=False)
        return state(model)

    first, again, other = fitted(5), fitted(5), fitted(6)
    assert all(first[name].equal(again[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)
