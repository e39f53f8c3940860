"""What a dropout that somebody else wrote drops, such as DropPath of stochastic depth: known by what it does to ones."""

import copy
import warnings
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["Effect", "drops_at_ones", "effect_of"]

# One of these shapes a module accepts: maps, sequences, vectors; many examples, so that a small rate shows.
SHAPES = ((1024, 3, 2, 2), (1024, 3, 4), (1024, 12))
PASSES = 4
# If draws are independent, the number of drops per example varies as a binomial one does, within these factors.
SPREAD = (0.7, 1.4)


class Effect(NamedTuple):
    """The rate at which a module drops, and what it drops as a whole."""

    rate: float
    drops: Literal["elements", "channels", "examples", "unknown"]
    """Unknown: beside something else, without scaling, with one draw for a whole batch, with draws that depend on each other,
    or no dropout."""


def effect_of(module: nn.Module) -> Effect | None:
    """The effect in training of a module without parameters that is the identity in eval mode; ``None`` for any other.

    Torch's own modules are known by their classes, and have none here.

    Example:
        >>> class DropPath(nn.Module):
        ...     def forward(self, x):
        ...         return x * torch.rand(len(x), *[1] * (x.dim() - 1)).gt(0.25) / 0.75 if self.training else x
        >>> effect_of(DropPath())
        Effect(rate=0.25, drops='examples')
    """
    if type(module).__module__.startswith("torch.nn.") or isinstance(module, torch.jit.ScriptModule):
        return None
    if any(module.children()) or module.state_dict():
        return None
    try:
        module = copy.deepcopy(module)  # it may count its calls, or move its rate with them
    except Exception:
        return None
    found: list[Effect] = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about shapes that this module was not made for
        torch.default_generator.manual_seed(0)  # that of the CPU alone: those of other devices are not put back
        for shape in SHAPES:
            if (passes := _passes(module, torch.ones(shape))) is not None:
                effect = _effect_in(*passes)
                if effect is not None and not _is_identity(module, torch.randn(shape)):
                    effect = Effect(effect.rate, "unknown") if effect.rate else None  # it does more than to drop
                if effect is None:
                    return None
                found.append(effect)
                if effect.rate:
                    break
    if len(found) > 1 and found[-1].rate:  # it drops some shapes alone
        return Effect(0.5, "unknown")
    return found[-1] if found else None


class _Zeros(TorchFunctionMode):
    """Every Bernoulli draw is 0."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0].zero_() if func is Tensor.bernoulli_ else func(*args, **(kwargs or {}))


def drops_at_ones(module: nn.Module) -> bool:
    """Whether a module drops around the ones that it draws, as DropBlock does around its seeds, and scales by what is left."""
    if (effect := effect_of(module)) is None or effect.drops != "unknown":
        return False
    module = copy.deepcopy(module)
    with torch.no_grad(), _Zeros():
        passes = [_passes(module, torch.ones(4, *shape[1:-2], *[9] * len(shape[-2:]))) for shape in SHAPES]
    return any(found is not None and bool((found[1] == 1).all()) for found in passes)


def _is_identity(module: nn.Module, values: Tensor) -> bool:
    """Whether a module does nothing in eval mode: ones alone would not show an activation in it, or a norm."""
    try:
        return torch.equal(module.eval()(values.clone()), values)
    except Exception:  # it wants numbers like one
        return False


def _passes(module: nn.Module, ones: Tensor) -> tuple[Tensor, Tensor] | None:
    """What ones become in eval mode and, several times over, in training; ``None`` where they do not suit the module."""
    try:
        at_test = module.eval()(ones.clone())
        module.train()
        passes = [module(ones.clone()) for _ in range(PASSES)]
    except Exception:  # it wants other inputs, or more of them
        return None
    if not all(isinstance(each, Tensor) and each.shape == ones.shape for each in (at_test, *passes)):
        return None
    return at_test, torch.cat(passes)


def _effect_in(at_test: Tensor, outputs: Tensor) -> Effect | None:
    if bool((at_test != 1).any()):
        return None
    if bool((outputs == 1).all()):
        return Effect(0.0, "elements")
    unknown, dropped = Effect(0.5, "unknown"), outputs == 0
    scale = float(outputs.flatten()[0] if dropped.all() else outputs[~dropped][0])
    if scale <= 1 or not dropped.any() or not bool(torch.isclose(outputs[~dropped], torch.tensor(scale)).all()):
        return unknown
    whole, drops = _independent_parts(dropped)
    rate, count = round(1 - 1 / scale, 6), drops.shape[1]
    spread = float(drops.double().sum(1).var()) / (count * rate * (1 - rate))
    if count > 1 and not SPREAD[0] < spread < SPREAD[1]:
        return unknown
    # One draw for a whole batch is none of an example.
    shared = any(bool(each.any()) and bool((each == each[0]).all()) for each in drops.chunk(PASSES))
    return unknown if shared else Effect(rate, whole)


def _independent_parts(dropped: Tensor) -> tuple[Literal["elements", "channels", "examples"], Tensor]:
    """What is dropped as a whole, and whether each of these was, (examples, parts)."""
    flat = dropped.flatten(1)
    if bool((flat == flat[:, :1]).all()):
        return "examples", flat[:, :1]
    if dropped.dim() > 2 and bool((dropped.flatten(2) == dropped.flatten(2)[..., :1]).all()):
        return "channels", dropped.flatten(2)[..., 0]
    return "elements", flat
