r"""The KL between a dropout's masks and its prior, in closed form.

With the quantised Gaussian prior of Gal 2016 on the weights $W_k$ that unit $k$ feeds, $s$ its standard deviation:

$$ \mathrm{KL} = \sum_k \frac{p_k}{2s^2}\lVert W_k\rVert^2 - H(p_k) \quad\text{(plain masks)}, \qquad
   \sum_k \frac{1}{2s^2 p_k}\lVert W_k\rVert^2 - H(p_k) \quad\text{(inverted scaling: the weight is } W_k/p_k) $$

Where the dropout feeds no weights that are known, the mask itself has a Bernoulli prior:
$\mathrm{KL}(\mathrm{Ber}(p)\,\Vert\,\mathrm{Ber}(p_0))$.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["bernoulli_kl", "entropy", "expected_norms", "gaussian_kl", "outgoing_norms"]


def entropy(logit: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
    """The entropy of Ber(σ(logit)), without cancellation at either end."""
    keep = torch.sigmoid(logit)
    return keep * F.softplus(-logit) + (1 - keep) * F.softplus(logit)


def bernoulli_kl(logit: Float[Tensor, "*units"], prior_keep: float = 0.5) -> Float[Tensor, "*units"]:
    """KL(Ber(σ(logit)) ‖ Ber(prior_keep)) for every unit."""
    keep = torch.sigmoid(logit)
    return -entropy(logit) - keep * math.log(prior_keep) - (1 - keep) * math.log1p(-prior_keep)


def gaussian_kl(
    logit: Float[Tensor, "*rates"], norms: Float[Tensor, "units"], s: float, inverted: bool
) -> Float[Tensor, ""]:
    """The KL of one layer's weights, up to a constant; ``norms`` are the squared norms ‖W_k‖²."""
    units = 1 if logit.dim() else norms.numel()  # one rate stands for every unit
    return expected_norms(logit, norms, s, inverted) - (entropy(logit) * units).sum()


def expected_norms(
    logit: Float[Tensor, "*rates"], norms: Float[Tensor, "units"], s: float, inverted: bool
) -> Float[Tensor, ""]:
    """E‖W‖²/2s² over the masks: weight decay, as strong as the masks make it."""
    keep = torch.sigmoid(logit)
    return (norms / keep if inverted else norms * keep).sum() / (2 * s**2)


def outgoing_norms(consumer: nn.Module, units: int) -> Float[Tensor, "units"]:
    """The squared norm of the weights that each of ``units`` units feeds in a linear or convolutional layer.

    A map flattened before a linear layer feeds a block of its columns per channel.
    """
    weight = consumer.weight  # by attribute: it may be parametrised
    assert isinstance(weight, Tensor)
    if isinstance(consumer, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        squares = weight.pow(2).flatten(1).sum(1)
    else:
        groups = getattr(consumer, "groups", 1)
        inputs = weight.shape[1]
        squares = weight.view(groups, -1, inputs, weight.shape[2:].numel()).pow(2).sum((1, 3)).flatten()
    # Each step takes this way, so it does nothing where a unit feeds a single column.
    return squares if len(squares) == units else squares.view(units, -1).sum(1)
