"""Held-out data: batches to look at again and again, and examples to give back to training when rates are settled."""

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
        self.restart()

    def count(self) -> None:
        """How many examples there are, which giving back needs to know; before training, for it may go through them once."""
        try:
            self._count = len(self.batches.dataset)  # pyright: ignore[reportAttributeAccessIssue]
        except (AttributeError, TypeError):
            self._count = sum(size_of(each) for each in self.batches)

    @property
    def distinct(self) -> float:
        """How many batches differ, before they come again; of a stream without a length any number."""
        try:
            return float(len(self.batches))  # pyright: ignore[reportArgumentType]
        except TypeError:
            return math.inf

    @property
    def at_once(self) -> float:
        """How many examples the next batch has; where that cannot be told any number."""
        try:
            return float(size_of(self.peek()))
        except DropoutError:
            return math.inf

    def restart(self) -> None:
        """Begin anew."""
        self._stream = self._again_and_again()
        self._waiting: list[tuple[Any, ...]] = []
        # Examples that are to be given back, in fractions of one; a batch of them, and how many of it have been already.
        self._owed, self._rest, self._given = 0.0, [], 0

    def next(self) -> tuple[Any, ...]:
        """The next batch, as what a loss function is called with."""
        return self._there(self._waiting.pop(0) if self._waiting else next(self._stream))

    def peek(self) -> tuple[Any, ...]:
        """The next batch, which will still be the next."""
        return self.ahead(0)

    def ahead(self, count: int) -> tuple[Any, ...]:
        """The batch after ``count`` others, none of which is taken by this."""
        while len(self._waiting) <= count:
            self._waiting.append(next(self._stream))  # where they come from: many may wait
        return self._there(self._waiting[count])

    def mixed(self, batch: tuple[Any, ...], examples: int) -> tuple[Any, ...]:
        """The batch with as many of its examples replaced by held-out ones as these are among all, beside ``examples``."""
        leaves, form = _flat(batch)
        self._owed += _size(leaves) * self._count / (self._count + examples)
        count = int(self._owed)
        if not count:
            return batch
        self._owed -= count
        with _alike():
            own = [leaf.narrow(0, count, len(leaf) - count) for leaf in leaves]  # a slice takes twice as long
            both = [torch.cat(pair) for pair in zip(own, self._taken(count, form), strict=True)]
            return tuple(both) if isinstance(form, int) else tree_unflatten(both, form)

    def check_like(self, batch: tuple[Any, ...]) -> None:
        """An error where the next batch could not be put behind one of training; nothing is taken."""
        (own, form), (held_out, theirs) = _flat(batch), _flat(self.peek())
        with _alike():
            if theirs != form:
                raise TypeError(f"{len(held_out)} tensors that are held otherwise than those of training")
            for pair in zip(own, held_out, strict=True):
                torch.cat([leaf[:1] for leaf in pair])

    def _taken(self, count: int, form: Any) -> list[Tensor]:
        """So many examples, as the leaves of a batch of this form."""
        while not self._rest or _size(self._rest) - self._given < count:
            more, theirs = _flat(self.next())
            if theirs != form:
                raise TypeError(f"{len(more)} tensors that are held otherwise than those of training")
            if self._rest:
                more = [torch.cat((old[self._given :], new)) for old, new in zip(self._rest, more, strict=True)]
            self._rest, self._given = more, 0
        begin, self._given = self._given, self._given + count
        return [leaf.narrow(0, begin, count) for leaf in self._rest]

    def _there(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        leaves, form = _flat(batch)
        there = [leaf.to(self.like.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return tuple(there) if isinstance(form, int) else tree_unflatten(there, form)

    def _again_and_again(self) -> Iterator[tuple[Any, ...]]:
        while True:
            empty = True
            for batch in self.batches:
                empty = False
                yield tuple(batch) if isinstance(batch, list | tuple) else (batch,)
            if empty:
                raise DropoutError(
                    "held_out: want batches that can be gone through again and again, got none; give a DataLoader or a"
                    " list, not a generator"
                )


@contextmanager
def _alike() -> Iterator[None]:
    """Batches that cannot be put together are an error with the next step."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        raise DropoutError(
            "held_out: want batches like those of training, so that its examples can be given back, got"
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
