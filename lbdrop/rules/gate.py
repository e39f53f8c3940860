"""Noise waits for a gap: until there certainly is one, weights are trained without, and rates are kept aside."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

__all__ = ["OFF_LOGIT", "Gate"]

OFF_LOGIT = 50.0  # of a rate that is off: its keep rate is 1


class Gate:
    """Keeps logits off, and those that noise would have aside, until it is opened.

    Args:
        logits: those that wait.

    Example:
        >>> logit = torch.tensor(2.0)
        >>> gate = Gate([logit])
        >>> with gate.measuring():
        ...     logit
        tensor(2.)
        >>> logit
        tensor(50.)
        >>> gate.open()
        >>> logit
        tensor(2.)
    """

    def __init__(self, logits: Sequence[Tensor]):
        self.logits = logits
        self.aside: list[Tensor] | None = [logit.detach().clone() for logit in logits]
        self._fill()

    @property
    def is_open(self) -> bool:
        return self.aside is None

    def open(self) -> None:
        """Give the logits back."""
        self._restore()
        self.aside = None

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """With the logits that noise would have, which may move meanwhile."""
        self._restore()
        yield
        if self.aside is not None:
            self.aside = [logit.detach().clone() for logit in self.logits]
            self._fill()

    def _restore(self) -> None:
        for logit, kept in zip(self.logits, self.aside or (), strict=self.aside is not None):
            logit.data.copy_(kept)

    def _fill(self) -> None:
        for logit in self.logits:
            logit.data.fill_(OFF_LOGIT)

    def state_dict(self) -> dict[str, Any]:
        return {"aside": self.aside}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """After the logits themselves."""
        self.aside = None if state["aside"] is None else [torch.clone(each) for each in state["aside"]]
