"""Who draws the masks of a run: all masks of one use of a layer at once, whichever engine asks."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from lbdrop._torch import functions_unseen
from lbdrop.dropout import NoiseLayer
from lbdrop.errors import DropoutError

__all__ = ["Drawer", "IndependentMasks", "PlainMasks", "refuse_other_shape"]


class Drawer:
    """Draws all masks of one use of a layer at once."""

    generator: torch.Generator | None = None
    """What masks are drawn by; ``None`` for the global random state."""

    @property
    def as_layers_do(self) -> bool:
        """Whether its one mask is what layers in training mode draw by themselves."""
        return False

    def begin(self) -> None:
        """Forget what was drawn: the passes start again."""

    def draws(self, layer: NoiseLayer) -> bool:
        """Whether a layer has masks at all; else it runs its deterministic pass."""
        return True

    @abstractmethod
    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        """The masks, (n, \\*shape). ``x`` is the layer's input, or (n, \\*input) where it depends on earlier masks."""

    def logit(self, layer: NoiseLayer) -> Tensor:
        """The logit that the layer's keep rate is made of where it scales by it."""
        return layer.logit

    def seen(self, use: int, x: Tensor) -> None:
        """Another mask's input to the same use of a layer, where passes run one by one."""


class PlainMasks(Drawer):
    """One mask of each layer, by which weights are trained and rates are not."""

    def __init__(self, generator: torch.Generator | None = None):
        self.generator = generator

    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        return layer.draw(1, shape, x, self.generator)

    @property
    def as_layers_do(self) -> bool:
        return self.generator is None

    def logit(self, layer: NoiseLayer) -> Tensor:
        return layer.logit.detach() if layer.estimated else layer.logit


class IndependentMasks(Drawer):
    """Independent masks, as prediction wants: each of a generator of its own, so that it does not matter which run together.

    Generators have been seeded, and not drawn from.
    """

    def __init__(self, generators: Sequence[torch.Generator]):
        self.generators = generators
        self.drawn = False

    def draws(self, layer: NoiseLayer) -> bool:
        return layer.samples_at_test

    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        self.drawn = True
        with functions_unseen():
            uniforms = [layer.uniforms((1, *shape), x, generator) for generator in self.generators]
        each = uniforms[0] if len(uniforms) == 1 else torch.cat(uniforms)
        return layer.mask_of(each, len(shape)).to(x.dtype)

    def begin(self) -> None:
        for generator in self.generators if self.drawn else ():
            generator.manual_seed(generator.initial_seed())


def refuse_other_shape(mask: Tensor, shape: tuple[int, ...]) -> None:
    """An error where a later pass asks for a mask of another shape than the first had there."""
    if mask.shape != shape:
        raise DropoutError(
            "masks: the model took another path under another mask; want the same dropouts on the same shapes in every pass,"
            f" got {tuple(mask.shape)} then {shape}; make its control flow independent of what a dropout returns"
        )
