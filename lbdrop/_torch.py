"""1 where a comparison holds and 0 elsewhere, as floating point: what a mask is."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["indicator"]


def indicator(
    compare: Callable[..., Tensor], values: Float[Tensor, "*shape"], to: Tensor | float
) -> Float[Tensor, "*shape"]:
    """Where ``values`` compare so, in their precision; ``to`` broadcasts against them and has no gradient.

    >>> indicator(torch.lt, torch.tensor([0.2, 0.9]), 0.5)
    tensor([1., 0.])
    """
    if torch._C._are_functorch_transforms_active():  # which have no rule for writing into a tensor
        return compare(values, to).to(values.dtype)
    # Written as numbers at once: a CPU makes booleans one by one, and to convert them takes as long again.
    with torch.no_grad():
        return compare(values, to, out=torch.empty_like(values))
