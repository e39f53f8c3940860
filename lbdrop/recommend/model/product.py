r"""A product of experts: a linear model and a network score every item, and the product of what they say is the answer.

$$ \log p(i \mid x) = e^{a + b \log n_x}\big(\log p_{\text{net}}(i \mid x) + t\, s_{\text{lin}}(i \mid x)\big) - \log Z_x $$

The normaliser $Z_x$ is over the items that the user does not have, so the probabilities of what may be recommended add up to 1.
$t$ decides the ranking; $a$ and $b$, with the number of the user's items $n_x$, say how sure it is.

Hinton, Training Products of Experts by Minimizing Contrastive Divergence, Neural Computation 2002.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from lbdrop.recommend.data.rows import Batch
from lbdrop.recommend.linear.base import of_one_item
from lbdrop.recommend.linear.closed_form import EDLAE
from lbdrop.recommend.model.vae import VAE

__all__ = ["Experts", "Product"]


class Experts(NamedTuple):
    """What each expert adds to the score of every item, before temperature and normaliser."""

    network: Float[Tensor, "users items"]
    linear: Float[Tensor, "users items"]


class Product(nn.Module):
    """A network and a linear model with learned dropout, as one model of the next like."""

    name = "experts"
    averages_masks = False
    """Scores are those of the pass without masks; masks of both experts' rows give the uncertainty."""
    weights: Tensor

    def __init__(self, network: VAE, linear: EDLAE):
        super().__init__()
        self.network, self.linear = network, linear
        self.register_buffer("weights", torch.tensor([1.0, 0.0, 0.0]))
        """t, a and b."""

    # --------------------------------------------------------------------------------------------------------- scoring

    @torch.no_grad()
    def experts(self, batch: Batch, mask: Float[Tensor, "entries 2"] | None = None) -> Experts:
        """Both experts' scores; ``mask`` has a value of the network's mask and one of the linear model's for each entry."""
        if mask is None:
            return Experts(self.network.plain_scores(batch), self.weights[0] * self.linear.scores(batch))
        shown = replace(batch, value=mask[:, 1] / (1 - self.linear.learned("rates")[batch.item]))
        return Experts(self.network.masked_scores(batch, mask[:, 0]), self.weights[0] * self.linear.scores(shown))

    def combined(
        self, experts: Experts, batch: Batch, temperature: Float[Tensor, "2"] | None = None
    ) -> Float[Tensor, "users items"]:
        """Log probabilities of the experts' scores."""
        level, slope = self.weights[1:] if temperature is None else temperature
        length = batch.counts.clamp(min=1).log()[:, None]
        scores = torch.exp(level + slope * length) * (experts.network + experts.linear)
        unseen = scores.index_put((batch.user, batch.item), scores.new_tensor(-torch.inf))
        # A user who has everything has nothing to normalise over.
        scores = scores - torch.logsumexp(unseen, 1, keepdim=True).nan_to_num(neginf=0.0)
        # An item that the user has is scored as if it alone of them were open too.
        return scores.index_put((batch.user, batch.item), F.logsigmoid(scores[batch.user, batch.item]))

    def scores(self, batch: Batch) -> Float[Tensor, "users items"]:
        return self.plain_scores(batch)

    def plain_scores(self, batch: Batch) -> Float[Tensor, "users items"]:
        """Log probabilities without masks."""
        return self.combined(self.experts(batch), batch)

    def masked_scores(self, batch: Batch, mask: Float[Tensor, "entries 2"]) -> Float[Tensor, "users items"]:
        """Log probabilities under masks of both experts' rows."""
        return self.combined(self.experts(batch, mask), batch)

    def shared_masks(self, samples: int, seed: int) -> Float[Tensor, "samples items 2"] | None:
        """Masks that all users share: the network's, and the linear model's of its own rates."""
        masks = self.network.shared_masks(samples, seed)
        if masks is None:
            return None
        rates = self.linear.learned("rates").cpu()
        generator = torch.Generator().manual_seed(seed + 1)
        drawn = torch.rand(samples, len(rates), generator=generator) >= rates
        return torch.stack([masks.to(torch.float32), drawn.to(masks.device, torch.float32)], -1)

    # ------------------------------------------------------------------------------------------------------------ facts

    def similarity(self, indices: Int64[Tensor, "n"]) -> Float[Tensor, "n items"]:
        """How much a history of one item raises the log probability of each item, beside an empty history."""
        one, none = (of_one_item(indices, self.network.items, length) for length in (1, 0))
        return self.plain_scores(one) - self.plain_scores(none)

    def drop_rates(self) -> dict[str, Tensor]:
        """Of each expert, by the name of its column."""
        return {"rate_linear": self.linear.learned("rates"), "rate_network": 1 - self.network.keep}

    def tensors(self) -> dict[str, Tensor]:
        """All that was learned, by name."""
        return self.state_dict() | {f"linear.{name}": value for name, value in self.linear.state.items()}

    def restore(self, tensors: dict[str, Tensor]) -> "Product":
        """Set :meth:`tensors`."""
        prefix = "linear."
        self.linear.restore({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        self.load_state_dict({n: t for n, t in tensors.items() if not n.startswith(prefix)})
        return self
