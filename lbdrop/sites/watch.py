"""Watch a pass for dropout that is on and that no learned rate answers: it is an error, or a warning."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from lbdrop.errors import DropoutError
from lbdrop.sites.calls import call_of

__all__ = ["REPAIR", "check_unreached", "functional_dropout", "report_unreachable", "report_unreached"]

REPAIR = "convert it with example=x, a batch that the model can be called with, so that its draws are found"


class _Watch(TorchFunctionMode):
    """Notes each call that draws."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = call_of(func, args, kwargs)
        if call is not None and call.rate:
            self.found.append(f"{getattr(func, '__name__', func)}(p={call.rate:g})")
        return func(*args, **kwargs)


@contextmanager
def functional_dropout(model: nn.Module, unreached: str) -> Iterator[None]:
    """Run the block; report afterwards if a functional dropout was active in it."""
    with _Watch() as watch:
        yield
    if watch.found:
        report_unreachable(
            f"{type(model).__name__} drops out inside a function: {sorted(set(watch.found))}", REPAIR, unreached
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
