r"""The latent vector between encoder and decoder: a sample of it, and the KL of the sample.

$$ \mathrm{KL} \approx \log \frac{1}{V+1}\sum_{v=0}^{V} q(\eta \mid x, z^{(v)}) - \log p(\eta), \qquad
   \eta \sim q(\eta \mid x, z^{(0)}) $$

With one mask and a standard normal prior the KL has the closed form of Gaussians. Flows move the sample before its KL is
computed. With two levels, $\eta = (\eta_1, \eta_2)$ with $q(\eta_2 \mid x)\,q(\eta_1 \mid x, \eta_2)$ and
$p(\eta_2)\,p(\eta_1 \mid \eta_2)$; the lower level's share of the KL is exact with one mask.

Yin & Zhou, Semi-Implicit Variational Inference, ICML 2018; Kim & Suh, Enhancing VAEs for Collaborative Filtering, RecSys 2019.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop.recommend.data.rows import Batch
from lbdrop.recommend.model.flows import InverseAutoregressiveFlows
from lbdrop.recommend.model.latent_priors import (
    CompositePrior,
    Density,
    NormalPrior,
    VampPrior,
    gaussian_kl,
    gaussian_log_density,
)
from lbdrop.recommend.model.networks import Encoder, Lower, Posterior
from lbdrop.recommend.model.settings import Settings

__all__ = ["Latent"]


class Latent(nn.Module):
    """Prior, flows and lower level of the settings."""

    def __init__(self, items: int, settings: Settings, encoder: Encoder):
        super().__init__()
        s = settings
        self.settings = s
        if s.prior == "vamp":
            self.prior = VampPrior(items, s.pseudo_inputs)
        else:
            self.prior = CompositePrior(encoder) if s.prior == "composite" else NormalPrior()
        self.flows = InverseAutoregressiveFlows(s.flows, s.latent, s.flow_hidden, encoder.width) if s.flows else None
        self.lower = Lower(s) if s.levels == 2 else None

    def noise(self, batch: Batch, dtype: torch.dtype, generator: torch.Generator | None) -> Float[Tensor, "users _"]:
        """Standard normal, for every dimension of every level."""
        shape = (batch.size, self.settings.levels * self.settings.latent)
        return torch.randn(shape, dtype=dtype, device=batch.item.device, generator=generator)

    def density(self, encoder: Encoder, batch: Batch) -> Density | None:
        """The prior's log density for the users of a batch; ``None`` where the KL has a closed form."""
        s = self.settings
        closed = s.prior == "normal" and not s.flows and not s.extra_masks
        return None if closed else self.prior.density(encoder, batch)

    def sample(
        self,
        q: Posterior,
        noise: Float[Tensor, "users _"],
        density: Density | None,
    ) -> tuple[Float[Tensor, "users _"], Float[Tensor, "users"]]:
        """A latent vector from each user's first posterior, and its KL under the mixture of all of them (masks, users)."""
        latent, growth = self.settings.latent, 0.0
        eta = whole = _drawn(q.mean, q.log_variance, noise[:, :latent])
        log_q = 0.0 if density is None else gaussian_log_density(eta[None], q.mean, q.log_variance).sum(-1)
        kl = gaussian_kl(q.mean[0], q.log_variance[0]) if density is None else 0.0
        if self.lower is not None:
            mean, log_variance = self.lower.posterior(q.hidden, eta)
            below, prior = _drawn(mean, log_variance, noise[:, latent:]), self.lower.prior(eta)
            if len(mean) == 1:
                kl = kl + gaussian_kl(mean[0], log_variance[0], *prior)
            else:  # the mixture is over both levels at once
                log_q = log_q + gaussian_log_density(below[None], mean, log_variance).sum(-1)
                kl = kl - gaussian_log_density(below, *prior).sum(-1)
            whole = torch.cat([below, eta], -1)
        if self.flows is not None:
            whole, growth = self.flows(eta, q.hidden[0])
            eta = whole
        if density is not None:
            assert isinstance(log_q, Tensor)
            kl = kl + torch.logsumexp(log_q, 0) - math.log(len(log_q)) - growth - density(eta)
        assert isinstance(kl, Tensor)
        return whole, kl

    def mean(self, q: Posterior) -> Float[Tensor, "users _"]:
        """The latent vector without noise, from each user's first posterior."""
        eta = q.mean[0]
        if self.lower is not None:
            return torch.cat([self.lower.posterior(q.hidden[:1], eta)[0][0], eta], -1)
        return eta if self.flows is None else self.flows(eta, q.hidden[0])[0]


def _drawn(mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    return mean[0] + torch.exp(0.5 * log_variance[0]) * noise
