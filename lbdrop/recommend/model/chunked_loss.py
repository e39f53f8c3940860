r"""The multinomial loss of a large catalogue without a table of its logits: a chunk of items at a time, forward and backward.

$$ -\log p(x_u) = \sum_{i \in x_u} \Big(\log \sum_j e^{\ell_{uj}} - \ell_{ui}\Big), \qquad \ell = h W^\top + b $$

The normaliser grows chunk by chunk: with the largest logit so far $m$ and $s = \sum_j e^{\ell_j - m}$, a further chunk gives
$m' = \max(m, \max_c \ell_c)$ and $s' = s\,e^{m - m'} + \sum_c e^{\ell_c - m'}$. Backward computes each chunk's logits again,
from which $\partial/\partial\ell = |x_u|\,\mathrm{softmax}(\ell) - x$ and the gradients of $h$, $W$ and $b$ follow. Values and
gradients are those of the plain loss; memory is that of the parameters' gradients and one chunk, and time a third more.

Milakov & Gimelshein, Online normalizer calculation for softmax, 2018.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lbdrop.recommend.data.rows import Batch
from lbdrop.recommend.model.networks import LARGE_CATALOGUE

__all__ = ["chunk_width", "chunked_multinomial_nll"]

MAX_TABLE = 2**23
"""Logits of a chunk: 32 megabytes, and a step has several such tables."""
MIN_ITEMS = 1024
"""Items of a chunk; products of fewer columns waste a device."""


def chunk_width(items: int, users: int, at_once: int = 0) -> int:
    """Items of a chunk: ``at_once``, or if 0 the whole catalogue, or as many items of a large one as fit into a table."""
    if not at_once:
        at_once = items if items <= LARGE_CATALOGUE else max(MIN_ITEMS, MAX_TABLE // max(users, 1))
    return min(at_once, items)


def chunked_multinomial_nll(
    hidden: Float[Tensor, "users width"],
    weight: Float[Tensor, "items width"],
    bias: Float[Tensor, "items"],
    batch: Batch,
    chunk: int,
) -> Float[Tensor, "users"]:
    """The negative log-likelihood of each user's items, of logits ``hidden`` @ ``weight``.T + ``bias``."""
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    nll, _ = _Chunked.apply(hidden, weight, bias, batch.item, batch.user, batch.counts, chunk, dtype)  # pyright: ignore[reportGeneralTypeIssues]
    return nll


class _Chunked(torch.autograd.Function):
    """Saves its inputs and the normaliser, and no table of users × items."""

    @staticmethod
    def forward(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        item: Tensor,
        user: Tensor,
        counts: Tensor,
        chunk: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(dtype, torch.float32)
        largest = hidden.new_full((len(hidden),), -torch.inf, dtype=wide)
        total = torch.zeros_like(largest)
        item_logits = hidden.new_zeros(len(item), dtype=wide)
        with torch.autocast(hidden.device.type, enabled=False):
            for first, logits in _chunks(hidden, weight, bias, chunk, dtype):
                logits = logits.to(wide)
                inside, cell = _cells(item, user, first, logits.shape[1])
                item_logits += torch.where(inside, logits.flatten().index_select(0, cell), 0.0)
                before, largest = largest, torch.maximum(largest, logits.amax(-1))
                total = total * torch.exp(before - largest) + torch.exp_(logits - largest[:, None]).sum(-1)
        normaliser = largest + torch.log(total)
        nll = item_logits.new_zeros(len(hidden)).index_add(0, user, normaliser.index_select(0, user) - item_logits)
        return nll, normaliser

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        hidden, weight, bias, item, user, counts, ctx.chunk, ctx.dtype = inputs
        ctx.save_for_backward(hidden, weight, bias, item, user, counts, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, weight, bias, item, user, counts, normaliser = ctx.saved_tensors
        grad = grads[0]
        wide = (normaliser.dtype, weight.dtype, bias.dtype)  # chunks add up to one gradient of hidden
        hidden_grad, weight_grad, bias_grad = (
            torch.zeros_like(each, dtype=dtype) if needed else None
            for each, dtype, needed in zip((hidden, weight, bias), wide, ctx.needs_input_grad, strict=False)
        )
        narrow, each = hidden.to(ctx.dtype), -grad.index_select(0, user)
        with torch.autocast(hidden.device.type, enabled=False):
            for first, logits in _chunks(hidden, weight, bias, ctx.chunk, ctx.dtype):
                width = logits.shape[1]
                slope = torch.exp_(logits.to(normaliser.dtype) - normaliser[:, None]).mul_((counts * grad)[:, None])
                inside, cell = _cells(item, user, first, width)
                # Every cell gets at most one value other than 0, so atomic additions are deterministic.
                slope.view(-1).scatter_add_(0, cell, torch.where(inside, each, 0.0).to(slope.dtype))
                slope = slope.to(ctx.dtype)
                if hidden_grad is not None:
                    hidden_grad += slope @ weight[first : first + width].to(ctx.dtype)
                if weight_grad is not None:
                    weight_grad[first : first + width] = slope.T @ narrow
                if bias_grad is not None:
                    bias_grad[first : first + width] = slope.sum(0)
        hidden_grad = None if hidden_grad is None else hidden_grad.to(hidden.dtype)
        return hidden_grad, weight_grad, bias_grad, None, None, None, None, None


def _chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor, chunk: int, dtype: torch.dtype
) -> Iterator[tuple[int, Float[Tensor, "users _"]]]:
    """The index of a chunk's first item, and its logits in the precision of products."""
    hidden = hidden.to(dtype)
    for first in range(0, len(weight), chunk):
        part = slice(first, first + chunk)
        yield first, F.linear(hidden, weight[part].to(dtype), bias[part].to(dtype))


def _cells(item: Tensor, user: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
    """Which entries are in this chunk, and the position of each in its flattened table; other entries get any position.

    A mask, because selecting the entries would make the host wait for their number.
    """
    column = item - first
    inside = (column >= 0) & (column < width)
    return inside, torch.add(column.remainder(width), user, alpha=width)
