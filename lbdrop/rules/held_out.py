"""Held-out data: batches that are read again and again, and examples that join training when rates are frozen."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lbdrop._torch import tree_flatten, tree_unflatten
from lbdrop.errors import DropoutError

__all__ = ["HeldOut", "size_of"]


class HeldOut:
    """Batches of held-out data, without end.

    Args:
        batches: a ``DataLoader``, or a list; gone through again and again.
        like: a parameter of the model; batches are handed out where it is.

    Example:
        >>> held_out = HeldOut([(torch.tensor([8, 9]),)], like=torch.zeros(()))
        >>> held_out.count()
        >>> held_out.mixed((torch.arange(4),), examples=2)  # two of four examples are held out, so two of every four
        (tensor([2, 3, 8, 9]),)
    """

    def __init__(self, batches: Iterable[Any], like: Tensor):
        self.batches, self.like = batches, like
        self._count = 0
        # How many examples have joined training, and how many are due, with a fraction.
        self._released, self._due = 0, 0.0
        self.restart()

    def count(self) -> None:
        """Count the examples, which their release needs; before training, because it may read all batches once."""
        try:
            self._count = len(self.batches.dataset)  # pyright: ignore[reportAttributeAccessIssue]
        except (AttributeError, TypeError):
            self._count = sum(size_of(each) for each in self.batches)

    @property
    def distinct(self) -> float:
        """How many different batches there are, before they come again; infinite for a stream without a length."""
        try:
            return float(len(self.batches))  # pyright: ignore[reportArgumentType]
        except TypeError:
            return math.inf

    def restart(self) -> None:
        """Start anew, as at the start of an epoch: a resumed run then sees the same batches. Released examples go on."""
        self._stream = self._endless()
        self._queue: list[tuple[Any, ...]] = []
        # A batch of examples for training, and how many of it have been used; how many were used before the restart.
        self._rest, self._used = [], 0
        self._skip = self._released % self._count if self._count else 0

    def state_dict(self) -> dict[str, Any]:
        return {"released": self._released, "due": self._due}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._released, self._due = state["released"], state["due"]
        self.restart()

    def next(self) -> tuple[Any, ...]:
        """The next batch, as what a loss function is called with."""
        return self._on_device(self._queue.pop(0) if self._queue else next(self._stream))

    def peek(self) -> tuple[Any, ...]:
        """The next batch, which will still be the next."""
        return self.ahead(0)

    def ahead(self, count: int) -> tuple[Any, ...]:
        """The batch after ``count`` others, none of which is taken by this."""
        while len(self._queue) <= count:
            self._queue.append(next(self._stream))  # where they come from: many may wait
        return self._on_device(self._queue[count])

    def mixed(self, batch: tuple[Any, ...], examples: int) -> tuple[Any, ...]:
        """The batch with as many of its examples replaced by held-out ones as these are among all, beside ``examples``."""
        leaves, form = _flat(batch)
        self._due += _size(leaves) * self._count / (self._count + examples)
        count = int(self._due)
        if not count:
            return batch
        self._due -= count
        with _mixing():
            training = [leaf.narrow(0, count, len(leaf) - count) for leaf in leaves]  # a slice takes twice as long
            both = [torch.cat(pair) for pair in zip(training, self._take(count, form), strict=True)]
            return tuple(both) if isinstance(form, int) else tree_unflatten(both, form)

    def check_like(self, batch: tuple[Any, ...]) -> None:
        """An error where the next batch could not be put behind one of training; nothing is taken."""
        (training, form), (held_out, held_out_form) = _flat(batch), _flat(self.peek())
        with _mixing():
            if held_out_form != form:
                raise TypeError(f"{len(held_out)} tensors in another structure than those of training")
            for leaves in (training, held_out):  # else edges of a graph would be cut as if they were nodes
                if len(sizes := [len(leaf) for leaf in leaves]) > sizes.count(sizes[0]):
                    raise ValueError(f"tensors of {sizes} rows, which are not one for each example, as of a graph")
            for pair in zip(training, held_out, strict=True):
                torch.cat([leaf[:1] for leaf in pair])

    def _take(self, count: int, form: Any) -> list[Tensor]:
        """So many examples, as the leaves of a batch of this form."""
        self._released += count
        while not self._rest or _size(self._rest) - self._used < count:
            more, its_form = _flat(self.next())
            if its_form != form:
                raise TypeError(f"{len(more)} tensors in another structure than those of training")
            if self._skip >= _size(more):
                self._skip -= _size(more)
                continue
            more, self._skip = [leaf[self._skip :] for leaf in more], 0
            if self._rest:
                more = [torch.cat((old[self._used :], new)) for old, new in zip(self._rest, more, strict=True)]
            self._rest, self._used = more, 0
        begin, self._used = self._used, self._used + count
        return [leaf.narrow(0, begin, count) for leaf in self._rest]

    def _on_device(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        leaves, form = _flat(batch)
        there = [leaf.to(self.like.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return tuple(there) if isinstance(form, int) else tree_unflatten(there, form)

    def _endless(self) -> Iterator[tuple[Any, ...]]:
        while True:
            empty = True
            for batch in self.batches:
                empty = False
                yield tuple(batch) if isinstance(batch, list | tuple) else (batch,)
            if empty:
                raise DropoutError(
                    "held_out: want batches that can be read again and again, got none; give a DataLoader or a"
                    " list, not a generator"
                )


@contextmanager
def _mixing() -> Iterator[None]:
    """Held-out and training batches that cannot be put together are an error with the next step."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        raise DropoutError(
            "held_out: want batches like those of training, so that its examples can join training, got"
            f" {error}; pass examples=None to keep them out"
        ) from error


def _flat(batch: Any) -> tuple[list[Any], Any]:
    """What a batch holds, and its form: of a tuple of tensors, which most are, their number. A search for them takes time."""
    if isinstance(batch, tuple) and all(isinstance(each, Tensor) for each in batch):
        return list(batch), len(batch)
    return tree_flatten(batch)


def size_of(batch: Any) -> int:
    """How many examples a batch has."""
    return _size(_flat(batch)[0])


def _size(leaves: list[Any]) -> int:
    found = next((leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), None)
    if found is None:
        raise DropoutError("held_out: want batches of tensors, got none in one; pass examples=None to keep them out")
    return len(found)
