"""Masks around the present rates: every example at offsets of its own, the same at all layers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from experiments.rival_rules.responding import RespondingDropout
from lbdrop.dropout import NoiseLayer
from lbdrop.errors import DropoutError
from lbdrop.passes.drawer import Drawer

__all__ = ["MasksAround", "Widths"]


class MasksAround(Drawer):
    """The offsets of one pass, drawn when the first layer shows how many examples there are.

    Args:
        logits: the rates, each once.
        spread: standard deviation of the offsets; 0 stays at the rates as they are.
        masks: masks to draw for each example.
        silent: of the rates, those whose layers have no dropout: every mask is its mean.
        follow: whether the offsets are wanted with a gradient.
        generator: draws offsets and masks.
    """

    def __init__(
        self,
        logits: Sequence[Tensor],
        spread: float,
        *,
        masks: int = 1,
        silent: Sequence[Tensor] = (),
        follow: bool = False,
        generator: torch.Generator | None = None,
    ):
        self.logits, self.spread = logits, spread
        self.masks, self.follow, self.generator = masks, follow, generator
        self.silent = {id(logit) for logit in silent}
        self.offsets: Tensor | None = None
        self._layers: list[RespondingDropout] = []  # that have them

    @contextmanager
    def opened(self) -> Iterator[None]:
        try:
            yield
        finally:
            for layer in self._layers:
                layer.offsets = layer.cached_keep = None

    def begin(self) -> None:
        self.offsets = None

    def shift(self, layer: NoiseLayer, examples: int) -> None:
        if not self.spread or not isinstance(layer, RespondingDropout) or layer.responses is None:
            return
        if self.offsets is None:
            like = self.logits[0]
            dtype, size = torch.promote_types(like.dtype, torch.float32), (examples, len(self.logits))
            noise = torch.empty(size, dtype=dtype, device=like.device)
            noise.normal_(std=self.spread, generator=self.generator)
            for rate, logit in enumerate(self.logits):
                if not logit.requires_grad:  # it stays where it is: nothing to answer to
                    noise[:, rate] = 0
            self.offsets = noise.requires_grad_(self.follow)
        if len(self.offsets) != examples:
            raise DropoutError(
                f"self-tuning: want the same examples at every dropout, got {len(self.offsets)} and {examples}; name the"
                " examples' axis by batch_dim"
            )
        layer.offsets = self.offsets
        self._layers.append(layer)

    # As a Drawer: masks at the shifted rates.
    def draws(self, layer: NoiseLayer) -> bool:
        return id(layer.logit) not in self.silent

    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        self.shift(layer, shape[layer.batch_dim])
        return layer.draw(self.masks, shape, x, self.generator)

    # As a MaskSource: no masks, but the offsets.
    def mask(self, layer: NoiseLayer, x: Tensor) -> None:
        self.shift(layer, x.shape[layer.batch_dim])
        return None


class Widths:
    """A source of no masks that notes who asks, and with how many units."""

    def __init__(self) -> None:
        self.found: set[tuple[NoiseLayer, int, int]] = set()

    def mask(self, layer: NoiseLayer, x: Tensor) -> None:
        assert layer.width is not None
        self.found.add((layer, layer.width, x.dim()))
