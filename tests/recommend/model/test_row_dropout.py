"""Masks of a row's items: their frequencies, their length, their KL, and gradients as they were before they had an engine."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.small_vae import batch_of, random_batch, small
from scipy.sparse import csr_array
from torch import Tensor

import lbdrop
from lbdrop import DropoutError
from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.row_dropout import SparseRows, on_rows, plain_values, row_dropout
from lbdrop.recommend.model.settings import Settings
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.row_objective import RowObjective
from lbdrop.rivals import ConcreteDropout, GaussianDropout
from lbdrop.rules.priors import AT_VARIANCE_1, bernoulli_kl, mask_kl

GATE: dict[str, dict[str, list[float]]] = json.loads(Path(__file__).with_name("row_gradients.json").read_text())
"""Made by the recommender's own estimators and masks, the day before they were replaced by the library's (63e55c1)."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "disarm, a rate an item": ("sivae-lbd", {"estimator": "disarm"}),
    "disarm, one rate": ("sivae-lbd-one", {"estimator": "disarm", "extra_masks": 0}),
    "disarm, normalised after the mask": ("sivae-lbd", {"estimator": "disarm", "normalise": "after"}),
    "disarm, not normalised": ("sivae-lbd", {"estimator": "disarm", "normalise": "none"}),
    "disarm, dense": ("sivae-lbd-dense", {"estimator": "disarm"}),
    "disarm, gated": ("sivae-lbd-gated", {"estimator": "disarm", "extra_masks": 1}),
    "disarm, logistic with squared weights": (
        "sivae-lbd",
        {"estimator": "disarm", "likelihood": "logistic", "l2": 0.1},
    ),
    "arm, a rate an item": ("sivae-lbd", {"estimator": "arm"}),
    "concrete": ("sivae-concrete", {}),
    "gaussian": ("sivae-gaussian", {}),
    "none": ("vae", {}),
}


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_branch_that_the_engine_replaced(case: str) -> None:
    name, changes = CASES[case]
    model = small(name, **changes)
    with torch.no_grad():
        for index, (_, p) in enumerate(sorted(model.named_parameters())):
            p.copy_(torch.sin(torch.arange(p.numel()) * 1.7 + index).view(p.shape))
        if name == "sivae-gaussian":
            model.masks.logit.abs_()  # within its range
    losses = RowObjective(model)(random_batch(), 0.7, torch.Generator().manual_seed(5))
    losses.total.backward()
    found = {n: _projections(p.grad) for n, p in model.named_parameters() if p.grad is not None}
    wanted = {n: torch.tensor(values) for n, values in GATE[case].items()}
    loss = wanted.pop("loss")
    assert found.keys() == wanted.keys()
    for n, values in wanted.items():
        torch.testing.assert_close(found[n], values, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(losses.total.detach(), loss[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(losses.mask_kl, loss[3] if model.settings.mask_kl else torch.zeros(()))


def _projections(gradient: Tensor) -> Tensor:
    index = torch.arange(gradient.numel())
    return torch.stack([(gradient.flatten() * torch.cos(k * index)).sum() for k in (0, 1, 2)])


def batch() -> Batch:
    return batch_of([[1, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]])


def masks_of(dropout: Any, **changes: Any) -> SparseRows:
    masks = row_dropout(4, Settings(dropout=dropout, per="item", **changes))
    masks.logit.data = torch.tensor([0.3, 1.5, 0.8, 2.0])
    return masks


def drawn(masks: SparseRows, rows: Batch, count: int) -> Tensor:
    with on_rows(rows):
        return masks.draw(count, (len(rows.item),), torch.zeros(()), None)


@pytest.mark.parametrize("dropout", ["fixed", "learned"])
def test_items_are_kept_at_their_own_rates(dropout: str) -> None:
    masks, rows, count = masks_of(dropout), batch(), 40_000
    found = drawn(masks, rows, count)
    assert found.shape == (count, 4)  # four entries, not three users times four items
    torch.testing.assert_close(found.mean(0), masks.keep[rows.item].detach(), rtol=0, atol=4 * 0.5 / math.sqrt(count))


@pytest.mark.parametrize(("dropout", "layer"), [("concrete", ConcreteDropout), ("gaussian", GaussianDropout)])
def test_rivals_masks_have_the_moments_of_their_layers(dropout: str, layer: Any) -> None:
    masks, rows, count = masks_of(dropout), batch(), 100_000
    found = drawn(masks, rows, count).detach()
    twin = layer(4)
    twin.logit.data = masks.logit.data[rows.item].clone()
    other = twin.mask_of(torch.rand(count, 4), 1).detach()
    torch.testing.assert_close(found.mean(0), other.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(found.std(0), other.std(0), rtol=0, atol=0.02)


@pytest.mark.parametrize("dropout", ["learned", "gaussian"])
def test_kl_is_the_mean_over_users_of_that_of_their_items(dropout: str) -> None:
    rows, masks = batch(), masks_of(dropout)
    with on_rows(rows):
        found = mask_kl(masks, None, 4, 1.0, 0.5)
    each = bernoulli_kl(masks.logit[rows.item])
    if dropout == "gaussian":
        twin = GaussianDropout(4)
        twin.logit.data = masks.logit.data[rows.item].clone()
        each = mask_kl(twin, None, 4, 1.0, 0.5) - 4 * AT_VARIANCE_1  # a constant that rows go without
    torch.testing.assert_close(found, each.sum() / 3)


def test_gaussian_rate_at_its_bound_has_a_gradient_of_the_loss_but_none_of_the_kl() -> None:
    masks, rows = masks_of("gaussian"), batch()
    masks.logit.data.fill_(0.0)
    found = drawn(masks, rows, 1000)
    assert abs(float(found.detach().std()) - 1) < 0.1  # the variance is 1
    (slope,) = torch.autograd.grad(found.pow(2).sum(), masks.logit)
    assert bool((slope < 0).all())  # less noise is smaller


def model_of(**changes: Any) -> VAE:
    model = VAE(4, Settings(per="item", hidden=3, latent=2, **changes))
    model.masks.logit.data = torch.tensor([0.3, 1.5, 0.8, 2.0])
    return model


def test_rows_normalised_after_the_mask_have_length_one_or_zero() -> None:
    rows, model = batch(), model_of(dropout="learned", normalise="after")
    for mask in ([1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]):
        with lbdrop.masks.fixed(model, {"masks": torch.tensor(mask)}):
            dense = rows.dense(model.values(rows))[0]
        length = [1.0, 1.0, 0.0] if any(mask) else [0.0, 0.0, 0.0]
        torch.testing.assert_close(dense.norm(dim=-1), torch.tensor(length))
        assert bool(torch.isfinite(dense).all())


def test_rows_normalised_before_the_mask_are_right_on_average() -> None:
    rows, model = batch(), model_of(dropout="fixed", normalise="before")
    plain = plain_values(rows, "before", torch.float32)
    torch.testing.assert_close(plain, torch.tensor([3.0, 3.0, 3.0, 1.0]).rsqrt())
    torch.testing.assert_close(model.values(rows, 100_000).mean(0), plain, rtol=0, atol=0.015)


def test_rows_without_normalisation_keep_their_length() -> None:
    rows, model = batch(), model_of(normalise="none")
    model.masks.logit.data.fill_(0.0)
    assert torch.equal(model.eval().values(rows), torch.ones(1, 4))
    with lbdrop.masks.fixed(model, {"masks": torch.ones(4)}):
        assert torch.equal(model.values(rows), torch.full((1, 4), 2.0))


def test_no_dropout_keeps_everything_and_has_no_state() -> None:
    masks = row_dropout(4, Settings(dropout="none"))
    assert float(masks.keep) == 1.0
    assert not masks.state_dict()
    with on_rows(batch()):
        assert torch.equal(masks(torch.full((2, 4), 3.0)), torch.full((2, 4), 3.0))


def test_entries_without_their_batch_are_an_error() -> None:
    with pytest.raises(DropoutError, match="want a batch whose entries these are"):
        masks_of("learned")(torch.ones(1, 4))


def test_rows_of_a_users_own_model_learn_by_the_objective() -> None:
    """A linear model of rows: the item without influence is kept or dropped alike, the harmful one is dropped."""
    torch.manual_seed(0)
    masks, weights = (
        row_dropout(3, Settings(dropout="learned", per="item", normalise="after")),
        torch.tensor([1.0, 0.0, -1.0]),
    )
    rows = Rows.from_csr(csr_array(torch.ones(50, 3).numpy())).batch(range(50))
    objective = lbdrop.Objective(masks, examples=10**6, coupled=False, estimator="double-cv-4")
    optimizer = torch.optim.Adam(masks.parameters(), lr=0.1)

    def losses(model: SparseRows) -> Tensor:
        kept = model(torch.ones(1, 3 * 50))[0]  # the mask itself
        return -torch.zeros(50).index_add(0, rows.user, kept * weights[rows.item])

    for _ in range(60):
        optimizer.zero_grad()
        with on_rows(rows):
            objective(losses).backward()
        optimizer.step()
    keep = masks.keep.detach()
    assert keep[0] > 0.9
    assert keep[2] < 0.1
