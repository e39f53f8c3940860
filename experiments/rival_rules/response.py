r"""How a network answers for rates other than its own: the best response of its weights, to first order.

$$ h \mapsto h \odot (1 + \epsilon G) + \epsilon H $$

$\epsilon$ holds each example's offsets to the logits of all rates, $G$ and $H$ are learned and start at zero. Trained on
masks drawn at the shifted rates, the network learns what its weights would be at rates around the current ones, so that a
held-out loss has a gradient for the rates by plain backpropagation. With $\epsilon = 0$ nothing of it remains.

MacKay et al., Self-Tuning Networks, ICLR 2019.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

__all__ = ["Response"]


class Response(nn.Module):
    """The response of ``width`` units to the offsets of ``rates`` rates.

    Args:
        rates: how many rates the whole network has.
        width: how many units respond; each has its own gain and shift.
        shift: whether units may shift as well as stretch; not where a zero must stay zero, as in masked attention.

    Example:
        >>> response = Response(rates=2, width=3)
        >>> response(torch.ones(1, 3), torch.tensor([[0.5, -1.0]])).tolist()
        [[1.0, 1.0, 1.0]]
    """

    def __init__(self, rates: int, width: int, shift: bool = True):
        super().__init__()
        self.stretch = nn.Parameter(torch.zeros(rates, width))
        self.shift = nn.Parameter(torch.zeros(rates, width)) if shift else None

    def forward(
        self,
        h: Float[Tensor, "..."],
        offsets: Float[Tensor, "batch rates"],
        unit_dim: int = -1,
        batch_dim: int = 0,
        shifted: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "..."]:
        """Stretch and shift ``h``; only where ``shifted`` says so, where a zero has to stay zero."""
        shape = [1] * h.dim()
        shape[batch_dim], shape[unit_dim] = len(offsets), self.stretch.shape[1]
        swap = batch_dim % h.dim() > unit_dim % h.dim()

        def along(values: Tensor) -> Tensor:
            product = offsets.to(values.dtype) @ values
            product = product.T if swap else product
            return (product if h.dim() == 2 else product.reshape(shape)).to(h.dtype)

        if self.shift is None:
            return torch.addcmul(h, h, along(self.stretch))
        shift = along(self.shift)
        return torch.addcmul(h + (shift if shifted is None else shift * shifted), h, along(self.stretch))
