"""Batches of examples that are in memory."""

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["Batches"]

Pair = tuple[Tensor, Tensor]


class Batches:
    """Examples in batches, in a new order every time they are gone through; a last one that is short is left out."""

    def __init__(self, examples: Pair, size: int, generator: torch.Generator):
        self.examples, self.size, self.generator = examples, min(size, len(examples[0])), generator

    def __len__(self) -> int:
        return len(self.examples[0]) // self.size

    def __iter__(self) -> Iterator[Pair]:
        # Drawn on the CPU, so that a seed has the same batches on every device.
        order = torch.randperm(len(self.examples[0]), generator=self.generator).to(self.examples[0].device)
        for rows in order.split(self.size)[: len(self)]:
            # By index_select: indexing finds the place of every single number, and takes five times as long.
            yield self.examples[0].index_select(0, rows), self.examples[1].index_select(0, rows)
