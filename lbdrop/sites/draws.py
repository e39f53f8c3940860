"""Random draws inside of a module's own forward, such as ``F.dropout(x, p, self.training)``, each with a learned rate.

A site is a module and how many calls of the same kind came before it in the module's forward. What the model computes around
a draw stays the model's own: only the call itself is answered, and only from that module.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from lbdrop._torch import remove_forward_hooks, transparent
from lbdrop.dropout import NoiseLayer
from lbdrop.errors import DropoutError
from lbdrop.guards.checkpointing import inside_checkpoint
from lbdrop.sites.calls import Call, answer_at_ones, call_of, innermost_module, is_coin
from lbdrop.sites.effects import drops_at_ones
from lbdrop.sources import source_of

__all__ = ["NAME", "Draws", "Found", "answer_draws", "draws_of", "find_draws", "forget_draws"]

NAME = "learned_draws"
"""The child of a module that holds the dropouts of its draws."""
TRIES = 8
"""Further passes that look for the calls of layers that the first in training mode has skipped."""


class Found(NamedTuple):
    """A draw that was seen in a pass: in which module, which of its calls, and how it drops."""

    module: str
    key: str
    rate: float
    units: int
    settings: Mapping[str, Any]
    in_training_alone: bool = False
    """Whether the module draws in training mode alone, so that it needs that mode wherever masks are drawn."""
    at_ones: bool = False
    """Whether its mask has ones where it drops, as the seeds of DropBlock are."""

    @property
    def name(self) -> str:
        return ".".join(part for part in (self.module, NAME, self.key) if part)


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
    seen = draw_calls(model, run)
    for _ in range(TRIES):  # a layer may be skipped by chance
        if not at_test - {(names[module], key) for module, key in seen}:
            break
        seen = draw_calls(model, run) | seen
    found = []
    for (module, key), call in seen.items():
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
        at_ones = call.kind == "mask" and drops_at_ones(module)
        rate = 1 - call.rate if at_ones else call.rate
        found.append(Found(name, key, rate, units, call.settings, (name, key) not in at_test, at_ones))
    return found


class Draws(nn.Module):
    """The learned dropouts of one module's draws, by their keys; a child of that module."""

    coins = False
    """Whether the coins that the module tosses, to skip layers, are answered too: it skips none (:mod:`lbdrop.sites.skips`)."""
    in_training_alone = False
    at_ones = False


class _Answers(TorchFunctionMode):
    """Answers the draws of one call of a module by its learned dropouts."""

    def __init__(self, module: nn.Module):
        super().__init__()
        draws = draws_of(module)
        self.module, self.draws, self.layers = module, draws, dict(draws.named_children())
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
        if self.draws.coins and is_coin(func, args, kwargs) and innermost_module() is self.module:
            return torch.ones(())
        call = call_of(func, args, kwargs)
        if call is None or innermost_module() is not self.module:
            return func(*args, **kwargs)
        key = f"{call.kind}{self.counts[call.kind]}"
        layer = self.layers.get(key)
        self.counts[call.kind] += 1
        if isinstance(layer, NoiseLayer):
            self._check_checkpoint(layer)
            return answer_at_ones(layer, call.x) if self.draws.at_ones else call.answer(layer)
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
_forced: Counter[nn.Module] = Counter()
"""How many passes, of all threads, need a module in training mode whose mode is another."""
_forcing = threading.Lock()


@contextmanager
def _in_training(module: nn.Module) -> Iterator[None]:
    """One module, and not its children, in training mode: those that run it so at once share it."""
    with _forcing:
        _forced[module] += 1
        module.training = True
    try:
        yield
    finally:
        with _forcing:
            _forced[module] -= 1
            if not _forced[module]:
                del _forced[module]
                module.training = False


def _enter(module: nn.Module, _: Any) -> None:
    stack = vars(_open).setdefault("stack", [])
    exits, draws = ExitStack(), draws_of(module)
    masked = draws.in_training_alone and any(source_of(layer) is not None for layer in draws.children())
    if masked and (not module.training or module in _forced):
        exits.enter_context(_in_training(module))
    exits.enter_context(_Answers(module))
    stack.append((module, exits))


def _leave(module: nn.Module, _: Any, output: Any) -> None:
    stack = vars(_open).setdefault("stack", [])
    if stack and stack[-1][0] is module:  # not where a hook before ours raised an error, so that nothing was opened
        stack.pop()[1].close()


def draws_of(module: nn.Module) -> Draws:
    """The learned dropouts of a module's draws; from the first call on, they answer them."""
    if not hasattr(module, NAME):
        module.add_module(NAME, Draws().train(module.training))
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
        draws = draws_of(module)
        draws.add_module(site.key, layer)
        draws.in_training_alone |= site.in_training_alone
        draws.at_ones |= site.at_ones


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
