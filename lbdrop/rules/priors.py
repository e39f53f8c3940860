r"""What a dropout's masks cost under their prior: the KL, in closed form.

With the quantised Gaussian prior of Gal 2016 on the weights $W_k$ that unit $k$ feeds, $s$ its standard deviation:

$$ \mathrm{KL} = \sum_k \frac{p_k}{2s^2}\lVert W_k\rVert^2 - H(p_k) \quad\text{(plain masks)}, \qquad
   \sum_k \frac{1}{2s^2 p_k}\lVert W_k\rVert^2 - H(p_k) \quad\text{(inverted scaling: the weight is } W_k/p_k) $$

Where no weights are known that the dropout feeds, the mask itself has a Bernoulli prior:
$\mathrm{KL}(\mathrm{Ber}(p)\,\Vert\,\mathrm{Ber}(p_0))$. A scheme with another KL registers it: ``@mask_kl.register``.
"""

import math
from functools import singledispatch

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop.dropout import NoiseLayer
from lbdrop.masks import entropy
from lbdrop.rivals import FixedDropout, GaussianDropout
from lbdrop.sites.lora import RankGate

__all__ = ["bernoulli_kl", "expected_norms", "gaussian_kl", "mask_kl", "norms_fed_by", "outgoing_norms"]


@singledispatch
def mask_kl(
    layer: NoiseLayer, norms: Float[Tensor, "units"] | None, units: int, s: float, prior_keep: float
) -> Float[Tensor, ""]:
    """What the masks of a layer cost, up to a constant; ``norms`` of the weights it feeds where known."""
    # An alpha-dropped unit is not zero, so its weights are never switched off: only the mask has a prior.
    if norms is None or layer.scale == "alpha":
        return bernoulli_kl(layer.logit, prior_keep).sum() * (1 if layer.units else units)
    count = 1 if layer.units else norms.numel()  # one rate stands for every unit
    inverted = layer.scale == "inverted"
    return expected_norms(layer.logit, norms, s, inverted) - (entropy(layer.logit) * count).sum()


@mask_kl.register(FixedDropout)
def _(
    layer: FixedDropout, norms: Float[Tensor, "units"] | None, units: int, s: float, prior_keep: float
) -> Float[Tensor, ""]:
    """The weights' part alone: the mask's is a constant."""
    if norms is None or layer.scale == "alpha":
        return torch.zeros((), device=layer.logit.device)
    return expected_norms(layer.logit, norms, s, inverted=layer.scale == "inverted")


@mask_kl.register(GaussianDropout)
def _(
    layer: GaussianDropout, norms: Float[Tensor, "units"] | None, units: int, s: float, prior_keep: float
) -> Float[Tensor, ""]:
    return gaussian_kl(layer).sum() * (1 if layer.units else units)


@mask_kl.register(RankGate)
def _(
    layer: RankGate, norms: Float[Tensor, "units"] | None, units: int, s: float, prior_keep: float
) -> Float[Tensor, ""]:
    """A prior of its own: an open rank has a cost."""
    return (layer.cost * layer.keep - entropy(layer.logit)).sum()


def gaussian_kl(layer: GaussianDropout) -> Float[Tensor, "*units"]:
    """Of every unit against the log-uniform prior, by the cubic of Kingma et al. 2015, equation 14."""
    a = layer.variance()
    return -(0.5 * torch.log(a) + 1.16145124 * a - 1.50204118 * a**2 + 0.58629921 * a**3)


def bernoulli_kl(logit: Float[Tensor, "*units"], prior_keep: float = 0.5) -> Float[Tensor, "*units"]:
    """KL(Ber(σ(logit)) ‖ Ber(prior_keep)) for every unit."""
    keep = torch.sigmoid(logit)
    return -entropy(logit) - keep * math.log(prior_keep) - (1 - keep) * math.log1p(-prior_keep)


def expected_norms(
    logit: Float[Tensor, "*rates"], norms: Float[Tensor, "units"], s: float, inverted: bool
) -> Float[Tensor, ""]:
    """E‖W‖²/2s² over the masks: weight decay, as strong as the masks make it."""
    keep = torch.sigmoid(logit)
    return (norms / keep if inverted else norms * keep).sum() / (2 * s**2)


def norms_fed_by(layer: NoiseLayer, consumer: nn.Module, units: int) -> Float[Tensor, "units"]:
    """The squared norms of the weights that each unit of a layer feeds; one rate stands for all inputs of the consumer."""
    if layer.units is None and not (layer.channels and isinstance(consumer, nn.Linear)):
        units = int(getattr(consumer, "in_features", None) or getattr(consumer, "in_channels", units))
    return outgoing_norms(consumer, units)


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
    # Every step comes here: nothing is summed where a unit feeds a single column.
    return squares if len(squares) == units else squares.view(units, -1).sum(1)
