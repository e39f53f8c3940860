r"""Run a model once per mask, and everything before the first dropout only once.

Two engines, the second where the first cannot go:

- **lanes**: ``torch.func.vmap`` over the masks. What does not depend on a mask carries no mask axis and is computed once,
  skip connections included; what does is computed for all masks in one batched call, under autocast in its precision
  (:mod:`lbdrop.passes.autocast`).
- **replay**: one pass after another. Each torch call whose arguments do not depend on a mask is remembered in the first
  pass and looked up in the others. Serves recurrent layers, BatchNorm in training mode behind a dropout, in-place updates
  and control flow that ``vmap`` cannot trace.
"""

import warnings
from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from lbdrop.dropout import NoiseLayer, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.guards.checkpointing import refuse_checkpoint
from lbdrop.masks import use_in
from lbdrop.passes.autocast import lane_autocast

__all__ = ["Drawer", "run"]

Output = TypeVar("Output")


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


def _some(masks: Tensor | None) -> Tensor:
    assert masks is not None, "of several masks each is drawn"
    return masks


# Whether a model needs replay, by which of its modules are in training mode: BatchNorm changes with it.
_needs_replay: WeakKeyDictionary[nn.Module, dict[tuple[bool, ...], bool]] = WeakKeyDictionary()


def run(
    model: nn.Module,
    function: Callable[[], Output],
    masks: int,
    drawer: Drawer,
    layers: Collection[NoiseLayer] | None = None,
) -> tuple[Output, set[NoiseLayer]]:
    """Evaluate ``function``, which calls ``model``, under each of ``masks`` masks of these layers, by default all it has.

    Returns its tensors with a leading axis over the masks, and the layers that took part.
    """
    layers = noise_layers(model).values() if layers is None else layers
    if masks == 1:
        return _single(layers, function, drawer)
    known = _needs_replay.setdefault(model, {})
    mode = tuple(module.training for module in model.modules())
    if mode in known:
        return (_replay if known[mode] else _lanes)(layers, function, masks, drawer)
    # A first try may stop half way, or leave tensors that live under vmap alone on the model: neither must stay.
    before = _State(model)
    try:
        result = _lanes(layers, function, masks, drawer)
        known[mode] = before.holds_lanes(model)
        if not known[mode]:
            return result
    except DropoutError:
        raise
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        known[mode] = True
    before.restore(model)
    try:
        return _replay(layers, function, masks, drawer)
    except BaseException:
        del known[mode]  # a mistake of the user's, raised as it is: nothing has been learned of the model
        raise


class _State:
    """What a model holds besides its parameters: buffers, and tensors kept as plain attributes."""

    def __init__(self, model: nn.Module):
        self.buffers = [(m, dict(m._buffers), {k: b.clone() for k, b in m._buffers.items() if b is not None})
                        for m in model.modules() if m._buffers]  # fmt: skip
        self.attributes = [(m, {k: v for k, v in vars(m).items() if isinstance(v, Tensor)}) for m in model.modules()]

    def holds_lanes(self, model: nn.Module) -> bool:
        held = [t for m in model.modules() for t in (*m._buffers.values(), *vars(m).values()) if isinstance(t, Tensor)]
        return any(torch._C._functorch.is_batchedtensor(t) for t in held)  # pyright: ignore[reportAttributeAccessIssue]

    @torch.no_grad()
    def restore(self, model: nn.Module) -> None:
        for module, buffers, values in self.buffers:
            module._buffers.update(buffers)
            for name, value in values.items():
                buffer = module._buffers[name]
                assert buffer is not None
                buffer.copy_(value)
        for module, attributes in self.attributes:
            for name in [k for k, v in vars(module).items() if isinstance(v, Tensor) and k not in attributes]:
                vars(module)[name] = None
            vars(module).update(attributes)


# ------------------------------------------------------------------------------------------------------------- lanes


class _Lane(torch.autograd.Function):
    """Stands for "this lane's mask"; its vmap rule is the one place where all lanes are in view."""

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


class _Lanes:
    def __init__(self, drawer: Drawer):
        self.drawer = drawer
        self.reached: set[NoiseLayer] = set()
        self.grad_enabled = torch.is_grad_enabled()
        self.lane: Tensor

    def mask(self, layer: NoiseLayer, x: Tensor) -> Tensor:
        refuse_checkpoint(self.grad_enabled)
        self.reached.add(layer)
        shape = layer.mask_shape(x)
        return _Lane.apply(self.lane, x.detach(), lambda every: _some(self.drawer.draw(layer, shape, every)))


def _lanes(
    layers: Collection[NoiseLayer], function: Callable[[], Output], masks: int, drawer: Drawer
) -> tuple[Output, set[NoiseLayer]]:
    drawer.begin()
    source = _Lanes(drawer)

    def one(lane: Tensor) -> Output:
        source.lane = lane
        return function()

    with use_in(layers, source), warnings.catch_warnings(), lane_autocast():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return torch.func.vmap(one, randomness="same")(torch.arange(masks)), source.reached


# -------------------------------------------------------------------------------------------------------- one mask


class _Single:
    """One mask needs no engine."""

    def __init__(self, drawer: Drawer):
        self.drawer = drawer
        self.reached: set[NoiseLayer] = set()
        # One mask of the global random state is drawn again by itself when a block is recomputed.
        self.grad_enabled = torch.is_grad_enabled() and drawer.generator is not None

    def mask(self, layer: NoiseLayer, x: Tensor) -> Tensor | None:
        refuse_checkpoint(self.grad_enabled)
        self.reached.add(layer)
        drawn = self.drawer.draw(layer, layer.mask_shape(x), x.detach())
        return None if drawn is None else drawn[0]


def _single(
    layers: Collection[NoiseLayer], function: Callable[[], Output], drawer: Drawer
) -> tuple[Output, set[NoiseLayer]]:
    drawer.begin()
    source = _Single(drawer)
    with use_in(layers, source):
        output = function()

    def lead(value: Any) -> Any:
        return value.unsqueeze(0) if isinstance(value, Tensor) else value

    # A tensor nearly always, and a search for tensors takes time.
    return lead(output) if isinstance(output, Tensor) else tree_map(lead, output), source.reached


# ------------------------------------------------------------------------------------------------------------ replay


class _Replayed:
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

    def mask(self, layer: NoiseLayer, x: Tensor) -> Tensor:
        with self.tape.paused():
            refuse_checkpoint(self.grad_enabled)
            self.reached.add(layer)
            use, self.uses = self.uses, self.uses + 1
            if use == len(self.stacks):
                self.stacks.append(_some(self.drawer.draw(layer, layer.mask_shape(x), x.detach())))
            else:
                self.drawer.seen(use, x.detach())
            mask = self.stacks[use][self.index]
            if mask.shape != layer.mask_shape(x):
                raise DropoutError(
                    "masks: the model took another path under another mask; want the same dropouts on the same shapes"
                    f" in every pass, got {tuple(mask.shape)} then {layer.mask_shape(x)}"
                )
        self.tape.taint(mask)
        return mask


class _Paused:
    def __init__(self, tape: "_Tape"):
        self.tape = tape

    def __enter__(self) -> None:
        self.before, self.tape.active = self.tape.active, False

    def __exit__(self, *_: object) -> None:
        self.tape.active = self.before


class _Tape(TorchFunctionMode):
    """Remembers, in order, every torch call that no mask can influence, and answers it from memory in later passes."""

    def __init__(self) -> None:
        super().__init__()
        self.active = True
        self.recording = True
        self.calls: list[tuple[Any, list[Any], Any]] = []
        self.position = 0
        self.tainted = WeakTensorKeyDictionary()
        self.clean: set[int] = set()

    def begin(self) -> None:
        self.recording = self.recording and not self.calls
        self.position = 0
        self.tainted = WeakTensorKeyDictionary()

    def paused(self) -> _Paused:
        return _Paused(self)

    def taint(self, *tensors: Any) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self.tainted[tensor] = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active:
            return func(*args, **kwargs)
        given = tree_flatten((args, kwargs))[0]
        if any(value in self.tainted for value in given if isinstance(value, Tensor)):
            return self._depends_on_mask(func, args, kwargs, given)
        if not self.recording and self.position < len(self.calls):
            known, known_given, output = self.calls[self.position]
            if known == func and len(known_given) == len(given) and all(map(_same, known_given, given)):
                self.position += 1
                return output
            self.calls = self.calls[: self.position]  # another path than before: nothing after it can be trusted
        output = func(*args, **kwargs)
        if self.recording:
            self.calls.append((func, given, output))
            self.clean.update(id(t) for t in tree_flatten(output)[0] if isinstance(t, Tensor))
        return output

    def _depends_on_mask(self, func: Any, args: Any, kwargs: Any, given: list[Any]) -> Any:
        untouched = [(t, t._version) for t in given if isinstance(t, Tensor) and t not in self.tainted]
        output = func(*args, **kwargs)
        for tensor, version in untouched:
            if tensor._version != version:
                self.taint(tensor)
                if id(tensor) in self.clean:
                    # A mask was written into a remembered tensor: later passes have to compute it anew.
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


def _replay(
    layers: Collection[NoiseLayer], function: Callable[[], Output], masks: int, drawer: Drawer
) -> tuple[Output, set[NoiseLayer]]:
    drawer.begin()
    tape = _Tape()
    source = _Replayed(drawer, tape)
    outputs = []
    with use_in(layers, source):
        for index in range(masks):
            source.begin(index)
            with tape:
                outputs.append(function())
    return tree_map(lambda *each: torch.stack(each), *outputs), source.reached
