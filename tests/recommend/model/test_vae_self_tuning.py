"""Self-tuning: the held-out loss moves only the rates, through responses that predictions do not use."""

import math

import pytest
import torch
from helpers.small_vae import BETA, ITEMS, batch_of, perturbed, random_batch, small
from torch import Tensor

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize("per", ["item", "model"])
@pytest.mark.parametrize("name", ["sivae-lbd-tuned", "sivae-lbd-dense-tuned"])
def test_held_out_loss_moves_the_rates_alone(name, per) -> None:
    model, fold_in, held_out = perturbed(small(name, per=per)), random_batch(), random_batch(seed=1)
    model.losses(fold_in, BETA).total.backward()
    assert model.masks.logit.grad is None
    model.zero_grad(set_to_none=True)
    loss = model.held_out_loss(fold_in, held_out, torch.Generator().manual_seed(0))
    loss.backward()
    assert {label for label, p in model.named_parameters() if p.grad is not None} == {"masks.logit"}
    assert bool((model.masks.logit.grad != 0).all())


def test_held_out_gradient_is_the_slope_along_the_offset() -> None:
    model, fold_in, held_out = perturbed(small("sivae-lbd-tuned")), random_batch(), random_batch(seed=1)
    offsets = torch.randn(12, 1)
    model._offsets = lambda *_: offsets
    loss = model.held_out_loss(fold_in, held_out)
    (gradient,) = torch.autograd.grad(loss, model.masks.logit)

    def at(shift: float) -> Tensor:
        with torch.no_grad():
            return model.nll(model(fold_in, offsets=offsets + shift), held_out).sum() / len(held_out.item)

    torch.testing.assert_close(loss.detach(), at(0.0))
    torch.testing.assert_close(gradient, (at(1e-6) - at(-1e-6)) / 2e-6, rtol=1e-5, atol=1e-8)


def test_rates_without_a_response_have_no_gradient() -> None:
    model, batch = small("sivae-lbd-tuned"), random_batch()
    model.held_out_loss(batch, batch).backward()
    assert float(model.masks.logit.grad) == 0.0
    before = model.scores(batch, 0)
    with torch.no_grad():
        for label, p in model.named_parameters():
            if "response" in label:
                p.normal_()
    assert torch.equal(model.scores(batch, 0), before)
    model.zero_grad(set_to_none=True)
    model.held_out_loss(batch, batch).backward()
    assert float(model.masks.logit.grad) != 0.0


def test_every_layer_responds() -> None:
    model, batch = small("sivae-lbd-tuned"), random_batch()
    model.losses(batch, BETA).total.backward()
    responses = [p for label, p in model.named_parameters() if "response" in label]
    assert len(responses) == 6  # stretch and shift of the encoder's layer, its heads, and the decoder's layer
    assert all(bool((p.grad != 0).any()) for p in responses)


def test_masks_are_drawn_at_the_rate_of_each_user() -> None:
    model, batch = small("sivae-lbd-tuned", rate=0.5), batch_of([[1] * ITEMS] * 2)
    offsets = torch.tensor([[-1.0], [2.0]])
    logits = model.masks.logits(batch, offsets)
    masks = model.masks.draw(20000, logits)
    kept = torch.stack([masks[:, batch.user == user].mean() for user in (0, 1)])
    torch.testing.assert_close(kept, torch.sigmoid(offsets[:, 0]), rtol=0, atol=4 * 0.5 / math.sqrt(20000 * ITEMS))
