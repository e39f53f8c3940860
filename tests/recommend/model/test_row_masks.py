"""Masks of a row's items: their frequencies, their length, their KL."""

import math

import pytest
import torch
from scipy.sparse import csr_array

from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.row_masks import RowMasks, row_values
from lbdrop.recommend.model.settings import Settings
from lbdrop.rivals import ConcreteDropout, GaussianDropout
from lbdrop.rules.priors import bernoulli_kl, mask_kl


def batch() -> Batch:
    return Rows.from_csr(csr_array([[1, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]])).batch([0, 1, 2])


def masks_of(dropout: str, **changes) -> RowMasks:
    masks = RowMasks(4, Settings(dropout=dropout, per="item", **changes))
    if masks.logit is not None:
        masks.logit.data = torch.tensor([0.3, 1.5, 0.8, 2.0])
    return masks


@pytest.mark.parametrize("dropout", ["fixed", "learned"])
def test_items_are_kept_at_their_own_rates(dropout) -> None:
    masks, rows, count = masks_of(dropout), batch(), 40_000
    drawn = masks.draw(count, masks.logits(rows))
    assert drawn.shape == (count, 4)  # four entries, not three users times four items
    torch.testing.assert_close(drawn.mean(0), masks.keep[rows.item], rtol=0, atol=4 * 0.5 / math.sqrt(count))


@pytest.mark.parametrize(("dropout", "layer"), [("concrete", ConcreteDropout), ("gaussian", GaussianDropout)])
def test_rivals_masks_have_the_moments_of_their_layers(dropout, layer) -> None:
    masks, rows, count = masks_of(dropout), batch(), 100_000
    drawn = masks.draw(count, masks.logits(rows)).detach()
    twin = layer(4)
    twin.logit.data = masks.logit.data[rows.item].clone()
    other = twin.mask_of(torch.rand(count, 4), 1).detach()
    torch.testing.assert_close(drawn.mean(0), other.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(drawn.std(0), other.std(0), rtol=0, atol=0.02)


def test_kl_equals_that_of_the_layers() -> None:
    rows = batch()
    learned, gaussian = masks_of("learned"), masks_of("gaussian")
    torch.testing.assert_close(learned.kl(learned.logits(rows)), bernoulli_kl(learned.logit[rows.item]))
    twin = GaussianDropout(4)
    twin.logit.data = gaussian.logit.data[rows.item].clone()
    torch.testing.assert_close(gaussian.kl(gaussian.logits(rows)).sum(), mask_kl(twin, None, 4, 1.0, 0.5))


def test_gaussian_rate_at_its_bound_has_a_gradient_of_the_loss_but_none_of_the_kl() -> None:
    masks, rows = masks_of("gaussian"), batch()
    masks.logit.data.fill_(-0.5)
    drawn = masks.draw(1000, masks.logits(rows))
    assert abs(float(drawn.detach().std()) - 1) < 0.1  # the variance stays at 1
    (slope,) = torch.autograd.grad(drawn.pow(2).sum(), masks.logit)
    assert bool((slope < 0).all())  # less noise is smaller
    (slope,) = torch.autograd.grad(masks.kl(masks.logits(rows)).sum(), masks.logit)
    assert torch.equal(slope, torch.zeros(4))


def test_rows_normalised_after_the_mask_have_length_one_or_zero() -> None:
    rows, settings = batch(), Settings(dropout="learned", normalise="after")
    masks = torch.tensor([[1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    dense = rows.dense(row_values(masks, None, rows, settings, torch.float32))
    torch.testing.assert_close(dense.norm(dim=-1), torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    assert bool(torch.isfinite(dense).all())


def test_rows_normalised_before_the_mask_are_right_on_average() -> None:
    rows = batch()
    masks = masks_of("fixed", normalise="before")
    logits = masks.logits(rows)
    values = row_values(masks.draw(100_000, logits), logits, rows, masks.settings, torch.float32)
    plain = row_values(None, None, rows, masks.settings, torch.float32)[0]
    torch.testing.assert_close(plain, torch.tensor([3.0, 3.0, 3.0, 1.0]).rsqrt())
    torch.testing.assert_close(values.mean(0), plain, rtol=0, atol=0.015)


def test_rows_without_normalisation_keep_their_length() -> None:
    rows, settings = batch(), Settings(normalise="none")
    assert torch.equal(row_values(None, None, rows, settings, torch.float32), torch.ones(1, 4))
    logits = torch.zeros(4)
    assert torch.equal(row_values(torch.ones(1, 4), logits, rows, settings, torch.float32), torch.full((1, 4), 2.0))


def test_no_dropout_has_no_logits() -> None:
    masks = masks_of("none")
    assert masks.logits(batch()) is None
    assert float(masks.keep) == 1.0
    assert not list(masks.parameters())
