"""Models under ``torch.compile``: compiled where layers draw their masks by themselves, as written in all other passes.

A compiled graph has its layers' own draws in it, and no other source of masks. Several masks at once run under ``vmap``, for
which torch compiles wrong gradients without a word.
"""

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lbdrop._torch import has_compiled_call, uncompiled
from lbdrop.dropout import NoiseLayer
from lbdrop.guards.processes import unwrap

__all__ = ["as_written", "compiled_form", "is_compiled"]


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a part of it, is compiled."""
    return any(map(has_compiled_call, model.modules()))


def compiled_form(model: nn.Module) -> nn.Module:
    """What a loss is to call: what ``torch.compile`` made of the model, or the model itself."""
    core, wrapper = unwrap(model)
    problems = {
        "a compiled wrapper; wrap torch.compile(model)": wrapper is not None and uncompiled(model) is not model,
        "dropout in functions, which compiled graphs do not see; use nn.Dropout modules": is_compiled(model)
        and any(isinstance(module, NoiseLayer) and module.in_function for module in model.modules()),
    }
    for problem in (problem for problem, found in problems.items() if found):
        warnings.warn(f"compiled: steps run uncompiled, because the model has {problem}", stacklevel=4)
    inner = model if wrapper is None else wrapper.module
    while uncompiled(inner) is inner is not core:  # pyright: ignore[reportArgumentType]
        inner = inner.module  # pyright: ignore
    return inner  # pyright: ignore[reportReturnType]


@contextmanager
def as_written() -> Iterator[None]:
    """While open, what is compiled runs as it was written; nothing is where torch has not loaded its compiler.

    The compiler's stance is one for all threads: the first to come sets it, the last to go puts it back.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with _lock:
        if not _open:
            _open.append(torch.compiler.set_stance("force_eager"))
            _open[0].__enter__()
        _open.append(None)
    try:
        yield
    finally:
        with _lock:
            _open.pop()
            if len(_open) == 1:
                _open.pop().__exit__(None, None, None)


_lock = threading.Lock()
_open: list[Any] = []
"""What puts the stance back, and then one for each that is open."""
