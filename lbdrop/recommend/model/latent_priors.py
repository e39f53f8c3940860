r"""Priors of the latent vector: a standard normal, or mixtures that the encoder itself provides.

$$ \text{VampPrior: } p(\eta) = \tfrac1K \sum_k q(\eta \mid u_k), \qquad
   \text{composite: } p(\eta_d \mid x) = .15\,N(0,1) + .75\,q_{\text{old}}(\eta_d \mid x) + .10\,N(0, e^{10}) $$

The pseudo-inputs $u_k$ are learned. $q_\text{old}$ is the encoder of an epoch ago. Its mixture is taken in every dimension
separately, as in the authors' implementation.

Tomczak & Welling, VAE with a VampPrior, AISTATS 2018; Shenbin et al., RecVAE, WSDM 2020.
"""

import copy
import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop.recommend.data.rows import Batch
from lbdrop.recommend.model.networks import Encoder, Posterior
from lbdrop.recommend.model.row_dropout import plain_values

__all__ = ["CompositePrior", "NormalPrior", "VampPrior", "gaussian_kl", "gaussian_log_density"]

Density = Callable[[Tensor], Tensor]
"""From latent vectors (users, latent) to the log density of each."""

LOG_2PI = math.log(2 * math.pi)


def gaussian_log_density(
    eta: Float[Tensor, "*#rows latent"],
    mean: Float[Tensor, "*#rows latent"],
    log_variance: Float[Tensor, "*#rows latent"],
) -> Float[Tensor, "*rows latent"]:
    """log N(η; μ, σ²) in every dimension."""
    return -0.5 * (LOG_2PI + log_variance + (eta - mean).pow(2) * torch.exp(-log_variance))


def gaussian_kl(
    mean: Float[Tensor, "*rows latent"],
    log_variance: Float[Tensor, "*rows latent"],
    prior_mean: Float[Tensor, "*rows latent"] | None = None,
    prior_log_variance: Float[Tensor, "*rows latent"] | None = None,
) -> Float[Tensor, "*rows"]:
    """The KL of a Gaussian from another, or from N(0, 1), summed over dimensions."""
    if prior_mean is None or prior_log_variance is None:
        return 0.5 * (mean.pow(2) + log_variance.exp() - 1 - log_variance).sum(-1)
    ratio = log_variance - prior_log_variance
    distance = (mean - prior_mean).pow(2) * torch.exp(-prior_log_variance)
    return 0.5 * (distance + ratio.exp() - 1 - ratio).sum(-1)


class NormalPrior(nn.Module):
    """N(0, 1); the only one whose KL from a Gaussian has a closed form."""

    def density(self, encoder: Encoder, batch: Batch) -> Density:
        return lambda eta: -0.5 * (LOG_2PI + eta.pow(2)).sum(-1)

    def end_of_epoch(self, encoder: Encoder) -> None:
        """Nothing changes with the epochs."""


class VampPrior(nn.Module):
    """The mean of the posteriors of learned rows.

    Args:
        items: items of the catalogue.
        count: how many pseudo-inputs.
        mean: the mean of their initial entries; the standard deviation is a fifth of it.
    """

    def __init__(self, items: int, count: int, mean: float = 0.05):
        super().__init__()
        self.inputs = nn.Parameter(torch.empty(count, items).normal_(mean, mean / 5))

    def posteriors(self, encoder: Encoder) -> Posterior:
        """The components: pseudo-inputs are rows, between 0 and 1 and normalised like the others."""
        rows = self.inputs.clamp(0.0, 1.0)
        if encoder.settings.normalise != "none":
            rows = rows * rows.pow(2).sum(-1, keepdim=True).clamp(min=1e-12).rsqrt()
        return encoder.of_dense(rows)

    def density(self, encoder: Encoder, batch: Batch) -> Density:
        components = self.posteriors(encoder)
        return lambda eta: mixture_log_density(eta, components.mean, components.log_variance)

    def end_of_epoch(self, encoder: Encoder) -> None:
        """Nothing changes with the epochs."""


def mixture_log_density(
    eta: Float[Tensor, "users latent"], mean: Float[Tensor, "k latent"], log_variance: Float[Tensor, "k latent"]
) -> Float[Tensor, "users"]:
    """The log density of an even mixture of Gaussians, by three products instead of a (users, k, latent) table."""
    # In double precision: with variances down to e⁻¹² the three terms are large and cancel.
    wide = torch.float32 if eta.device.type == "mps" else torch.float64
    x, m, v = eta.to(wide), mean.to(wide), log_variance.to(wide)
    with torch.autocast(eta.device.type, enabled=False):
        inverse = torch.exp(-v)
        distance = x.pow(2) @ inverse.T - 2 * x @ (m * inverse).T + (m.pow(2) * inverse).sum(-1)
        each = -0.5 * (LOG_2PI * eta.shape[-1] + v.sum(-1) + distance)
        return (torch.logsumexp(each, -1) - math.log(len(mean))).to(eta.dtype)


class CompositePrior(nn.Module):
    """A standard normal, the user's posterior of an epoch ago, and a wide normal, mixed in every dimension."""

    weights = (0.15, 0.75, 0.10)
    wide_log_variance = 10.0

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.old = copy.deepcopy(encoder).requires_grad_(False)

    def density(self, encoder: Encoder, batch: Batch) -> Density:
        with torch.no_grad():
            row = plain_values(batch, encoder.settings.normalise, encoder.table.weight.dtype)
            old = self.old(row[None], batch)

        def log_density(eta: Tensor) -> Tensor:
            zero = torch.zeros_like(eta)
            parts = [
                gaussian_log_density(eta, zero, zero),
                gaussian_log_density(eta, old.mean[0], old.log_variance[0]),
                gaussian_log_density(eta, zero, zero + self.wide_log_variance),
            ]
            weighted = [part + math.log(weight) for part, weight in zip(parts, self.weights, strict=True)]
            return torch.logsumexp(torch.stack(weighted), 0).sum(-1)

        return log_density

    @torch.no_grad()
    def end_of_epoch(self, encoder: Encoder) -> None:
        """Copy the current encoder."""
        for old, new in zip(self.old.parameters(), encoder.parameters(), strict=True):
            old.copy_(new)
