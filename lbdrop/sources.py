"""Where a layer takes its masks from, in this thread and this task alone.

A source is no state of a layer: several threads may run one model at once, each under masks of its own. It is kept in a context
variable, which ``asyncio`` gives to each task and ``asyncio.to_thread`` takes along; a plain thread starts without sources.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from lbdrop._torch import compilation_ends_at, inside_backward
from lbdrop.errors import DropoutError

__all__ = ["MaskSource", "source_of", "use_in"]


@runtime_checkable
class MaskSource(Protocol):
    """Gives a layer the mask for its input; ``None`` asks for the deterministic pass. See :mod:`lbdrop.masks`."""

    def mask(self, layer: Any, x: Tensor) -> Tensor | None: ...


Sources = Mapping[nn.Module, MaskSource]

_here: ContextVar[Sources] = ContextVar("sources", default={})  # noqa: B039 — never written to


class _Everywhere:
    """The contexts that are open in any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.contexts: dict[object, Sources] = {}
        self.any = False
        """Read by every layer, and a guard of compiled graphs, which cannot look at context variables."""


_everywhere = _Everywhere()


def source_of(layer: nn.Module) -> MaskSource | None:
    """The source that a layer takes its masks from in this thread, if any."""
    found: Any = _source_here(layer) if _everywhere.any else None
    return found


@compilation_ends_at
def _source_here(layer: nn.Module) -> MaskSource | None:
    source = _here.get().get(layer)
    if source is None and inside_backward() and any(layer in sources for sources in [*_everywhere.contexts.values()]):
        raise DropoutError(
            "checkpoint: want backward() after the context of masks has ended, got a checkpointed block that runs again in a"
            " thread of the backward pass, which the context does not reach; call backward() outside of it"
        )
    return source


@contextmanager
def use_in(layers: Iterable[nn.Module], source: MaskSource) -> Iterator[None]:
    """These layers take their masks from ``source``, in this thread and task; afterwards from where they did before."""
    before, key = _here.get(), object()
    now = {**before, **dict.fromkeys(layers, source)}
    with _everywhere.lock:
        _everywhere.contexts[key], _everywhere.any = now, True
    _here.set(now)
    try:
        yield
    finally:
        _here.set(before)  # not by a token: the block may end in a copy of the context that it began in
        with _everywhere.lock:
            del _everywhere.contexts[key]
            _everywhere.any = bool(_everywhere.contexts)
