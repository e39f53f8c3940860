"""What two passes on an example show: the modules that are called, the calls that draw, the coins that skip layers."""

import random
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lbdrop.errors import DropoutError
from lbdrop.sites.calls import COMPARISONS, Call, Calls, call_of, innermost_module, is_coin
from lbdrop.sites.effects import drops_at_ones
from lbdrop.sites.example import Example, Run, example_pass, undisturbed

__all__ = ["NAME", "Found", "Survey", "Toss", "look", "survey"]

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


class Toss(NamedTuple):
    """A coin: who tosses it, the module inside of that which comes next, and the rate that it is compared with."""

    tosser: nn.Module
    layer: nn.Module
    rate: float


class Pass(Calls):
    """Notes every call that draws, active or not, with its module and its number there; lands every coin on one side."""

    def __init__(self, side: float):
        super().__init__()
        self.side = side
        self.counts: dict[nn.Module, Counter[str]] = {}
        """Of the calls of each kind; by every module that is called."""
        self.shapes: dict[nn.Module, set[torch.Size]] = {}
        """Of the first inputs of modules."""
        self.calls: dict[tuple[nn.Module, str], Call] = {}
        self.tosses: list[Toss] = []
        self.coin: tuple[nn.Module, Tensor] | None = None
        self.rate = 0.0

    def begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.counts[module] = Counter()
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].dim():
            self.shapes.setdefault(module, set()).add(inputs[0].shape)
        if self.coin is not None and module in set(self.coin[0].modules()):
            self.tosses.append(Toss(self.coin[0], module, self.rate))
            self.coin = None

    def see(self, func: Any, args: Any, kwargs: Any) -> Any:
        if is_coin(func, args, kwargs) and (module := innermost_module()) is not None:
            self.coin, self.rate = (module, torch.full((), self.side)), 0.0
            return self.coin[1]
        if self.coin is not None and func in COMPARISONS and args[0] is self.coin[1]:
            self.rate = float(args[1])
        call = call_of(func, args, kwargs)
        module = None if call is None else innermost_module()
        if call is not None and module in self.counts:
            key = f"{call.kind}{self.counts[module][call.kind]}"
            self.counts[module][call.kind] += 1
            before = self.calls.get((module, key))
            if before is None or not before.rate:
                self.calls[module, key] = call
        return func(*args, **kwargs)


def look(model: nn.Module, run: Run, training: bool, side: float = 1.0) -> tuple[Pass, Any]:
    """A pass in one mode, and its output; with coins that land on 1 no layer is skipped."""
    seen = Pass(side)
    parts = (module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule))
    hooks = [module.register_forward_pre_hook(seen.begin) for module in parts]
    try:
        with undisturbed(model), seen:
            model.train(training)
            return seen, run()
    finally:
        for hook in hooks:
            hook.remove()


class Survey(NamedTuple):
    """A pass in each mode."""

    example: Example
    at_test: Pass
    training: Pass
    output: Any
    """In eval mode."""
    draws_in_python: bool
    """Whether training alone draws by Python's ``random`` or by ``numpy``, as some models do to skip layers."""

    def reaches(self, name: str, module: nn.Module) -> bool:
        """Whether a pass calls a module, or would not show it; else the model has it and never calls it."""
        return module in self.at_test.counts or module in self.training.counts or not self.example.covers(name)

    @property
    def shapes(self) -> dict[nn.Module, set[torch.Size]]:
        """Of the first inputs of modules, in both modes."""
        first, second = self.at_test.shapes, self.training.shapes
        return {module: first.get(module, set()) | second.get(module, set()) for module in {*first, *second}}

    def draws(self, names: Mapping[nn.Module, str], skip: Collection[str]) -> list[Found]:
        """The draws of training that are on, but for those of modules that are skipped."""
        found = []
        for (module, key), call in self.training.calls.items():
            name = names[module]
            if name in skip or not 0 < call.rate < 1:
                continue
            alone = (module, key) not in self.at_test.calls
            if alone and any(other is module for other, _ in self.at_test.calls):
                raise DropoutError(
                    f"{name}: want the same calls of dropout in training and in evaluation, got {key} in training alone;"
                    " call it always, as in F.dropout(x, p, training=self.training)"
                )
            axis = 1 if call.settings.get("channels") else call.settings.get("unit_dim", -1)
            units = call.x.shape[axis] if call.x.dim() > 1 else 1
            at_ones = call.kind == "mask" and drops_at_ones(module)
            rate = 1 - call.rate if at_ones else call.rate
            found.append(Found(name, key, rate, units, call.settings, alone, at_ones))
        return found


def survey(model: nn.Module, example: Any) -> Survey | None:
    """Run the model in both modes, on this example or the one that it offers; it is afterwards what it was.

    ``None`` where there is no example, or the model's own does not suit it.
    """
    shown = example_pass(model, example)
    if shown is None:
        return None
    try:
        return _run(model, shown)
    except DropoutError:
        raise
    except Exception as error:
        if example is None:
            return None
        raise DropoutError(
            "example: want a batch that the model can be called with in training and in eval mode, got"
            f" {type(error).__name__}: {error}; pass one as in training, of two or more examples"
        ) from error


def _run(model: nn.Module, shown: Example) -> Survey:
    states = [_python_states()]
    at_test, output = look(model, shown.run, False)
    states.append(_python_states())
    training, _ = look(model, shown.run, True)
    states.append(_python_states())
    for _ in range(TRIES):  # a layer may be skipped by chance that is not torch's
        if at_test.calls.keys() <= training.calls.keys():
            break
        again, _ = look(model, shown.run, True)
        training.calls = again.calls | training.calls
    return Survey(shown, at_test, training, output, states[0] == states[1] != states[2])


def _python_states() -> tuple[Any, ...]:
    numbers: Any = np.random.get_state()  # noqa: NPY002 — the state of those who draw the old way
    return random.getstate(), bytes(numbers[1]), numbers[2:]
