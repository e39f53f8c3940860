r"""A training step as one CUDA graph: a step launches a few copies and a replay instead of hundreds of kernels.

On a large GPU the kernels of a step take a fraction of a millisecond and their launches several. A recorded
step takes only the kernels' time. A recording has fixed shapes and addresses, so batches are copied into buffers
(:class:`FixedBatch`), and the padding entries belong to one more user of weight 0.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lbdrop._torch import copy_many
from lbdrop.recommend.data.rows import Batch, Rows

__all__ = ["FixedBatch", "GraphRecorder"]

WARM_UP_STEPS = 3
"""Steps before a recording, as the docs of torch.cuda.graph want, so that libraries and the optimiser are set up."""


class FixedBatch:
    """A batch of fixed shape: ``size`` users and room for ``capacity`` entries.

    Rows are rounded up to a multiple of eight, which is faster on a GPU; the first padding row has all padding entries.
    """

    def __init__(self, size: int, items: int, capacity: int, device: torch.device):
        self.size, self.items, self.capacity = size, items, capacity
        rows = -(-(size + 1) // 8) * 8
        self.user = torch.full((capacity,), size, dtype=torch.int64, device=device)
        self.item = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.number = torch.zeros(rows, dtype=torch.int64, device=device)
        # Not 0: a division must not give infinity, because 0 × infinity is NaN.
        self.counts = torch.ones(rows, device=device)
        self.share = torch.zeros(rows, device=device)
        self.share[:size] = 1 / size
        self.offsets = torch.full((rows,), capacity, dtype=torch.int64, device=device)
        self.filled = 0

    @classmethod
    def for_batches_of(cls, rows: Rows, size: int) -> "FixedBatch":
        """Room for nearly every batch of ``size`` random rows: the mean plus five standard deviations."""
        counts = np.diff(rows.starts)
        room = size * counts.mean() + 5 * np.sqrt(size) * counts.std()
        return cls(size, rows.items, max(-(-int(room) // 1024) * 1024, 1024), rows.device)

    def fits(self, batch: Batch) -> bool:
        return batch.size == self.size and len(batch.item) <= self.capacity and batch.value is None

    def fill(self, batch: Batch) -> None:
        """Copy a batch in; entries left from a longer batch go to the padding row, where their items do not matter."""
        entries, size = len(batch.item), self.size
        copy_many(
            [self.user[:entries], self.item[:entries], self.number[:size], self.offsets[:size]],
            [batch.user, batch.item, batch.number, batch.offsets],
        )
        self.counts[:size].copy_(batch.counts)
        if entries < self.filled:
            self.user[entries : self.filled].fill_(size)
        self.filled = entries
        self.offsets[size].fill_(entries)

    def batch(self) -> Batch:
        """The buffers as a batch for the model."""
        return Batch(
            user=self.user,
            item=self.item,
            size=len(self.counts),
            items=self.items,
            number=self.number,
            counts=self.counts,
            offsets=self.offsets,
            cell=torch.add(self.item, self.user, alpha=self.items),
            share=self.share,
        )


Kind = tuple[str, bool]
"""What a step trains, and whether rates learn in it."""
Step = Callable[[Batch, Tensor, bool], None]


class GraphRecorder:
    """Runs steps; after a few, records each kind of step and replays the recording.

    Args:
        step: one step: losses, backward, optimiser. Draws from torch's global generator, which a graph can replay.
        optimizer: its gradients are set to None before and after a recording, which has its own.
        rows: the training rows.
        size: users a batch; other batches run unrecorded.
    """

    def __init__(self, step: Step, optimizer: torch.optim.Optimizer, rows: Rows, size: int):
        self.step, self.optimizer = step, optimizer
        self.fixed = FixedBatch.for_batches_of(rows, size)
        self.beta = torch.zeros((), device=rows.device)
        self.runs: dict[Kind, int] = {}
        self.graphs: dict[Kind, torch.cuda.CUDAGraph] = {}
        self.side = torch.cuda.Stream()

    def __call__(self, kind: Kind, batch: Batch, beta: Tensor) -> None:
        if not self.fixed.fits(batch):
            self._unrecorded(kind, batch, beta)
        elif self.runs.get(kind, 0) < WARM_UP_STEPS:
            self.runs[kind] = self.runs.get(kind, 0) + 1
            self._unrecorded(kind, batch, beta)
        else:
            self._fill(batch, beta)
            if kind not in self.graphs:
                self.graphs[kind] = self._record(kind)
            self.graphs[kind].replay()

    def _fill(self, batch: Batch, beta: Tensor) -> None:
        self.fixed.fill(batch)
        self.beta.copy_(beta)

    def _unrecorded(self, kind: Kind, batch: Batch, beta: Tensor) -> None:
        # On a side stream, because gradients made on the default stream could not be recorded later.
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.step(batch, beta, kind[1])
        torch.cuda.current_stream().wait_stream(self.side)

    def _record(self, kind: Kind) -> torch.cuda.CUDAGraph:
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(self.fixed.batch(), self.beta, kind[1])
        self.optimizer.zero_grad(set_to_none=True)
        return graph
