"""One pass after another, in which later passes look up what no mask can influence.

Each torch call whose arguments do not depend on a mask is recorded in the first pass and looked up in the others. Serves
what ``vmap`` cannot trace: recurrent layers, BatchNorm in training mode behind a dropout, in-place updates and control flow
that depends on a mask.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from lbdrop._torch import tree_flatten, tree_map, write_count
from lbdrop.dropout import NoiseLayer
from lbdrop.guards.checkpointing import refuse_checkpoint
from lbdrop.passes.drawer import Drawer, refuse_other_shape
from lbdrop.sources import use_in

__all__ = ["run_replay"]

Output = TypeVar("Output")


def run_replay(
    layers: Collection[NoiseLayer], function: Callable[[], Output], masks: int, drawer: Drawer
) -> tuple[Output, set[NoiseLayer]]:
    """The tensors of ``function``, with a leading axis over the masks, and the layers that took part."""
    drawer.begin()
    tape = _Tape()
    source = _PassMasks(drawer, tape)
    outputs = []
    with use_in(layers, source):
        for index in range(masks):
            source.begin(index)
            with tape:
                outputs.append(function())
    return tree_map(lambda *each: torch.stack(each), *outputs), source.reached


class _PassMasks:
    """Gives a layer its mask in this pass: all are drawn in the first, by the order in which layers are used."""

    def __init__(self, drawer: Drawer, tape: "_Tape"):
        self.drawer = drawer
        self.tape = tape
        self.reached: set[NoiseLayer] = set()
        self.stacks: list[Tensor] = []
        self.grad_enabled = torch.is_grad_enabled()
        self.index = 0
        self.uses = 0

    def begin(self, index: int) -> None:
        self.index, self.uses = index, 0
        self.tape.begin()

    def logit(self, layer: NoiseLayer) -> Tensor:
        return self.drawer.logit(layer)

    def mask(self, layer: NoiseLayer, x: Tensor) -> Tensor | None:
        with self.tape.paused():
            refuse_checkpoint(self.grad_enabled)
            self.reached.add(layer)
            if not self.drawer.draws(layer):
                return None
            use, self.uses = self.uses, self.uses + 1
            if first := use == len(self.stacks):
                self.stacks.append(self.drawer.draw(layer, layer.mask_shape(x), x.detach()))
            mask = self.stacks[use][self.index]
            refuse_other_shape(mask, layer.mask_shape(x))
            if not first:
                self.drawer.seen(use, x.detach())
        self.tape.taint(mask)
        return mask


class _Call(NamedTuple):
    """A recorded torch call."""

    function: Any
    arguments: list[Any]
    """Flat, without their names."""
    output: Any
    constants: list[Tensor]
    """The tensors of its output that had no history of gradients."""

    def matches(self, function: Any, arguments: list[Any]) -> bool:
        same_length = len(self.arguments) == len(arguments)
        return self.function == function and same_length and all(map(_same, self.arguments, arguments))


class _Tape(TorchFunctionMode):
    """Records, in order, every torch call that no mask can influence, and answers it from the record in later passes."""

    def __init__(self) -> None:
        super().__init__()
        self.active = True
        self.recording = True
        self.calls: list[_Call] = []
        self.position = 0
        self.tainted = WeakTensorKeyDictionary()
        """Tensors that depend on a mask."""
        self.recorded: set[int] = set()
        """By ``id``, the tensors in recorded outputs, which the record keeps alive."""

    def begin(self) -> None:
        self.recording = self.recording and not self.calls
        self.position = 0
        self.tainted = WeakTensorKeyDictionary()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let calls pass unrecorded."""
        before, self.active = self.active, False
        try:
            yield
        finally:
            self.active = before

    def taint(self, *values: Any) -> None:
        for value in values:
            if isinstance(value, Tensor):
                self.tainted[value] = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active:
            return func(*args, **kwargs)
        arguments = tree_flatten((args, kwargs))[0]
        if any(value in self.tainted for value in arguments if isinstance(value, Tensor)):
            return self._call_tainted(func, args, kwargs, arguments)
        if not self.recording and self.position < len(self.calls):
            call = self.calls[self.position]
            if call.matches(func, arguments):
                self.position += 1
                # A custom autograd function that returned a constant has attached that pass's inputs to it.
                attached = any(constant.grad_fn is not None for constant in call.constants)
                return func(*args, **kwargs) if attached else call.output
            self.calls = self.calls[: self.position]  # another path than in the first pass: the rest does not apply
        output = func(*args, **kwargs)
        if self.recording:
            tensors = [t for t in tree_flatten(output)[0] if isinstance(t, Tensor)]
            self.calls.append(_Call(func, arguments, output, [t for t in tensors if t.grad_fn is None]))
            self.recorded.update(map(id, tensors))
        return output

    def _call_tainted(self, func: Any, args: Any, kwargs: Any, arguments: list[Any]) -> Any:
        """Call what depends on a mask; whatever it returns or writes into depends on the mask too."""
        clean = [(t, write_count(t)) for t in arguments if isinstance(t, Tensor) and t not in self.tainted]
        output = func(*args, **kwargs)
        for tensor, writes in clean:
            if write_count(tensor) != writes:
                self.taint(tensor)
                if id(tensor) in self.recorded:
                    # A mask was written into a recorded tensor: later passes have to compute everything again.
                    self.recording, self.calls = False, []
        self.taint(*tree_flatten(output)[0])
        return output


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, Tensor) or isinstance(b, Tensor) or type(a) is not type(b):
        return False
    try:
        return bool(a == b)
    except ValueError:  # an array: cheaper to compute again than to compare
        return False
