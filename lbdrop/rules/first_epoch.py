"""The first epoch of a run: nothing can be over-fitted yet, so a gap to held-out data means that these are harder."""

import math

import torch

from lbdrop.rules.evaluation import Evaluation
from lbdrop.rules.held_out import HeldOut, size_of

__all__ = ["FirstEpoch"]


class FirstEpoch:
    """How long the first epoch is, where that can be known, and how many held-out batches differ.

    Args:
        held_out: the held-out data.
        examples: how many training examples there are, or ``None`` where nobody said.
        until: the step by which it has to be over to be of use.
        lasts: how many steps at its end see batches that are new and yet not the first.
    """

    def __init__(self, held_out: HeldOut, examples: int | None, until: int, lasts: int):
        self.held_out, self.examples, self.until, self.lasts = held_out, examples, until, lasts
        self.length: int | None = None
        self.distinct = math.inf
        self._noted = False

    def note(self, evaluation: Evaluation, device: torch.device) -> None:
        """Once, from the first batch of a run."""
        if self._noted:
            return
        self._noted = True
        batch = size_of(evaluation.batch) if self.examples is not None and evaluation.batch else 0
        here = torch.tensor([batch, self.held_out.distinct, 1], device=device)
        batch, batches, processes = evaluation.all_reduce(here).tolist()
        self.distinct = batches / processes  # one measurement takes one of each process
        if batch:
            self.length = int(float(self.examples or 0) / batch)

    @property
    def outlasts(self) -> bool:
        """Whether it is known to be over too late."""
        return self.length is not None and self.length > self.until

    def last(self) -> range:
        """Its last steps; none where its length cannot be known, or not in time."""
        if self.length is None or self.outlasts:
            return range(0)
        return range(max(0, self.length - self.lasts), self.length)

    def __contains__(self, step: int) -> bool:
        """Whether a step is in it; ``False`` where its length cannot be known."""
        return self.length is not None and step < self.length
