"""Who draws the masks of a run: all masks of one use of a layer at once, whichever engine asks."""

from abc import abstractmethod

import torch
from torch import Tensor

from lbdrop.dropout import NoiseLayer

__all__ = ["Drawer", "IndependentMasks"]


class Drawer:
    """Draws all masks of one use of a layer at once."""

    generator: torch.Generator | None = None
    """What masks are drawn by; ``None`` for the global random state."""

    def begin(self) -> None:
        """Forget what was drawn: the passes start again."""

    def draws(self, layer: NoiseLayer) -> bool:
        """Whether a layer has masks at all; else it runs its deterministic pass."""
        return True

    @abstractmethod
    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        """The masks, (n, \\*shape). ``x`` is the layer's input, or (n, \\*input) where it depends on earlier masks."""

    def seen(self, use: int, x: Tensor) -> None:
        """Another mask's input to the same use of a layer, where passes run one by one."""


class IndependentMasks(Drawer):
    """Independent masks of a generator, as prediction wants."""

    def __init__(self, masks: int, generator: torch.Generator):
        self.masks, self.generator = masks, generator

    def draws(self, layer: NoiseLayer) -> bool:
        return layer.samples_at_test

    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        return layer.draw(self.masks, shape, x, self.generator)
