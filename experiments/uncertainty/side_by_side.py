r"""Many small networks of one hidden layer, trained side by side as one: weights have a leading axis of networks.

$$ f_k(x) = W_k^{(2)}\, z^{(2)} \odot \mathrm{relu}\big(W_k^{(1)}\, (z^{(1)} \odot x) + b_k^{(1)}\big) + b_k^{(2)}, \qquad
   z \sim \mathrm{Ber}(1 - p_k) / (1 - p_k) $$

Each has data, dropout rates and batches of its own. Adam works element by element, so that each is trained as if alone.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Networks", "masked_outputs", "train"]


class Networks(NamedTuple):
    """The weights of all networks, and the rates of their two dropouts."""

    first: Float[Tensor, "nets inputs hidden"]
    first_bias: Float[Tensor, "nets 1 hidden"]
    second: Float[Tensor, "nets hidden 1"]
    second_bias: Float[Tensor, "nets 1 1"]
    rates: Float[Tensor, "nets 2"]

    @classmethod
    def drawn(cls, inputs: int, hidden: int, rates: Float[Tensor, "nets 2"], generator: torch.Generator) -> "Networks":
        """Weights as ``nn.Linear`` draws them."""
        nets, device = len(rates), rates.device

        def uniform(*shape: int, fan_in: int) -> Tensor:
            drawn = torch.rand(nets, *shape, generator=generator, device=generator.device).to(device)
            return ((2 * drawn - 1) / math.sqrt(fan_in)).requires_grad_()

        return cls(uniform(inputs, hidden, fan_in=inputs), uniform(1, hidden, fan_in=inputs),
                   uniform(hidden, 1, fan_in=hidden), uniform(1, 1, fan_in=hidden), rates)  # fmt: skip

    def outputs(self, x: Float[Tensor, "nets batch inputs"], generator: torch.Generator) -> Float[Tensor, "nets batch"]:
        """Under one mask per example."""
        h = torch.relu(torch.baddbmm(self.first_bias, self._dropped(x, 0, generator), self.first))
        return torch.baddbmm(self.second_bias, self._dropped(h, 1, generator), self.second)[..., 0]

    def _dropped(self, h: Tensor, layer: int, generator: torch.Generator) -> Tensor:
        keep = 1 - self.rates[:, layer, None, None]
        u = torch.rand(h.shape, generator=generator, device=h.device)
        return h * (u < keep) / keep


def train(
    x: Float[Tensor, "nets examples inputs"],
    y: Float[Tensor, "nets examples"],
    rates: Float[Tensor, "nets 2"],
    hidden: int,
    steps: int,
    *,
    batch: int,
    lr: float,
    generator: torch.Generator,
) -> Networks:
    """Squared error, Adam, cosine to zero; every network goes through its examples in an order of its own."""
    nets = Networks.drawn(x.shape[-1], hidden, rates, generator)
    weights = list(nets[:4])
    optimizer = torch.optim.Adam(weights, lr=lr, fused=x.device.type == "cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    size = min(batch, x.shape[1])
    order, place = _orders(x, generator), 0
    for _ in range(steps):
        if place + size > x.shape[1]:
            order, place = _orders(x, generator), 0
        rows, place = order[:, place : place + size], place + size
        batch_x = x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1]))
        loss = (nets.outputs(batch_x, generator) - y.gather(1, rows)).square().mean(1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return nets


def _orders(x: Tensor, generator: torch.Generator) -> Int[Tensor, "nets examples"]:
    return torch.rand(x.shape[:2], generator=generator, device=x.device).argsort(1)


@torch.no_grad()
def masked_outputs(
    nets: Networks, x: Float[Tensor, "nets batch inputs"], masks: int, generator: torch.Generator
) -> Float[Tensor, "masks nets batch"]:
    """The outputs under each of several masks."""
    return torch.stack([nets.outputs(x, generator) for _ in range(masks)])
