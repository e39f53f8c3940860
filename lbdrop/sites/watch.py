"""Watch a pass for dropout that is on and that no learned rate answers: it is an error, or a warning."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lbdrop.dropout import NoiseLayer
from lbdrop.errors import DropoutError
from lbdrop.sites.calls import COMPARISONS, Calls, call_of, innermost_module

__all__ = ["REPAIR", "check_unreached", "functional_dropout", "report_unreachable", "report_unreached"]

REPAIR = "convert it with example=x, a batch that the model can be called with, so that its draws are found"


class _Watch(Calls):
    """Notes each call that draws, and each module of the model that makes a mask of uniforms by hand."""

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        super().__init__()
        self.names = names
        self.found: set[str] = set()
        self.by_hand: set[str] = set()
        self.uniforms: list[Any] = []

    def see(self, func: Any, args: Any, kwargs: Any) -> Any:
        call = call_of(func, args, kwargs)
        if call is not None and call.rate:
            self.found.add(f"{getattr(func, '__name__', func)}(p={call.rate:g})")
        output = func(*args, **kwargs)
        if func in (torch.rand, torch.rand_like):
            self.uniforms.append(output)
        elif func in COMPARISONS and any(each is uniform for each in args for uniform in self.uniforms):
            module = innermost_module()
            if module is not None and module in self.names and not isinstance(module, NoiseLayer):
                self.by_hand.add(f"{self.names[module] or 'the model'} ({type(module).__name__})")
        return output


@contextmanager
def functional_dropout(model: nn.Module, unreached: str) -> Iterator[None]:
    """Run the block; report afterwards if a functional dropout was active in it."""
    with _Watch({module: name for name, module in model.named_modules()}) as watch:
        yield
    if watch.found:
        report_unreachable(
            f"{type(model).__name__} drops out inside a function: {sorted(watch.found)}", REPAIR, unreached
        )
    if watch.by_hand:
        warnings.warn(
            f"{type(model).__name__} makes masks of torch.rand by hand: {sorted(watch.by_hand)}; they stay as they are. If one"
            " is dropout whose rate is to be learned, write it with F.dropout and convert with example=x",
            stacklevel=3,
        )


def check_unreached(unreached: str) -> None:
    """An error about a value of the argument ``unreached`` that means nothing."""
    if unreached not in ("error", "warn"):
        raise DropoutError(f"unreached: want 'error' or 'warn', got {unreached!r}")


def report_unreached(layers: Mapping[str, nn.Module], reached: Collection[nn.Module], unreached: str) -> None:
    """An error or a warning about the dropouts that a pass has not reached."""
    if missing := [name for name, layer in layers.items() if layer not in reached]:
        what = f"dropout never reached in a pass: {missing}"
        report_unreachable(what, "call it in the model's forward", unreached)


def report_unreachable(what: str, repair: str, unreached: str) -> None:
    """An error, or a warning with ``unreached="warn"``, about dropout whose rate cannot be learned."""
    message = f"{what}; its rate cannot be learned there. Next: {repair}, or allow it with unreached='warn'"
    check_unreached(unreached)
    if unreached == "error":
        raise DropoutError(message)
    warnings.warn(message, stacklevel=3)
