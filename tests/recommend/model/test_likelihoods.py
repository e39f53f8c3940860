"""The likelihoods against their definitions, and the multinomial's backward pass against autograd."""

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array

from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.likelihoods import logistic_nll, multinomial_nll

MATRIX = [[1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]]


def batch() -> Batch:
    return Rows.from_csr(csr_array(MATRIX)).batch([0, 1, 2])


def test_multinomial_is_cross_entropy_at_the_rows_items() -> None:
    logits, x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.tensor(MATRIX, dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0, -0.5], dtype=torch.float64)
    expected = -(x * F.log_softmax(logits, -1)).sum(-1)
    found = multinomial_nll(logits, batch())
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad((nll * weights).sum(), logits)[0] for nll in (found, expected)]
    torch.testing.assert_close(*slopes)
    assert torch.autograd.gradcheck(lambda t: multinomial_nll(t, batch()), logits)


def test_multinomial_survives_large_logits_and_bfloat16() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4, 3.0, 2.0]] * 3, requires_grad=True)
    multinomial_nll(logits, batch()).sum().backward()
    assert bool(torch.isfinite(logits.grad).all())
    low = torch.randn(3, 5).bfloat16().requires_grad_()
    nll = multinomial_nll(low, batch())
    nll.sum().backward()
    assert (nll.dtype, low.grad.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(nll, multinomial_nll(low.detach().float(), batch()))


def test_logistic_is_binary_cross_entropy_over_the_catalogue() -> None:
    logits, x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.tensor(MATRIX, dtype=torch.float64)
    expected = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
    found = logistic_nll(logits, batch())
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(nll.sum(), logits)[0] for nll in (found, expected)))
