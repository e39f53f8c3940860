r"""A dropout layer whose rates are parameters.

$$ y = x \odot z, \qquad z \sim \mathrm{Ber}(\sigma(\alpha)), \qquad \text{rate} = 1 - \sigma(\alpha) $$

The layer only says *where* a mask goes and *what it does*; the mask comes from the active context (:mod:`lbdrop.masks`),
and the gradient of $\alpha$ from the objective (:mod:`lbdrop.objective`).

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020.
"""

import math
import warnings
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop._torch import explain_missing, indicator
from lbdrop.errors import DropoutError
from lbdrop.sources import source_of

__all__ = ["LearnableDropout", "NoiseLayer", "Scale", "learned_layers", "logit_of", "noise_layers"]

Scale = Literal["inverted", "none", "alpha"]

# Learned rates stay between .001 and .999. Beyond, a batch of masks is all ones or all zeros, and an estimator that sees no
# difference has no gradient to bring the rate back by.
FURTHEST_LOGIT = math.log(999)

# The value that a dropped SELU activation takes: -λα of Klambauer et al. 2017.
SELU_FLOOR = -1.7580993408473766


class NoiseLayer(nn.Module):
    r"""What every dropout scheme shares: where its mask goes and where the mask comes from.

    A scheme says how uniforms become a mask (:meth:`mask_of`); what that costs under a prior says :mod:`lbdrop.rules.priors`.

    Args:
        units: how many units the layer has, each with a rate of its own; ``None`` for one rate.
        rate: the drop rate to start from, above 0 and below 1, by default .5; one that is learned stays from .001 to .999.
        channels: drop whole channels, one draw for ``x[b, c]`` of a map (batch, channels, …), as ``nn.Dropout2d``
            does; otherwise one draw per element, as ``nn.Dropout`` does.
        examples: drop whole examples, one draw for ``x[b]``, as stochastic depth does with a residual branch.
        unit_dim: the axis of the units; 1 where ``channels`` is set, the last one otherwise.
        batch_dim: the axis of the examples; 1 for sequence-first data.
        scale: ``"inverted"`` divides by the keep rate as ``nn.Dropout`` does; ``"none"`` leaves masks as they are
            (the paper's); ``"alpha"`` is that of ``nn.AlphaDropout`` for SELU units.
        logit: a parameter to use instead of a new one: layers that hold the same one share their rate.
        generator: draws the masks when no context does.

    Without a context the layer samples in training mode and runs its deterministic pass in eval mode.
    """

    logit: Tensor
    learns: ClassVar[bool] = True
    """Whether the rate is a parameter."""
    estimated: ClassVar[bool] = False
    """Whether the rate's gradient comes from an estimator, that is, inside an objective alone."""
    logit_range: ClassVar[tuple[float, float]] = (-FURTHEST_LOGIT, FURTHEST_LOGIT)
    """Where training keeps the logits: rates from .001 to .999, from which they can come back."""
    earlier_state: ClassVar[tuple[str, ...]] = ("ledger", "slopes", "unit_prices", "responses")
    """Under these names earlier versions kept the state of a rule in that of a layer."""
    in_function: bool = False
    """Whether it answers a draw in a model's code (:mod:`lbdrop.sites.draws`), which compiled graphs do not see."""
    samples_at_test: bool = True
    """Whether :func:`lbdrop.predict` draws masks here."""

    def __init__(
        self,
        units: int | None = None,
        rate: float | None = None,
        *,
        channels: bool = False,
        examples: bool = False,
        unit_dim: int | None = None,
        batch_dim: int = 0,
        scale: Scale = "inverted",
        logit: nn.Parameter | None = None,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        if logit is not None and rate is not None:
            raise DropoutError(f"rate: want none beside a logit, which has one, got {rate}; leave it out")
        rate = 0.5 if rate is None else rate
        if not (0.0 < rate < 1.0 or (rate == 0 and not self.learns)):
            raise DropoutError(f"rate: want a number strictly between 0 and 1, got {rate}; a rate of 0 needs no layer")
        if units is not None and units < 1:
            raise DropoutError(f"units: want at least 1, or None for one rate, got {units}")
        if scale not in ("inverted", "none", "alpha"):
            raise DropoutError(f"scale: want 'inverted', 'none' or 'alpha', got {scale!r}")
        if examples and (channels or units is not None or unit_dim is not None):
            given = f"units={units}, channels={channels}, unit_dim={unit_dim}"
            raise DropoutError(f"examples: want one rate, no channels and no unit_dim, got {given}")
        shape = () if units is None else (units,)
        if logit is None:
            logit = nn.Parameter(torch.full(shape, logit_of(rate)))
        elif tuple(logit.shape) != shape:
            raise DropoutError(
                f"logit: want shape {shape} for units={units}, got {tuple(logit.shape)}; layers share a rate only if"
                " they have the same number of units, or one rate each"
            )
        if self.learns:
            self.logit = logit
        else:
            self.register_buffer("logit", logit.detach())
        self.channels, self.examples = channels, examples
        self.unit_dim = unit_dim if unit_dim is not None else (1 if channels else -1)
        self.batch_dim = batch_dim
        self.scale: Scale = scale
        self.generator = generator
        # The number of units and of axes last seen: what one rate stands for in the KL, and what bake has to replace.
        self.width: int | None = units
        self.dims: int | None = None

    @property
    def units(self) -> int | None:
        """How many units have a rate of their own; ``None`` where one rate serves all."""
        return self.logit.numel() if self.logit.dim() else None

    @property
    def keep(self) -> Float[Tensor, "*units"]:
        """The keep rates σ(α)."""
        return torch.sigmoid(self.logit)

    @property
    def rate(self) -> Float[Tensor, "*units"]:
        """The drop rates, detached."""
        return torch.sigmoid(-self.logit.detach())

    @property
    def p(self) -> float:
        """The mean drop rate: code written for ``nn.Dropout`` reads it here."""
        return float(self.rate.mean())

    def mask_shape(self, x: Tensor) -> tuple[int, ...]:
        """The shape of one mask for ``x``: that of ``x``, or 1 along the axes that a channel or an example spans."""
        if not (self.channels or self.examples):
            return tuple(x.shape)
        kept = {self.batch_dim % x.dim()} | ({self.unit_dim % x.dim()} if self.channels else set())
        return tuple(size if axis in kept else 1 for axis, size in enumerate(x.shape))

    def spread(self, values: Tensor, dims: int) -> Tensor:
        """Reshape a value per unit so that it broadcasts along the unit axis of a tensor with ``dims`` axes."""
        if not values.dim():
            return values
        shape = [1] * dims
        shape[self.unit_dim] = values.numel()
        return values.view(shape)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        self.width, self.dims = 1 if self.examples else x.shape[self._width_dim(x)], x.dim()
        if (source := source_of(self)) is not None:
            mask = source.mask(self, x)
        elif self.training:
            mask = self.draw(1, self.mask_shape(x), x, self.generator)[0]
        else:
            mask = None
        return self.masked(x, mask)

    @abstractmethod
    def mask_of(self, uniforms: Tensor, dims: int) -> Tensor:
        """The mask, of ``dims`` axes, that uniforms stand for, or several along leading axes; 1 − u is its mirror image."""

    def uniforms(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
        # At least float32 whatever the activations are in: a rate of .001 is lost in bfloat16's uniforms.
        dtype = torch.promote_types(self.logit.dtype, torch.float32)
        if generator is None:  # not passed on: a compiled graph with symbolic sizes cannot take it
            return torch.rand(shape, dtype=dtype, device=like.device)
        return torch.rand(shape, dtype=dtype, device=like.device, generator=generator)

    def draw(self, count: int, shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
        """``count`` masks of ``shape`` along a leading axis, in the precision of ``like``."""
        return self.mask_of(self.uniforms((count, *shape), like, generator), len(shape)).to(like.dtype)

    def masked(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Apply a mask; ``None`` stands for the deterministic pass, which keeps every unit's mean."""
        if mask is None and self.scale != "none":
            return x
        keep = self.keep_for(x.dim())
        if mask is None:
            return x * keep.to(x.dtype)
        if self.scale == "none":
            return x * mask
        if self.scale == "inverted":
            # The gradient of α reaches through 1/keep as well as through the mask's distribution: autograd has this one.
            return x * (mask * keep.reciprocal().to(x.dtype))
        a = (keep + SELU_FLOOR**2 * keep * (1 - keep)).rsqrt()
        b = -a * SELU_FLOOR * (1 - keep)
        return (x * mask + SELU_FLOOR * (1 - mask)) * a.to(x.dtype) + b.to(x.dtype)

    def keep_for(self, dims: int) -> Tensor:
        """The keep rates that masks are drawn and scaled with, to broadcast against a tensor of ``dims`` axes."""
        # A plain call has no estimator behind it: half of a gradient would be worse than none.
        # Detached before the sigmoid: a recomputed checkpoint has to save what the objective's own pass saved.
        if (source := source_of(self)) is None:
            return self.spread(torch.sigmoid(self.logit.detach() if self.estimated else self.logit), dims)
        logit_of_source = getattr(source, "logit", None)  # one that weighs the gradient
        return self.spread(torch.sigmoid(logit_of_source(self)) if logit_of_source else self.keep, dims)

    def gain(self) -> Float[Tensor, "*units"]:
        """What the deterministic pass multiplies each unit by."""
        ones = self.spread(torch.ones_like(self.logit), dims=8)
        return self.masked(ones, None).detach().reshape(self.logit.shape)

    def _width_dim(self, x: Tensor) -> int:
        # On a map (batch, channels, height, width) one rate stands for the channels, also where elements are dropped.
        return 1 if x.dim() > 3 and self.units is None else self.unit_dim

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        names = tuple(f"{prefix}{name}." for name in self.earlier_state)
        if keys := [key for key in state_dict if key.startswith(names)]:
            for key in keys:
                del state_dict[key]
            warnings.warn(
                "state: want a model's weights and rates, got also what a rule had measured, which an earlier version of"
                " lbdrop kept there; it is left out: the model predicts as it did, but its training cannot be resumed",
                stacklevel=2,
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        explain_missing(
            args, f"{prefix}logit", "a rate, which a checkpoint of the plain model has not: lbdrop.load_weights"
        )

    def _check(self, x: Tensor) -> None:
        if not x.is_floating_point():
            raise DropoutError(f"input: want floating point, got {x.dtype}; embed or convert it before dropout")
        if x.dim() < 2:
            raise DropoutError(f"input: want (batch, …, units), got shape {tuple(x.shape)}; add a batch axis")
        if self.units is not None and x.shape[self.unit_dim] != self.units:
            raise DropoutError(
                f"input: want {self.units} units along axis {self.unit_dim}, got {x.shape[self.unit_dim]} in shape"
                f" {tuple(x.shape)}; give LearnableDropout units={x.shape[self.unit_dim]}, or the axis by unit_dim"
            )

    def extra_repr(self) -> str:
        keep = self.keep.detach()
        low, high = f"{keep.min():.2f}", f"{keep.max():.2f}"
        rates = low if low == high else f"{low}–{high}"
        what = f"{self.units} units" if self.units else "one rate"
        return (
            f"{what}, keep={rates}"
            + (", channels" if self.channels else ", examples" if self.examples else "")
            + f", scale={self.scale}"
        )


class LearnableDropout(NoiseLayer):
    r"""Bernoulli dropout with a learned rate per unit, or one for the layer; see :class:`NoiseLayer` for the settings.

    Example:
        >>> layer = LearnableDropout(4, rate=0.2)
        >>> layer
        LearnableDropout(4 units, keep=0.80, scale=inverted)
        >>> layer.eval()(torch.ones(1, 4))
        tensor([[1., 1., 1., 1.]])
    """

    logit: nn.Parameter  # pyright: ignore[reportIncompatibleVariableOverride]
    estimated = True

    def mask_of(self, uniforms: Tensor, dims: int) -> Tensor:
        return indicator(torch.ge, uniforms, 1 - self.keep_for(dims).detach())


def logit_of(rate: float) -> float:
    """The logit of a keep rate, given the drop rate."""
    return math.log1p(-rate) - math.log(rate) if rate else math.inf


def learned_layers(model: nn.Module) -> dict[str, LearnableDropout]:
    """Every learned Bernoulli dropout of a model by name, each once."""
    return {name: m for name, m in model.named_modules() if isinstance(m, LearnableDropout)}


def noise_layers(model: nn.Module) -> dict[str, NoiseLayer]:
    """Every dropout of ours in a model by name, each once; an error if there is none."""
    layers = {name: m for name, m in model.named_modules() if isinstance(m, NoiseLayer)}
    if not layers:
        raise DropoutError(
            f"no learned dropout in {type(model).__name__}; call lbdrop.convert(model) first, or build the model with"
            " LearnableDropout"
        )
    return layers
