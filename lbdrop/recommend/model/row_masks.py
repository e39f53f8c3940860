r"""Masks on the items that a row has, and on nothing else: $n$ masks of a batch are an $n \times$ entries table.

An item that the user does not have is 0 under any mask, so the true gradient of its rate is 0. Without a mask for it the
estimate is exactly 0; an estimator over the whole catalogue would give noise.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop._torch import clamp_min_with_gradient
from lbdrop.dropout import logit_of
from lbdrop.masks import entropy
from lbdrop.recommend.data.rows import Batch
from lbdrop.recommend.model.settings import Settings
from lbdrop.rivals import ConcreteDropout

__all__ = ["RowMasks", "row_values"]


class RowMasks(nn.Module):
    """The dropout of a model's input: a keep logit for every item, or one for all."""

    logit: Tensor | None

    def __init__(self, items: int, settings: Settings):
        super().__init__()
        self.settings = settings
        start = torch.full((items,) if settings.per == "item" else (), logit_of(settings.rate))
        if settings.learns_rates:
            self.logit = nn.Parameter(start)
        else:
            self.register_buffer("logit", None if settings.dropout == "none" else start)

    @property
    def keep(self) -> Float[Tensor, "*items"]:
        """The keep rates, detached; a Gaussian mask of variance a counts as one that keeps 1/(1+a)."""
        if self.logit is None:
            return torch.ones(())
        # Variances stop at 1: see `lbdrop.rivals.GaussianDropout`.
        logit = self.logit.clamp(min=0.0) if self.settings.dropout == "gaussian" else self.logit
        return torch.sigmoid(logit.detach())

    def logits(self, batch: Batch) -> Float[Tensor, "entries"] | None:
        """The keep logit of every entry."""
        if self.logit is None:
            return None
        single = self.logit.dim() == 0
        # Not by indexing, because its backward sorts the entries first.
        return self.logit.expand(len(batch.item)) if single else self.logit.index_select(0, batch.item)

    def draw(
        self, count: int, logits: Float[Tensor, "entries"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count entries"]:
        """``count`` independent masks. Autograd reaches the logits through concrete and Gaussian ones."""
        shape, dtype = (count, len(logits)), torch.promote_types(logits.dtype, torch.float32)
        if self.settings.dropout == "gaussian":
            noise = torch.randn(shape, dtype=dtype, device=logits.device, generator=generator)
            # The gradient passes the bound on the variance, so that a logit at the bound can return.
            bounded = logits + (logits.clamp(min=0.0) - logits).detach()
            return 1 + torch.exp(-0.5 * bounded) * noise
        u = torch.rand(shape, dtype=dtype, device=logits.device, generator=generator)
        if self.settings.dropout == "concrete":
            noise = torch.logit(u, eps=torch.finfo(dtype).eps)
            return torch.sigmoid((logits + noise) / ConcreteDropout.temperature)
        return (u < torch.sigmoid(logits)).to(dtype)

    def kl(self, logits: Float[Tensor, "entries"]) -> Float[Tensor, "entries"]:
        """The KL of each entry's mask from its prior: Ber(½), or log-uniform for Gaussian noise."""
        if self.settings.dropout != "gaussian":
            return math.log(2) - entropy(logits)
        a = torch.exp(-clamp_min_with_gradient(logits, 0.0))  # the cubic of Kingma et al. 2015, equation 14
        return -(0.5 * torch.log(a) + 1.16145124 * a - 1.50204118 * a**2 + 0.58629921 * a**3)


def row_values(
    masks: Float[Tensor, "n entries"] | None,
    logits: Float[Tensor, "entries"] | None,
    batch: Batch,
    settings: Settings,
    dtype: torch.dtype,
) -> Float[Tensor, "n entries"]:
    """The network's input at every entry; without masks, the row itself."""
    if masks is None:
        ones = torch.ones(1, len(batch.item), dtype=dtype, device=batch.item.device)
        return ones if settings.normalise == "none" else ones * _inverse_length(batch.counts.to(dtype), batch)
    if settings.normalise == "after":
        squares = masks.new_zeros(len(masks), batch.size).index_add(1, batch.user, masks.pow(2))
        return (masks * _inverse_length(squares, batch)).to(dtype)
    if settings.dropout != "gaussian":  # Gaussian masks have mean 1
        assert logits is not None
        masks = masks / torch.sigmoid(logits)
    return (masks if settings.normalise == "none" else masks * _inverse_length(batch.counts, batch)).to(dtype)


def _inverse_length(squares: Float[Tensor, "*n users"], batch: Batch) -> Float[Tensor, "*n entries"]:
    # A row without items under its mask stays zero; relaxed masks are never exactly 0, hence the small bound.
    return squares.clamp(min=1e-12).rsqrt().index_select(-1, batch.user)
