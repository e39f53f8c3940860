r"""Dropout on the items that a row has, and on nothing else: $n$ masks of a batch are an $n \times$ entries table.

An item that the user does not have is 0 under any mask, so the true gradient of its rate is 0. Without a mask for it the
estimate is exactly 0; an estimator over the whole catalogue would give noise. The layers are those of :mod:`lbdrop.dropout` and
:mod:`lbdrop.rivals`; they differ in where a unit and an example are in a mask, which the batch says, and in the KL, which is
the mean over users of that of the items they have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.dropout import LearnableDropout, NoiseLayer
from lbdrop.errors import DropoutError
from lbdrop.masks import Layout, layout_of
from lbdrop.recommend.data.rows import Batch
from lbdrop.recommend.model.settings import Settings
from lbdrop.rivals import ConcreteDropout, FixedDropout, GaussianDropout
from lbdrop.rules.priors import bernoulli_kl, gaussian_kl, mask_kl

__all__ = ["RowDropout", "SparseRows", "inverse_length", "on_rows", "plain_values", "row_dropout"]

_batch: ContextVar[Batch | None] = ContextVar("batch", default=None)


@contextmanager
def on_rows(batch: Batch) -> Iterator[None]:
    """In this thread, the entries that dropouts of rows get belong to these rows."""
    token = _batch.set(batch)
    try:
        yield
    finally:
        _batch.reset(token)


def _rows() -> Batch:
    if (batch := _batch.get()) is None:
        raise DropoutError("rows: want a batch whose entries these are, got none; call it inside on_rows(batch)")
    return batch


class SparseRows(NoiseLayer):
    """What a dropout of rows has of its own. Its input is a value for each entry of a batch, in one set or several."""

    def _check(self, x: Float[Tensor, "sets entries"]) -> None:
        if x.dim() != 2 or x.shape[1] != len(_rows().item):
            raise DropoutError(
                f"input: want sets of values for the {len(_rows().item)} entries of the batch, shape (sets, entries), got"
                f" {tuple(x.shape)}; add an axis for the sets"
            )

    def spread(self, values: Tensor, dims: int) -> Tensor:
        # Not by indexing, because its backward sorts the entries first.
        return values.index_select(0, _rows().item) if values.dim() else values

    def masked(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return x if mask is None else super().masked(x, mask)


class RowDropout(SparseRows, LearnableDropout):
    """Learned Bernoulli dropout of a row's items."""


class FixedRows(SparseRows, FixedDropout):
    """The same at a rate that stays."""


class ConcreteRows(SparseRows, ConcreteDropout):
    """The same with relaxed masks."""


class GaussianRows(SparseRows, GaussianDropout):
    """The same with Gaussian noise."""


KINDS = {
    "learned": RowDropout,
    "fixed": FixedRows,
    "none": FixedRows,
    "concrete": ConcreteRows,
    "gaussian": GaussianRows,
}


def row_dropout(items: int, settings: Settings) -> SparseRows:
    """The dropout of a model's input; without dropout, one whose rate is 0."""
    s = settings
    units, rate = (items if s.per == "item" else None), (0.0 if s.dropout == "none" else s.rate)
    plain = s.normalise == "after" and s.dropout != "gaussian"
    layer = KINDS[s.dropout](units, rate, scale="none" if plain else "inverted")
    if s.dropout == "none":
        layer.register_buffer("logit", layer.logit, persistent=False)
    return layer


@dataclass(frozen=True, kw_only=True)
class RowLayout(Layout):
    """The entries of an example are its items."""

    batch: Batch

    def rows(self, shape: torch.Size) -> int:
        return self.batch.size

    def spread(self, values: Tensor, rows: int) -> Tensor:
        return values.index_select(1, self.batch.user)

    def group(self, values: Tensor, examples: int) -> Tensor:
        return values.new_zeros(len(values), examples).index_add(1, self.batch.user, values)

    def collect(self, gradient: Tensor, layer: NoiseLayer) -> Tensor:
        if not layer.logit.dim():
            return gradient.sum()
        each = gradient.sum(0)
        return each.new_zeros(layer.logit.shape).index_add(0, self.batch.item, each)


@layout_of.register(SparseRows)
def _(layer: SparseRows) -> Layout:
    return RowLayout(-1, batch=_rows())


@mask_kl.register(SparseRows)
def _(
    layer: SparseRows, norms: Float[Tensor, "units"] | None, units: int, s: float, prior_keep: float
) -> Float[Tensor, ""]:
    """The mean over the users of the batch: each has masks of the items in his row."""
    each = gaussian_kl(layer) if isinstance(layer, GaussianDropout) else bernoulli_kl(layer.logit, prior_keep)
    batch = _rows()
    return batch.per_entry(layer.spread(each, 1).expand(len(batch.item))).sum()


def plain_values(batch: Batch, normalise: str, dtype: torch.dtype) -> Float[Tensor, "entries"]:
    """The rows themselves, as the network sees them: 1 for each item, or rows of length 1."""
    ones = torch.ones(len(batch.item), dtype=dtype, device=batch.device)
    return ones if normalise == "none" else ones * inverse_length(batch.counts.to(dtype), batch)


def inverse_length(squares: Float[Tensor, "*n users"], batch: Batch) -> Float[Tensor, "*n entries"]:
    """For each entry, one over the length of its row, given the squared lengths."""
    # A row without items under its mask stays zero; relaxed masks are never exactly 0, hence the small bound.
    return squares.clamp(min=1e-12).rsqrt().index_select(-1, batch.user)
