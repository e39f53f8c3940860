r"""Inverse autoregressive flows: a Gaussian sample with a more flexible, still exact density.

$$ \eta' = g \odot \eta + (1-g) \odot m, \qquad (m_i, s_i) = \mathrm{MADE}(\eta_{<i}, h), \quad g = \sigma(s+1), \qquad
   \log\left|\tfrac{\partial\eta'}{\partial\eta}\right| = \sum_i \log g_i $$

The network is one masked hidden layer; the context $h$, the encoder's last hidden layer, is added to it. Every second flow
sees the dimensions in reverse order.

Kingma et al., Improved Variational Inference with Inverse Autoregressive Flow, NeurIPS 2016; Germain et al., MADE, ICML 2015.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["InverseAutoregressiveFlows"]


class MaskedLinear(nn.Linear):
    """A linear layer whose connections are limited by a mask (outputs, inputs)."""

    mask: Tensor

    def __init__(self, mask: Float[Tensor, "outputs inputs"]):
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Float[Tensor, "*rows inputs"]) -> Float[Tensor, "*rows outputs"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return F.linear(x, self.weight * self.mask, self.bias)


class Flow(nn.Module):
    """One flow: moves dimension i by a function of the dimensions before it and of the context."""

    def __init__(self, latent: int, hidden: int, context: int):
        super().__init__()
        order = torch.arange(latent)
        # A hidden unit of degree d sees the dimensions up to d and serves those after it; degrees go round evenly.
        degree = torch.arange(hidden) % max(latent - 1, 1)
        self.first = MaskedLinear((degree[:, None] >= order).float())
        self.context = nn.Linear(context, hidden, bias=False)
        self.second = MaskedLinear((order[:, None] > degree).float().repeat(2, 1))

    def forward(
        self, eta: Float[Tensor, "rows latent"], context: Float[Tensor, "rows context"]
    ) -> tuple[Float[Tensor, "rows latent"], Float[Tensor, "rows"]]:
        move, gate = self.second(F.elu(self.first(eta) + self.context(context))).to(eta.dtype).chunk(2, -1)
        g = torch.sigmoid(gate + 1)
        return g * eta + (1 - g) * move, F.logsigmoid(gate + 1).sum(-1)


class InverseAutoregressiveFlows(nn.Module):
    """Several flows in a row.

    Args:
        count: how many.
        latent: dimensions of the latent vector.
        hidden: units of each masked hidden layer.
        context: width of the encoder's last hidden layer.
    """

    def __init__(self, count: int, latent: int, hidden: int, context: int):
        super().__init__()
        self.flows = nn.ModuleList(Flow(latent, hidden, context) for _ in range(count))

    def forward(
        self, eta: Float[Tensor, "rows latent"], context: Float[Tensor, "rows context"]
    ) -> tuple[Float[Tensor, "rows latent"], Float[Tensor, "rows"]]:
        """The moved vectors, and the log determinant of the map."""
        log_determinant = eta.new_zeros(len(eta))
        for number, flow in enumerate(self.flows):
            if number % 2:  # the order of dimensions turns around for this flow alone
                moved, growth = flow(eta.flip(-1), context)
                eta = moved.flip(-1)
            else:
                eta, growth = flow(eta, context)
            log_determinant = log_determinant + growth
        return eta, log_determinant
