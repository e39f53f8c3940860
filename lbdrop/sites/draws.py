"""Random draws inside of a module's own forward, such as ``F.dropout(x, p, self.training)``, each with a learned rate.

A site is a module and how many calls of the same kind came before it in the module's forward. What the model computes around
a draw stays the model's own: only the call itself is answered, and only from that module.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from lbdrop._torch import remove_forward_hooks
from lbdrop.dropout import NoiseLayer
from lbdrop.errors import DropoutError
from lbdrop.guards.checkpointing import inside_checkpoint
from lbdrop.sites.calls import Calls, answer_at_ones, call_of, innermost_module, is_coin
from lbdrop.sites.survey import NAME, Found
from lbdrop.sources import source_of

__all__ = ["Draws", "answer_draws", "draws_of", "forget_draws"]

CHECKPOINT = "_gradient_checkpointing_func"
"""Where ``transformers`` keeps a layer's way to be checkpointed."""


class Draws(nn.Module):
    """The learned dropouts of one module's draws, by their keys; a child of that module."""

    coins = False
    """Whether the coins that the module tosses, to skip layers, are answered too: it skips none (:mod:`lbdrop.sites.skips`)."""
    in_training_alone = False
    at_ones = False
    branch_is_whole = False
    """Whether a skipped layer has no output at all, or passes its input on beside other outputs."""


class _Answers(Calls):
    """Answers the draws of one call of a module by its learned dropouts."""

    def __init__(self, module: nn.Module):
        super().__init__()
        draws = draws_of(module)
        self.module, self.draws, self.layers = module, draws, dict(draws.named_children())
        self.counts: Counter[str] = Counter()
        self.outside_checkpoint = torch.is_grad_enabled() and not inside_checkpoint()

    def attention(self, given: dict[str, Any]) -> dict[str, Any]:
        if any(map(is_to_draw, self.layers.values())):
            given |= {"training": True, "dropout_p": 0.5}  # it draws in training alone; the draw itself is answered
        return given

    def see(self, func: Any, args: Any, kwargs: Any) -> Any:
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
        if is_to_draw(layer) and self.outside_checkpoint and inside_checkpoint():
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


class _Recomputed:
    """The function by which ``transformers`` checkpoints a layer inside of its forward: draws are answered in both runs."""

    def __init__(self, checkpoint: Callable[..., Any], module: nn.Module):
        self.checkpoint, self.module = checkpoint, module

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def answered(*inputs: Any, **named: Any) -> Any:
            with _Answers(self.module):
                return function(*inputs, **named)

        return self.checkpoint(answered, *args, **kwargs)


def is_to_draw(layer: Any) -> bool:
    """Whether a layer draws in this pass, whatever the mode of the module around it."""
    return source_of(layer) is not None or layer.training


def _enter(module: nn.Module, _: Any) -> None:
    checkpoint = vars(module).get(CHECKPOINT)
    if checkpoint is not None and not isinstance(checkpoint, _Recomputed):
        setattr(module, CHECKPOINT, _Recomputed(checkpoint, module))
    stack = vars(_open).setdefault("stack", [])
    exits, draws = ExitStack(), draws_of(module)
    masked = draws.in_training_alone and any(map(is_to_draw, draws.children()))
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
        draws, layer.in_function = draws_of(module), True
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
        if isinstance(checkpoint := vars(module).get(CHECKPOINT), _Recomputed):
            setattr(module, CHECKPOINT, checkpoint.checkpoint)
        remove_forward_hooks(module, _enter, _leave)
