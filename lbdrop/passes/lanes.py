"""All masks in one batched call: ``torch.func.vmap`` over the masks, each of them a lane.

What does not depend on a mask has no lane axis and is computed once, skip connections included. What does depend on one is
computed for all masks together, under autocast in its precision (:mod:`lbdrop.passes.autocast`).
"""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor

from lbdrop._torch import slow_lanes_unreported
from lbdrop.dropout import NoiseLayer
from lbdrop.guards.checkpointing import refuse_checkpoint
from lbdrop.passes.autocast import lane_autocast
from lbdrop.passes.drawer import Drawer
from lbdrop.sources import use_in

__all__ = ["run_lanes"]

Output = TypeVar("Output")


def run_lanes(
    layers: Collection[NoiseLayer], function: Callable[[], Output], masks: int, drawer: Drawer
) -> tuple[Output, set[NoiseLayer]]:
    """The tensors of ``function``, with a leading axis over the masks, and the layers that took part."""
    drawer.begin()
    source = _LaneMasks(drawer)

    def run_one(lane: Tensor) -> Output:
        source.lane = lane
        return function()

    with use_in(layers, source), slow_lanes_unreported(), lane_autocast():
        return torch.func.vmap(run_one, randomness="same")(torch.arange(masks)), source.reached


class _LaneMasks:
    """Gives a layer its mask in this lane."""

    def __init__(self, drawer: Drawer):
        self.drawer = drawer
        self.reached: set[NoiseLayer] = set()
        self.grad_enabled = torch.is_grad_enabled()
        self.lane: Tensor

    def logit(self, layer: NoiseLayer) -> Tensor:
        return self.drawer.logit(layer)

    def mask(self, layer: NoiseLayer, x: Tensor) -> Tensor | None:
        refuse_checkpoint(self.grad_enabled)
        self.reached.add(layer)
        if not self.drawer.draws(layer):
            return None
        shape = layer.mask_shape(x)
        return _LaneMask.apply(self.lane, x.detach(), lambda inputs: self.drawer.draw(layer, shape, inputs))


class _LaneMask(torch.autograd.Function):
    """Stands for the mask of one lane; its vmap rule is the one place that sees all lanes, and draws for all."""

    @staticmethod
    def forward(lane: Tensor, x: Tensor, draw: Callable[[Tensor], Tensor]) -> Tensor:
        raise AssertionError("a lane exists only under vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Tensor, int]:
        _, x, draw = args
        return draw(x if in_dims[1] is None else x.movedim(in_dims[1], 0)), 0
