r"""The schemes that learned Bernoulli dropout is measured against: the same constructor, the same place in a model.

======== ============================================ =====================================================
fixed    $z \sim \mathrm{Ber}(p)$, $p$ given          Srivastava et al. 2014; on at test: Gal & Ghahramani 2016
Concrete $z = \sigma((\alpha + \log\frac{u}{1-u})/t)$ Gal et al. 2017, $t = 0.1$
Gaussian $z \sim N(1, e^{-\alpha})$, variance ≤ 1     Kingma et al. 2015
======== ============================================ =====================================================

In each, $\sigma(\alpha)$ is the keep rate: a Gaussian of variance $a$ stands for a drop rate of $a/(1+a)$.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop._torch import clamp_min_with_gradient, indicator
from lbdrop.dropout import FURTHEST_LOGIT, NoiseLayer
from lbdrop.errors import DropoutError

__all__ = ["ConcreteDropout", "FixedDropout", "GaussianDropout", "RegularDropout"]


class FixedDropout(NoiseLayer):
    """Bernoulli dropout at a rate that stays; sampled at test time too (MC dropout)."""

    learns = False

    def mask_of(self, uniforms: Tensor, dims: int) -> Tensor:
        return indicator(torch.ge, uniforms, 1 - self.spread(self.keep, dims))


class RegularDropout(FixedDropout):
    """Dropout as most networks have it: a fixed rate in training, off at test time."""

    samples_at_test = False


class ConcreteDropout(NoiseLayer):
    """A relaxed mask between 0 and 1, through which autograd reaches the rate; biased for Bernoulli masks."""

    temperature = 0.1

    def mask_of(self, uniforms: Tensor, dims: int) -> Tensor:
        # Uniforms of exactly 0 have no logistic noise.
        noise = torch.logit(uniforms, eps=torch.finfo(uniforms.dtype).eps)
        return torch.sigmoid((self.spread(self.logit, dims) + noise) / self.temperature)


class GaussianDropout(NoiseLayer):
    """Multiplicative Gaussian noise of mean 1 and learned variance: variational dropout with noise per unit."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        if self.scale != "inverted":
            raise DropoutError(
                f"scale: want none with Gaussian noise, whose mean is 1, got {self.scale!r}; leave it out"
            )

    logit_range = (0.0, FURTHEST_LOGIT)  # below 0 the variance stays at its bound and has no gradient

    def variance(self) -> Float[Tensor, "*units"]:
        """The variance (1−p)/p, at most 1: beyond that the bound's approximation fails and training diverges."""
        return torch.exp(-clamp_min_with_gradient(self.logit, 0.0))

    def mask_of(self, uniforms: Tensor, dims: int) -> Tensor:
        spread = self.spread(self.variance().sqrt(), dims)
        # The normal quantile by erfinv, which takes a fifth of ndtri's time; 0 and 1 have none.
        end = 1 - torch.finfo(uniforms.dtype).eps / 2
        return 1 + spread * (math.sqrt(2) * torch.erfinv((2 * uniforms - 1).clamp(-end, end)))

    def masked(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return x if mask is None else x * mask
