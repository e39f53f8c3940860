r"""Masks as visible state: contexts that say where every layer of a model takes its mask from.

One set of uniforms $u$ serves all layers and both masks of an antithetic pair:

$$ z = 1[u > \sigma(-\alpha)], \qquad \tilde z = 1[u < \sigma(\alpha)] $$

>>> import torch, lbdrop
>>> net = torch.nn.Sequential(torch.nn.Linear(3, 5), lbdrop.LearnableDropout(5), torch.nn.Linear(5, 1))
>>> x = torch.randn(2, 3)
>>> with held(net) as draw:
...     a, b = net(x), net(x)
>>> with mirrored(net, draw):
...     c = net(x)
>>> bool((a == b).all()), bool((a == c).all())
(True, False)
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import singledispatch

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop.dropout import NoiseLayer, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.sources import MaskSource, source_of, use_in

__all__ = [
    "Held",
    "Layout",
    "MaskSource",
    "deterministic",
    "drawn",
    "entropy",
    "fixed",
    "held",
    "layout_of",
    "mirrored",
    "use",
    "use_in",
]


@dataclass(frozen=True)
class Layout:
    """Where the examples are along the axes of a mask: each may stand for several rows, as the windows of an image do."""

    axis: int
    interleaved: bool = False
    """Whether rows of one example are a batch apart, or next to each other."""

    def rows(self, shape: torch.Size) -> int:
        """How many rows a mask of this shape has, a multiple of the examples."""
        return shape[self.axis]

    def spread(self, values: Tensor, rows: int) -> Tensor:
        """From (n, examples) to (n, rows)."""
        times = rows // values.shape[1]
        if times == 1:
            return values
        return values.repeat(1, times) if self.interleaved else values.repeat_interleave(times, 1)

    def group(self, values: Tensor, examples: int) -> Tensor:
        """From (n, rows) to the sums (n, examples)."""
        if values.shape[1] == examples:
            return values
        shape = (-1, examples) if self.interleaved else (examples, -1)
        return values.unflatten(1, shape).sum(1 if self.interleaved else 2)

    def collect(self, gradient: Tensor, layer: NoiseLayer) -> Tensor:
        """The gradient of the layer's logits, from that of each element of a mask."""
        return gradient.movedim(layer.unit_dim, -1).flatten(0, -2).sum(0) if layer.logit.dim() else gradient.sum()


@singledispatch
def layout_of(layer: NoiseLayer) -> Layout:
    """Where a layer says that examples are; a layer with another layout registers it: ``@layout_of.register``."""
    return Layout(layer.batch_dim)


@contextmanager
def use(model: nn.Module, source: MaskSource) -> Iterator[None]:
    """Every learned dropout of ``model`` takes its masks from ``source``, in this thread alone."""
    with use_in(noise_layers(model).values(), source):
        yield


class _Drawn:
    """A fresh mask at every call."""

    def __init__(self, generator: torch.Generator | None):
        self.generator = generator

    def mask(self, layer: NoiseLayer, x: Tensor) -> Tensor:
        return layer.draw(1, layer.mask_shape(x), x, self.generator)[0]


class _Deterministic:
    def mask(self, layer: NoiseLayer, x: Tensor) -> None:
        return None


class Held:
    """Uniforms that stay: the first pass through a layer draws them, every later pass finds the same ones.

    A layer that a pass uses several times has uniforms for each use. A pass begins when the whole model is called.
    """

    def __init__(self, generator: torch.Generator | None = None):
        self.generator = generator
        self.mirror = False
        # u is kept, not z: both masks of the pair come from it.
        self.uniforms: dict[tuple[NoiseLayer, int], Tensor] = {}
        self._uses: Counter[NoiseLayer] = Counter()

    def begin(self) -> None:
        self._uses.clear()

    def mask(self, layer: NoiseLayer, x: Tensor) -> Tensor:
        key = (layer, self._uses[layer])
        self._uses[layer] += 1
        if key not in self.uniforms:
            self.uniforms[key] = layer.uniforms(layer.mask_shape(x), x, self.generator)
        uniforms = self.uniforms[key]
        if uniforms.shape != layer.mask_shape(x):
            raise DropoutError(
                f"held masks: want input for masks of shape {tuple(uniforms.shape)}, got {layer.mask_shape(x)}; open a"
                " new context for another batch"
            )
        return layer.mask_of(1 - uniforms if self.mirror else uniforms, x.dim()).to(x.dtype)


class _Fixed:
    def __init__(self, masks: Mapping[NoiseLayer, Tensor]):
        self.masks = masks

    def mask(self, layer: NoiseLayer, x: Tensor) -> Tensor | None:
        mask = self.masks.get(layer)
        return None if mask is None else mask.to(device=x.device, dtype=x.dtype)


@contextmanager
def drawn(model: nn.Module, generator: torch.Generator | None = None) -> Iterator[None]:
    """Sample in every mode, training or eval; the same generator state gives the same masks."""
    with use(model, _Drawn(generator)):
        yield


@contextmanager
def deterministic(model: nn.Module) -> Iterator[None]:
    """Run the deterministic pass, z → σ(α), in every mode."""
    with use(model, _Deterministic()):
        yield


@contextmanager
def held(model: nn.Module, generator: torch.Generator | None = None) -> Iterator[Held]:
    """Draw once, then repeat: every call of the model sees the same masks."""
    with _replayed(model, Held(generator), mirror=False) as draw:
        yield draw


@contextmanager
def mirrored(model: nn.Module, draw: Held) -> Iterator[Held]:
    """Every layer takes the antithetic partner of the mask that ``draw`` holds."""
    with _replayed(model, draw, mirror=True):
        yield draw


@contextmanager
def _replayed(model: nn.Module, draw: Held, mirror: bool) -> Iterator[Held]:
    layer = next(iter(noise_layers(model).values()))

    def begin(*_: object) -> None:
        if source_of(layer) is draw:  # not where another thread calls the model
            draw.begin()

    hook = model.register_forward_pre_hook(begin)
    before, draw.mirror = draw.mirror, mirror
    try:
        with use(model, draw):
            yield draw
    finally:
        draw.mirror = before
        hook.remove()


@contextmanager
def fixed(model: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[None]:
    """Give masks by layer name; a layer that is not named runs its deterministic pass.

    A mask is 0 and 1 in any shape that broadcasts to the layer's input, say (units,) for a fully connected layer.
    """
    layers = noise_layers(model)
    unknown = sorted(set(masks) - set(layers))
    if unknown:
        raise DropoutError(f"masks: want names among {sorted(layers)}, got {unknown}")
    with use(model, _Fixed({layers[name]: mask for name, mask in masks.items()})):
        yield


def entropy(logit: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
    """The entropy of a mask, Ber(σ(logit)), without cancellation at either end."""
    keep = torch.sigmoid(logit)
    return keep * F.softplus(-logit) + (1 - keep) * F.softplus(logit)
