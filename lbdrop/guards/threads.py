"""One model in several threads: any number may predict at once, and only one may train it, and not while others predict."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from lbdrop._torch import parameters_of, write_count
from lbdrop.errors import DropoutError

__all__ = ["alone", "predicting", "training"]

REPAIR = (
    "predict with a copy (copy.deepcopy(model)), or have the threads take turns by a lock around each training step and"
    " each prediction"
)


class _Use(NamedTuple):
    """A prediction or a training step that is on its way."""

    model: nn.Module
    thread: int
    trains: bool

    def shares(self, model: nn.Module) -> bool:
        """Whether the models are one, or have parts in common."""
        return self.model is model or not set(self.model.modules()).isdisjoint(model.modules())


class _Threads:
    """Which threads run a model of ours at the moment, whichever model."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.uses: list[_Use] = []
        self.modes: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
        """How many predictions run a module, and its mode before the first of them."""
        self.crowded = False
        """Whether there have been several at once since there was none."""

    def others(self, model: nn.Module, thread: int) -> list[_Use]:
        """What other threads do with the model, or with parts of it."""
        return [use for use in self.uses if use.thread != thread and use.shares(model)]

    def enter(self, use: _Use) -> None:
        self.crowded |= any(use.thread != other.thread for other in self.uses)
        self.uses.append(use)

    def leave(self, use: _Use) -> None:
        self.uses.remove(use)
        self.crowded &= bool(self.uses)


_threads = _Threads()


def alone() -> bool:
    """Whether no other thread has predicted or trained with any model of ours since the caller's prediction began."""
    return not _threads.crowded


@contextmanager
def predicting(model: nn.Module) -> Iterator[None]:
    """The model is in eval mode until the last of the predictions that run at once; then each module has its own mode again.

    An error if another thread is in a training step, or has changed the model before the block ends.
    """
    use, parts, modes = _Use(model, threading.get_ident(), False), list(model.modules()), _threads.modes
    with _threads.lock:
        if any(other.trains for other in _threads.others(model, use.thread)):
            raise DropoutError(
                f"predict: want a model that no other thread trains, got one in a training step; {REPAIR}"
            )
        if any(part not in modes for part in parts):
            modes.update({part: (0, part.training) for part in parts if part not in modes})
            model.eval()
        modes.update({part: (modes[part][0] + 1, modes[part][1]) for part in parts})
        _threads.enter(use)
    writes = _writes(model)
    try:
        yield
        if _writes(model) != writes or any(module.training for module in model.modules()):
            raise DropoutError(
                "predict: want a model that stays as it is for as long as that takes, got parameters or modes that another"
                f" thread has changed; {REPAIR}"
            )
    finally:
        with _threads.lock:
            for part in parts:
                count, mode = modes.pop(part)
                if count > 1:
                    modes[part] = count - 1, mode
                else:
                    part.training = mode
            _threads.leave(use)


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """A step of an objective; an error if another thread predicts with the model, or trains it too."""
    use = _Use(model, threading.get_ident(), True)
    with _threads.lock:
        if others := _threads.others(model, use.thread):
            what = "trains" if others[0].trains else "predicts with"
            raise DropoutError(f"objective: want a model to itself, got one that another thread {what} too; {REPAIR}")
        _threads.enter(use)
    try:
        yield
    finally:
        with _threads.lock:
            _threads.leave(use)


def _writes(model: nn.Module) -> int:
    """How often parameters have been written to; those of inference mode cannot be."""
    found = (p for module in model.modules() for p in parameters_of(module).values())
    return sum(write_count(p) for p in found if p is not None and not p.is_inference())
