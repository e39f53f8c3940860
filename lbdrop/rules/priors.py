r"""What a dropout's masks cost under their prior: the KL, in closed form.

With the quantised Gaussian prior of Gal 2016 on the weights $W_k$ that unit $k$ feeds, $s$ its standard deviation:

$$ \mathrm{KL} = \sum_k \frac{p_k}{2s^2}\lVert W_k\rVert^2 + \log 2 - H(p_k) \quad\text{(plain masks)}, \qquad
   \sum_k \frac{1}{2s^2 p_k}\lVert W_k\rVert^2 + \log 2 - H(p_k) \quad\text{(inverted scaling: the weight is } W_k/p_k) $$

Where no weights are known that the dropout feeds, the mask itself has a Bernoulli prior:
$\mathrm{KL}(\mathrm{Ber}(p)\,\Vert\,\mathrm{Ber}(p_0))$. A scheme with another KL registers it: ``@mask_kl.register``.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, singledispatch
from itertools import islice
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lbdrop._torch import norms_of_many
from lbdrop.dropout import NoiseLayer
from lbdrop.masks import entropy
from lbdrop.rivals import FixedDropout, GaussianDropout
from lbdrop.sites.lora import RankGate

__all__ = ["bernoulli_kl", "expected_norms", "gaussian_kl", "mask_kl", "outgoing_norms", "total_kl"]

AT_VARIANCE_1 = 1.16145124 - 1.50204118 + 0.58629921
"""What the cubic below is at most, for variances up to 1."""


@singledispatch
def mask_kl(
    layer: NoiseLayer, norms: Float[Tensor, "units"] | None, units: int, s: float, prior_keep: float
) -> Float[Tensor, ""]:
    """What the masks of a layer cost, never below 0; ``norms`` of the weights it feeds where known."""
    # An alpha-dropped unit is not zero, so its weights are never switched off: only the mask has a prior.
    if norms is None or layer.scale == "alpha":
        return bernoulli_kl(layer.logit, prior_keep).sum() * (1 if layer.units else units)
    count = 1 if layer.units else norms.numel()  # one rate stands for every unit
    inverted = layer.scale == "inverted"
    return expected_norms(layer.logit, norms, s, inverted) + ((math.log(2) - entropy(layer.logit)) * count).sum()


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
    """Never below 0: a constant more than :func:`gaussian_kl`."""
    return (AT_VARIANCE_1 + gaussian_kl(layer)).sum() * (1 if layer.units else units)


@mask_kl.register(RankGate)
def _(
    layer: RankGate, norms: Float[Tensor, "units"] | None, units: int, s: float, prior_keep: float
) -> Float[Tensor, ""]:
    """A prior of its own: an open rank has a cost."""
    return (layer.cost * layer.keep + math.log(2) - entropy(layer.logit)).sum()


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


def total_kl(
    layers: Mapping[str, NoiseLayer], consumers: Mapping[str, Sequence[nn.Module]], s: float, prior_keep: float
) -> Float[Tensor, ""]:
    """The KL of all layers, never below 0; ``consumers`` are the linear layers that each feeds, where these are known.

    Every step comes here, and a model may have many layers: all that have one rate each are computed together.
    """
    parts, one_rate = [], []
    for name, layer in layers.items():
        units = layer.units or layer.width
        assert units is not None, "the KL is asked for after a forward pass"
        # A dropped example switches no weight off.
        fed = [] if layer.examples else [(each, _inputs(layer, each, units)) for each in consumers.get(name, ())]
        if len({count for _, count in fed}) != 1:  # nothing known, or consumers that count units differently
            fed = []
        if layer.logit.dim() or mask_kl.dispatch(type(layer)) is not mask_kl.dispatch(object):
            norms = torch.stack([outgoing_norms(*each) for each in fed]).sum(0) if fed else None
            parts.append(mask_kl(layer, norms, units, s, prior_keep))
        else:
            weights = [] if layer.scale == "alpha" else [_weight(each) for each, _ in fed]
            count = fed[0][1] if weights else units
            one_rate.append(_OneRate(layer.logit, count, weights, layer.scale == "inverted"))
    if one_rate:
        weights = [weight for rate in one_rate for weight in rate.weights]
        parts.append(_OneRates.apply(one_rate, s, prior_keep, *(rate.logit for rate in one_rate), *weights))
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


class _OneRate(NamedTuple):
    """A rate that stands for so many units, and the weights that they feed, if known."""

    logit: Tensor
    units: int
    weights: list[Tensor]
    inverted: bool


class _OneRates(torch.autograd.Function):
    """The KL of one rate each, with its gradient in closed form: one node of the graph, whatever the number of layers."""

    @staticmethod
    def forward(ctx: Any, rates: list[_OneRate], s: float, prior_keep: float, *tensors: Tensor) -> Tensor:
        logits, ctx.lengths = torch.stack(tensors[: len(rates)]), [len(rate.weights) for rate in rates]
        weights, keep = tensors[len(rates) :], torch.sigmoid(logits)
        counts, unknown, sign = _columns(
            tuple((rate.units, 0 if rate.weights else rate.units, -1 if rate.inverted else 1) for rate in rates),
            logits.dtype,
            logits.device,
        )
        squares = iter(norm.to(logits).square() for norm in norms_of_many(weights, 2.0))
        none = logits.new_zeros(())
        norms = torch.stack([sum(islice(squares, length), none) for length in ctx.lengths]) / (2 * s**2)
        factor, log_odds = keep**sign, math.log(prior_keep) - math.log1p(-prior_keep)
        prior = unknown * (keep * log_odds + math.log1p(-prior_keep))
        slope = sign * norms * factor / keep + counts * logits - unknown * log_odds
        ctx.slopes = keep * (1 - keep) * slope
        ctx.factors = factor / s**2
        ctx.save_for_backward(*weights)
        return (norms * factor - counts * entropy(logits) - prior + (counts - unknown) * math.log(2)).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (scale,) = grad_outputs
        factors = (scale * ctx.factors).unbind()
        each = [factor for factor, length in zip(factors, ctx.lengths, strict=True) for _ in range(length)]
        needed = ctx.needs_input_grad[3 + len(factors) :]
        weights = [
            factor.to(weight.dtype) * weight if need else None
            for factor, weight, need in zip(each, ctx.saved_tensors, needed, strict=True)
        ]
        return None, None, None, *(scale * ctx.slopes).unbind(), *weights


@lru_cache(maxsize=64)
def _columns(rows: tuple[tuple[int, int, int], ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """The same in every step of a model, and a copy to a device."""
    return torch.tensor(rows, dtype=dtype, device=device).unbind(1)


def _inputs(layer: NoiseLayer, consumer: nn.Module, units: int) -> int:
    """How many units a consumer reads; one rate stands for all of its inputs."""
    if layer.units is None and not (layer.channels and isinstance(consumer, nn.Linear)):
        return int(getattr(consumer, "in_features", None) or getattr(consumer, "in_channels", units))
    return units


def outgoing_norms(consumer: nn.Module, units: int) -> Float[Tensor, "units"]:
    """The squared norm of the weights that each of ``units`` units feeds in a linear or convolutional layer.

    A map flattened before a linear layer feeds a block of its columns per channel.
    """
    weight = _weight(consumer)
    if isinstance(consumer, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        squares = weight.pow(2).flatten(1).sum(1)
    else:
        groups = getattr(consumer, "groups", 1)
        inputs = weight.shape[1]
        squares = weight.view(groups, -1, inputs, weight.shape[2:].numel()).pow(2).sum((1, 3)).flatten()
    return squares if len(squares) == units else squares.view(units, -1).sum(1)


def _weight(consumer: nn.Module) -> Tensor:
    weight = consumer.weight  # by attribute: it may be parametrised
    assert isinstance(weight, Tensor)
    return weight
