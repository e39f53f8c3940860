"""One model in several threads: any number may predict at once, and only one may train it, and not while others predict."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from torch import nn

from lbdrop._torch import parameters_of, write_count
from lbdrop.errors import DropoutError

__all__ = ["alone", "predicting", "training"]

REPAIR = (
    "predict with a copy (copy.deepcopy(model)), or have the threads take turns by a lock around each training step and"
    " each prediction"
)


@dataclass
class _Users:
    """Who runs a model at the moment."""

    predictions: Counter[int] = field(default_factory=Counter)
    """How many of each thread."""
    modes: list[tuple[nn.Module, bool]] = field(default_factory=list)
    """Of the modules, before the first of these predictions put them in eval mode."""
    trainer: int | None = None
    """The thread that is in a training step."""


class _Threads:
    """Which threads run a model of ours at the moment, whichever model."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users: WeakKeyDictionary[nn.Module, _Users] = WeakKeyDictionary()
        self.running: Counter[int] = Counter()
        self.crowded = False
        """Whether there have been several at once since there was none."""

    def enter(self, thread: int) -> None:
        self.running[thread] += 1
        self.crowded |= len(self.running) > 1

    def leave(self, thread: int) -> None:
        self.running[thread] -= 1
        self.running += Counter()  # those above 0
        self.crowded &= bool(self.running)


_threads = _Threads()


def alone() -> bool:
    """Whether no other thread has predicted or trained with any model of ours since the caller's prediction began."""
    return not _threads.crowded


@contextmanager
def predicting(model: nn.Module) -> Iterator[None]:
    """The model is in eval mode until the last of the predictions that run at once; then each module has its own mode again.

    An error if another thread is in a training step, or has changed the model before the block ends.
    """
    me = threading.get_ident()
    with _threads.lock:
        users = _threads.users.setdefault(model, _Users())
        if users.trainer not in (None, me):
            raise DropoutError(
                f"predict: want a model that no other thread trains, got one in a training step; {REPAIR}"
            )
        if not users.predictions:
            users.modes = [(module, module.training) for module in model.modules()]
            model.eval()
        users.predictions[me] += 1
        _threads.enter(me)
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
            users.predictions[me] -= 1
            users.predictions += Counter()
            if not users.predictions:
                for module, mode in users.modes:
                    module.training = mode
                users.modes = []
            _threads.leave(me)


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """A step of an objective; an error if another thread predicts with the model, or trains it too."""
    me = threading.get_ident()
    with _threads.lock:
        users = _threads.users.setdefault(model, _Users())
        before, predict = users.trainer, users.predictions.keys() - {me}
        if before not in (None, me) or predict:
            what = "predicts with" if predict else "trains"
            raise DropoutError(f"objective: want a model to itself, got one that another thread {what} too; {REPAIR}")
        users.trainer = me
        _threads.enter(me)
    try:
        yield
    finally:
        with _threads.lock:
            users.trainer = before
            _threads.leave(me)


def _writes(model: nn.Module) -> int:
    """How often parameters have been written to; those of inference mode cannot be."""
    found = (p for module in model.modules() for p in parameters_of(module).values())
    return sum(write_count(p) for p in found if p is not None and not p.is_inference())
