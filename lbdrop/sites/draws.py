"""Random draws inside of a module's own forward, such as ``F.dropout(x, p, self.training)``, each with a learned rate.

A site is a module and how many calls of the same kind came before it in the module's forward. What the model computes around
a draw stays the model's own: only the call itself is answered, and only from that module.
"""

import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from inspect import signature
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lbdrop._torch import remove_forward_hooks, transparent
from lbdrop.dropout import NoiseLayer
from lbdrop.errors import DropoutError
from lbdrop.guards.checkpointing import inside_checkpoint
from lbdrop.sources import source_of

__all__ = ["NAME", "Draws", "Found", "answer_draws", "draws_of", "find_draws", "forget_draws", "innermost_module", "is_coin"]

NAME = "learned_draws"
"""The child of a module that holds the dropouts of its draws."""


class Call(NamedTuple):
    """A call that draws, or would if its rate were above 0 and it were told to train."""

    kind: str
    x: Tensor
    """What is dropped: activations, the query of attention, or the tensor that a mask is written to."""
    rate: float
    settings: Mapping[str, Any]
    answer: Callable[[NoiseLayer], Tensor]
    """The same call with a learned dropout in place of the draw."""


class Found(NamedTuple):
    """A draw that was seen in a pass: in which module, which of its calls, and how it drops."""

    module: str
    key: str
    rate: float
    units: int
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        return ".".join(part for part in (self.module, NAME, self.key) if part)


# ------------------------------------------------------------------------------------------------------ calls that draw


def call_of(func: Any, args: Any, kwargs: Any) -> Call | None:
    """What a torch function draws, if it is one that does."""
    read = READERS.get(func)
    return None if read is None else read(func, args, kwargs)


def _dropout(func: Any, args: Any, kwargs: Any) -> Call:
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    x, rate = given["input"], float(given.get("p", 0.5))
    on = bool(given.get("training", given.get("train", func is not F.alpha_dropout)))
    settings: dict[str, Any] = {}
    if func in CHANNELS:
        settings["channels"] = True
    elif x.dim() == 4:
        settings["unit_dim"] = 1  # the channels of a map, or the heads of attention
    if func in ALPHA:
        settings["scale"] = "alpha"
    in_place = bool(given.get("inplace")) or func is torch.dropout_

    def answer(layer: NoiseLayer) -> Tensor:
        if x.dim() == 1:  # a number for each edge of a graph
            dropped = layer(x.unsqueeze(-1)).squeeze(-1)
            return x.copy_(dropped) if in_place else dropped
        if not in_place:
            return layer(x)
        before = x.clone()  # the gradient of the rate needs it
        dropped = layer(before)
        return x if dropped is before else x.copy_(dropped)

    return Call("dropout", x, rate if on else 0.0, settings, answer)


def _attention(func: Any, args: Any, kwargs: Any) -> Call:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    x = given["query"]

    def answer(layer: NoiseLayer) -> Tensor:
        if source_of(layer) is None and not layer.training and layer.scale != "none":
            return func(*args, **kwargs)
        return _attend(layer, **{name: value for name, value in given.items() if name != "dropout_p"})

    return Call("attention", x, float(given.get("dropout_p", 0.0)), {"unit_dim": -3} if x.dim() > 3 else {}, answer)


def _attend(
    layer: NoiseLayer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``scaled_dot_product_attention`` of what it was given, its weights dropped by a layer."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if boolean else scores + attn_mask
        # As in torch's own, a query that may attend to nothing has weights of 0, not of NaN.
        nothing = scores.isneginf().all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    else:
        weights = torch.softmax(scores, -1)
    return layer(weights) @ value


def _bernoulli_(func: Any, args: Any, kwargs: Any) -> Call | None:
    target, keep = args[0], args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    if not isinstance(keep, float | int) or not target.is_floating_point() or target.dim() < 2:
        return None  # one probability each, or a mask of integers: no dropout that is known
    # The mean of what comes back stays what it was: the model may divide by it.
    return Call("mask", target, 1.0 - keep, {}, lambda layer: target.copy_(keep * layer(torch.ones_like(target))))


def _bernoulli(func: Any, args: Any, kwargs: Any) -> Call | None:
    means = args[0] if args else kwargs["input"]
    if (
        len(args) > 1
        or means.dim() < 2
        or not means.is_floating_point()
        or not bool((means == means.flatten()[0]).all())
    ):
        return None
    return Call("mask", means, 1.0 - float(means.flatten()[0]), {}, lambda layer: means * layer(torch.ones_like(means)))


CHANNELS = {F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout, torch.feature_dropout,
            torch.feature_alpha_dropout}  # fmt: skip
ALPHA = {F.alpha_dropout, F.feature_alpha_dropout, torch.alpha_dropout, torch.feature_alpha_dropout}
DROPOUTS = CHANNELS | ALPHA | {F.dropout, torch.dropout, torch.dropout_}
READERS: dict[Any, Callable[[Any, Any, Any], Call | None]] = {
    **dict.fromkeys(DROPOUTS, _dropout),
    F.scaled_dot_product_attention: _attention,
    Tensor.bernoulli_: _bernoulli_,
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
}


def is_coin(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call tosses a coin for everything at once, as LayerDrop does."""
    return func is torch.rand and (kwargs.get("size", args[0] if args else None) in ((), [], torch.Size()))


def innermost_module() -> nn.Module | None:
    """The module of whose methods the caller's code is, by the frames of the call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            return module
        frame = frame.f_back
    return None


# ------------------------------------------------------------------------------------------------------------- finding


class _Finder(TorchFunctionMode):
    """Notes every call that draws, active or not, with its module and its number there."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.counts: dict[nn.Module, Counter[str]] = {}
        self.seen: dict[tuple[nn.Module, str], Call] = {}

    def begin(self, module: nn.Module, _: Any) -> None:
        self.counts[module] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            inside = transparent(func)
            assert inside is not None
            with self:
                return inside(*args, **kwargs)
        if is_coin(func, args, kwargs):
            return torch.ones(())  # no layer is skipped: all draws are to be seen
        call = call_of(func, args, kwargs)
        module = None if call is None else innermost_module()
        if call is not None and module is not None and module in self.names:
            counts = self.counts.setdefault(module, Counter())
            key = f"{call.kind}{counts[call.kind]}"
            counts[call.kind] += 1
            before = self.seen.get((module, key))
            if before is None or not before.rate:
                self.seen[module, key] = call
        return func(*args, **kwargs)


def draw_calls(model: nn.Module, run: Callable[[], Any]) -> dict[tuple[nn.Module, str], Call]:
    """Every call that draws while ``run`` calls the model, by module and key."""
    finder = _Finder(model)
    hooks = [module.register_forward_pre_hook(finder.begin) for module in model.modules()]
    try:
        with finder:
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return finder.seen


def find_draws(model: nn.Module, run: Callable[[], Any], skip: Collection[str]) -> list[Found]:
    """The draws of a training pass that are on, but for those of modules that are skipped.

    Runs the model in both modes; whoever calls this puts its buffers, modes and random state back.
    """
    names = {module: name for name, module in model.named_modules()}
    model.eval()
    at_test = {(names[module], key) for module, key in draw_calls(model, run)}
    model.train()
    found = []
    for (module, key), call in draw_calls(model, run).items():
        name = names[module]
        if name in skip or not 0 < call.rate < 1:
            continue
        others = {other for other, _ in at_test}
        if name in others and (name, key) not in at_test:
            raise DropoutError(
                f"{name}: want the same calls of dropout in training and in evaluation, got {key} in training alone;"
                " call it always, as in F.dropout(x, p, training=self.training)"
            )
        axis = 1 if call.settings.get("channels") else call.settings.get("unit_dim", -1)
        units = call.x.shape[axis] if call.x.dim() > 1 else 1
        found.append(Found(name, key, call.rate, units, call.settings))
    return found


class Draws(nn.Module):
    """The learned dropouts of one module's draws, by their keys; a child of that module."""

    coins = False
    """Whether the coins that the module tosses, to skip layers, are answered too: it skips none (:mod:`lbdrop.sites.skips`)."""


class _Answers(TorchFunctionMode):
    """Answers the draws of one call of a module by its learned dropouts."""

    def __init__(self, module: nn.Module):
        super().__init__()
        draws = draws_of(module)
        self.module, self.coins, self.layers = module, draws.coins, dict(draws.named_children())
        self.counts: Counter[str] = Counter()
        self.outside_checkpoint = torch.is_grad_enabled() and not inside_checkpoint()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            inside, given = transparent(func), signature(func).bind(*args, **kwargs).arguments
            assert inside is not None
            if any(source_of(layer) is not None for layer in self.layers.values()):
                given |= {"training": True, "dropout_p": 0.5}  # it draws in training alone; the draw itself is answered
            with self:
                return inside(**given)
        if self.coins and is_coin(func, args, kwargs) and innermost_module() is self.module:
            return torch.ones(())
        call = call_of(func, args, kwargs)
        if call is None or innermost_module() is not self.module:
            return func(*args, **kwargs)
        key = f"{call.kind}{self.counts[call.kind]}"
        layer = self.layers.get(key)
        self.counts[call.kind] += 1
        if isinstance(layer, NoiseLayer):
            self._check_checkpoint(layer)
            return call.answer(layer)
        if 0 < call.rate < 1:
            warnings.warn(
                f"{type(self.module).__name__}: want the draws that convert found, {sorted(self.layers)}, got also {key},"
                f" which stays at its fixed rate {call.rate:g}; convert with an example that is as long as the longest batch",
                stacklevel=2,
            )
        return func(*args, **kwargs)

    def _check_checkpoint(self, layer: NoiseLayer) -> None:
        """An error where a block of this module is checkpointed: when it runs again, nothing answers its draws."""
        draws = source_of(layer) is not None or layer.training
        if draws and self.outside_checkpoint and inside_checkpoint():
            raise DropoutError(
                f"checkpoint: want no dropout inside a checkpointed function of a module, got one in"
                f" {type(self.module).__name__}; the recomputed function would draw other masks, and all gradients would be"
                " wrong. Checkpoint the call of the whole module, or the parts between its dropouts"
            )


_open = threading.local()


def _enter(module: nn.Module, _: Any) -> None:
    stack = vars(_open).setdefault("stack", [])
    exits = ExitStack()
    exits.enter_context(_Answers(module))
    stack.append((module, exits))


def _leave(module: nn.Module, _: Any, output: Any) -> None:
    stack = vars(_open).setdefault("stack", [])
    if stack and stack[-1][0] is module:  # not where a hook before ours raised an error, so that nothing was opened
        stack.pop()[1].close()


def draws_of(module: nn.Module) -> Draws:
    """The learned dropouts of a module's draws; from the first call on, they answer them."""
    if not hasattr(module, NAME):
        module.add_module(NAME, Draws())
        module.register_forward_pre_hook(_enter)
        module.register_forward_hook(_leave, always_call=True)
    draws = module.get_submodule(NAME)
    assert isinstance(draws, Draws)
    return draws


def answer_draws(model: nn.Module, found: list[Found], make: Callable[[Found], NoiseLayer]) -> None:
    """Give the draws that were found learned dropouts, as children of their modules."""
    for site in found:
        module = model.get_submodule(site.module)
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        layer = make(site).to(device).train(module.training)
        if site.key.startswith("mask") and layer.scale != "inverted":
            raise DropoutError(
                f"{site.name}: want scale='inverted' for a mask that the model draws and scales by itself, got"
                f" {layer.scale!r}; convert with scale='inverted'"
            )
        draws_of(module).add_module(site.key, layer)


def forget_draws(model: nn.Module, checked: bool = True) -> None:
    """Undo :func:`answer_draws`: the model draws for itself again; an error where a gain would be lost."""
    for name, module in list(model.named_modules()):
        if not isinstance(getattr(module, NAME, None), Draws):
            continue
        unscaled = [layer for layer in module.get_submodule(NAME).children() if layer.scale != "inverted"]
        if unscaled and checked:
            raise DropoutError(
                f"{name}: want scale='inverted' to bake a dropout in a function, got {unscaled[0].scale!r}; convert the model"
                " with scale='inverted', since its gain has no weight to go into"
            )
        delattr(module, NAME)
        remove_forward_hooks(module, _enter, _leave)
