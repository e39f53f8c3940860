r"""Run a model once per mask, and everything before the first dropout only once.

One mask is a plain pass. For several there are two engines: :mod:`lbdrop.passes.lanes` computes all masks in one batched
call, and :mod:`lbdrop.passes.replay` serves the models that the first cannot trace. The first run of a model tries lanes;
which engine it needs is remembered.
"""

import threading
from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lbdrop._torch import tree_map
from lbdrop.dropout import NoiseLayer, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.guards.checkpointing import refuse_checkpoint, refuse_unrestored
from lbdrop.guards.compiled import as_written
from lbdrop.guards.snapshot import Snapshot
from lbdrop.passes.drawer import Drawer
from lbdrop.passes.lanes import run_lanes
from lbdrop.passes.replay import run_replay
from lbdrop.sources import source_of, use_in

__all__ = ["Drawer", "run"]

Output = TypeVar("Output")

_needs_replay: WeakKeyDictionary[nn.Module, dict[tuple[bool, ...], bool]] = WeakKeyDictionary()
"""Whether a model needs replay, by which of its modules are in training mode: BatchNorm changes with it."""
_first_attempts = threading.RLock()


def run(
    model: nn.Module,
    function: Callable[[], Output],
    masks: int,
    drawer: Drawer,
    layers: Collection[NoiseLayer] | None = None,
    watched: bool = False,
) -> tuple[Output, set[NoiseLayer]]:
    """Evaluate ``function``, which calls ``model``, under each of ``masks`` masks of these layers, by default all it has.

    Returns its tensors with a leading axis over the masks, and the layers that took part, as far as known unless ``watched``.
    """
    layers = noise_layers(model).values() if layers is None else layers
    if masks == 1 and not watched and drawer.as_layers_do and all(map(_can_draw, layers)):
        return _let_layers_draw(layers, function, drawer), set(layers)
    with as_written():
        return _run_one(layers, function, drawer) if masks == 1 else _run_many(model, layers, function, masks, drawer)


def _run_many(
    model: nn.Module, layers: Collection[NoiseLayer], function: Callable[[], Output], masks: int, drawer: Drawer
) -> tuple[Output, set[NoiseLayer]]:
    """By the engine that the model needs."""
    by_mode = _needs_replay.setdefault(model, {})
    mode = tuple(module.training for module in model.modules())
    if mode not in by_mode:
        with _first_attempts:  # one thread finds out, others wait for it
            if mode not in by_mode:
                return _run_first(model, layers, function, masks, drawer, by_mode, mode)
    return (run_replay if by_mode[mode] else run_lanes)(layers, function, masks, drawer)


def _run_first(
    model: nn.Module,
    layers: Collection[NoiseLayer],
    function: Callable[[], Output],
    masks: int,
    drawer: Drawer,
    by_mode: dict[tuple[bool, ...], bool],
    mode: tuple[bool, ...],
) -> tuple[Output, set[NoiseLayer]]:
    """Try lanes, and note in ``by_mode`` whether they do."""
    # A first attempt may stop half way, or leave tensors that live under vmap alone on the model: neither must stay.
    before, generator = Snapshot(model), drawer.generator
    state = None if generator is None else generator.get_state()
    try:
        result = run_lanes(layers, function, masks, drawer)
        if not before.holds_lanes(model):
            by_mode[mode] = False
            return result
    except DropoutError:
        raise
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
    before.restore()
    if generator is not None and state is not None:
        generator.set_state(state)  # the same masks as in any later run
    result = run_replay(layers, function, masks, drawer)  # an error here is the user's own, and decides nothing
    by_mode[mode] = True
    return result


def _run_one(
    layers: Collection[NoiseLayer], function: Callable[[], Output], drawer: Drawer
) -> tuple[Output, set[NoiseLayer]]:
    """One mask needs no engine."""
    drawer.begin()
    source = _OneMask(drawer)
    with use_in(layers, source):
        output = function()

    return _with_axis(output), source.reached


def _can_draw(layer: NoiseLayer) -> bool:
    return layer.generator is None and source_of(layer) is None


def _let_layers_draw(layers: Collection[NoiseLayer], function: Callable[[], Output], drawer: Drawer) -> Output:
    """One mask without a source: a layer is in training mode where it is to draw, and in eval mode where not."""
    switched = [layer for layer in layers if layer.training != drawer.draws(layer)]
    # Not a graph for every choice of layers.
    written = any(layer.in_function for layer in layers) or (switched and len(set(map(drawer.draws, layers))) > 1)
    try:
        for layer in switched:
            layer.training = not layer.training
        with as_written() if written else nullcontext():
            return _with_axis(function())
    finally:
        for layer in switched:
            layer.training = not layer.training


def _with_axis(output: Any) -> Any:
    """With a leading axis over one mask; a tensor nearly always, and a search for tensors takes time."""
    if isinstance(output, Tensor):
        return output.unsqueeze(0)
    return tree_map(lambda value: value.unsqueeze(0) if isinstance(value, Tensor) else value, output)


class _OneMask:
    """Gives a layer the only mask there is."""

    def __init__(self, drawer: Drawer):
        self.drawer = drawer
        self.reached: set[NoiseLayer] = set()
        self.grad_enabled = torch.is_grad_enabled()
        # One mask of the global random state is drawn again by itself when a block is recomputed, if that state is restored.
        self.by_generator = self.grad_enabled and drawer.generator is not None

    def logit(self, layer: NoiseLayer) -> Tensor:
        return self.drawer.logit(layer)

    def mask(self, layer: NoiseLayer, x: Tensor) -> Tensor | None:
        refuse_checkpoint(self.by_generator)
        refuse_unrestored(self.grad_enabled)
        self.reached.add(layer)
        if not self.drawer.draws(layer):
            return None
        return self.drawer.draw(layer, layer.mask_shape(x), x.detach())[0]
