r"""How probable a user's items are, given a logit for every item of the catalogue.

$$ \text{multinomial: } -\sum_{i\in x} \Big(\ell_i - \log\sum_j e^{\ell_j}\Big), \qquad
   \text{logistic: } \sum_j \log(1 + e^{\ell_j}) - \sum_{i\in x} \ell_i $$

Both need the whole catalogue once, for the normaliser, and the row only at its entries, so rows stay sparse.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from lbdrop.recommend.data.rows import Batch

__all__ = ["logistic_nll", "multinomial_nll"]


def multinomial_nll(logits: Float[Tensor, "users _"], batch: Batch) -> Float[Tensor, "users"]:
    """The negative log-likelihood of each user's items, as draws from one distribution over the catalogue."""
    cell = batch.cells(logits.shape[1])
    nll, _ = _Multinomial.apply(logits, cell, batch.user, batch.counts)  # pyright: ignore[reportGeneralTypeIssues]
    return nll


def logistic_nll(logits: Float[Tensor, "users _"], batch: Batch) -> Float[Tensor, "users"]:
    """The negative log-likelihood of each user's row, with an independent like for every item."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.softplus(wide).sum(-1) - _row_sums(
        wide.flatten().gather(0, batch.cells(logits.shape[1])), batch.user, len(logits)
    )


class _Multinomial(torch.autograd.Function):
    """Backward makes only one table of the logits' size: the softmax, from which the entries are subtracted."""

    @staticmethod
    def forward(logits: Tensor, cell: Tensor, user: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        log_p = F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return -_row_sums(log_p.flatten().index_select(0, cell), user, len(logits)), log_p

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        logits, cell, user, counts = inputs
        ctx.save_for_backward(cell, user, counts, output[1])
        ctx.dtype = logits.dtype
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        cell, user, counts, log_p = ctx.saved_tensors
        grad = grads[0]
        # Directly in the logits' precision: in half precision these passes take half as long.
        slope = torch.exp(log_p, out=torch.empty_like(log_p, dtype=ctx.dtype)).mul_(
            (counts * grad).to(ctx.dtype)[:, None]
        )
        # Every cell is hit at most once, so atomic additions are deterministic.
        slope.view(-1).scatter_add_(0, cell, -grad.to(slope.dtype).index_select(0, user))
        return slope, None, None, None


def _row_sums(values: Float[Tensor, "entries"], user: Int64[Tensor, "entries"], users: int) -> Float[Tensor, "users"]:
    return values.new_zeros(users).index_add(0, user, values)
