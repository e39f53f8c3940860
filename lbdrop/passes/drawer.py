"""Who draws the masks of a run: all masks of one use of a layer at once, whichever engine asks."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lbdrop.dropout import NoiseLayer

__all__ = ["Drawer", "IndependentMasks", "draw_all"]


@runtime_checkable
class Drawer(Protocol):
    """Draws all masks of one use of a layer at once."""

    @property
    def generator(self) -> torch.Generator | None:
        """What masks are drawn by; ``None`` for the global random state."""
        ...

    def begin(self) -> None:
        """Forget what was drawn: the passes start again."""
        ...

    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor | None:
        """The masks, (n, \\*shape). ``x`` is the layer's input, or (n, \\*input) where it depends on earlier masks.

        Where one mask is wanted, ``None`` stands for its mean: the layer's deterministic pass.
        """
        ...

    def seen(self, use: int, x: Tensor) -> None:
        """Another mask's input to the same use of a layer, where passes run one by one."""
        ...


class IndependentMasks:
    """Independent masks of a generator, as prediction wants; of layers that draw none at test time, the mean mask."""

    def __init__(self, masks: int, generator: torch.Generator):
        self.masks, self.generator = masks, generator

    def begin(self) -> None: ...

    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        if not layer.samples_at_test:
            return layer.spread(layer.keep, len(shape)).to(x.dtype).expand(self.masks, *shape)
        return layer.draw(self.masks, shape, x, self.generator)

    def seen(self, use: int, x: Tensor) -> None: ...


def draw_all(drawer: Drawer, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
    """The masks of several passes; only one pass may have its mean instead."""
    masks = drawer.draw(layer, shape, x)
    assert masks is not None, "of several masks each is drawn"
    return masks
