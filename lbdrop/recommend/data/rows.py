r"""The interaction matrix, and batches of its rows on the device, made without waiting for the device.

A row-compressed matrix is two arrays: the start of each user's items, and the items. An epoch draws one permutation of the
users on the host, which has the starts too, so it knows the bounds of every batch. The permuted entries are gathered for a
window of several batches at a time, and batches are slices of that window.

The items are on the device, or on the host if the device has too little memory, even as a memory map of a file. Then windows
are gathered on the host and copied from pinned memory while the steps of the window before still run. The batches are the
same.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lbdrop.errors import DropoutError

__all__ = ["MAX_TABLE", "Batch", "Resident", "Rows", "users_at_once"]

WINDOW = 4_000_000
"""Entries gathered at once: their few kernels take little time beside the steps, and little memory beside the model."""

Resident = Literal["auto", "device", "host"]
"""Where the items are; "auto" decides by the free memory."""
MAX_MEMORY_SHARE = 0.5
"""Of the device's free memory that the items may take; training needs the rest."""

MAX_TABLE = 2**24
"""Numbers in one table of scores, so that several tables stay below half a gigabyte."""


def users_at_once(items: int, maximum: int = 1000) -> int:
    """How many users' scores fit into one table."""
    return max(1, min(maximum, MAX_TABLE // items))


@dataclass(frozen=True)
class Batch:
    """Some users' rows as a list of entries, in the order of the users."""

    user: Int64[Tensor, "entries"]
    """For each stored entry its user's position in the batch, 0 … size − 1; sorted."""
    item: Int64[Tensor, "entries"]
    """For each stored entry its item."""
    size: int
    """Users in the batch, including those without entries."""
    items: int
    """Items of the catalogue."""
    number: Int64[Tensor, "size"]
    """The users' row numbers in the data set."""
    counts: Float[Tensor, "size"]
    """Entries of each user."""
    offsets: Int64[Tensor, "size"]
    """Where each user's entries start, for ``embedding_bag``."""
    cell: Int64[Tensor, "entries"]
    """Each entry's place in the flattened dense matrix: user · items + item."""
    value: Float[Tensor, "entries"] | None = None
    """The entries' weights; ``None`` if every entry is 1."""
    share: Float[Tensor, "size"] | None = None
    """The weight of each user in a mean, with sum 1; ``None`` if all are equal. Padding rows have 0."""

    def mean(self, each: Float[Tensor, "size"]) -> Float[Tensor, ""]:
        """The mean over users of a value of each."""
        return each.mean() if self.share is None else (self.share * each).sum()

    def per_entry(self, each: Float[Tensor, "entries"]) -> Float[Tensor, "entries"]:
        """A value of each entry, weighted so that the sum over entries is the mean over users of their sums."""
        return each / self.size if self.share is None else each * self.share.index_select(0, self.user)

    def cells(self, width: int) -> Int64[Tensor, "entries"]:
        """Each entry's place in a flattened table of ``width`` columns."""
        return self.cell if width == self.items else torch.add(self.item, self.user, alpha=width)

    def dense(self, values: Tensor | None = None, dtype: torch.dtype | None = None, width: int | None = None) -> Tensor:
        """The rows written out: (size, items), or (n, size, items) for ``values`` of shape (n, entries).

        Without ``values`` an entry is its weight, or 1. Gradients reach ``values``. A larger ``width`` adds columns of zeros.
        """
        width = self.items if width is None else width
        if values is None:
            values = self.value
        if values is None:
            flat = torch.zeros(self.size * width, dtype=dtype, device=self.item.device)
            return flat.index_fill_(0, self.cells(width), 1.0).view(self.size, width)
        values = values if dtype is None else values.to(dtype)
        flat = values.new_zeros(*values.shape[:-1], self.size * width)
        # Every cell is written at most once, so the result is exact and deterministic.
        flat = flat.scatter(-1, self.cells(width).expand(values.shape), values)
        return flat.view(*values.shape[:-1], self.size, width)

    @property
    def device(self) -> torch.device:
        return self.item.device


class Rows:
    """A row-compressed matrix whose batches are on a device.

    Args:
        starts: where each row's items start, and where the last row ends.
        item: the items of all rows; on the host it may be a map of a file.
        items: items of the catalogue.
        value: the weights of the items; default 1.
        device: where batches are.
        resident: where ``item`` and ``value`` are: "device", "host", or "auto", which decides by the free memory.

    Example:
        >>> from scipy.sparse import csr_array
        >>> rows = Rows.from_csr(csr_array([[1, 0, 1], [0, 1, 0]]))
        >>> [batch.item.tolist() for batch in rows.batches(1, shuffle=False)]
        [[0, 2], [1]]
    """

    def __init__(
        self,
        starts: np.ndarray,
        item: Tensor,
        items: int,
        *,
        value: Tensor | None = None,
        device: torch.device | str | None = None,
        resident: Resident = "auto",
    ):
        self.starts = starts  # on the host, for the bounds of every slice
        self.users, self.items = len(starts) - 1, items
        self.device = torch.device(device if device is not None else "cpu")
        """Where batches are."""
        size = item.nbytes + (0 if value is None else value.nbytes)
        self.on_host = resident == "host" or (resident == "auto" and not _has_room(self.device, size))
        place = torch.device("cpu") if self.on_host else self.device
        self.item = item.to(place)
        self.value = None if value is None else value.to(place)

    @classmethod
    def from_csr(
        cls,
        matrix: Any,
        device: torch.device | str | None = None,
        *,
        values: bool = False,
        resident: Resident = "auto",
    ) -> "Rows":
        """A scipy matrix (users × items), for batches on the device; without ``values`` every entry counts as 1.

        Explicit zeros are removed and duplicates added up first.
        """
        if len(getattr(matrix, "shape", ())) != 2 or not hasattr(matrix, "tocsr"):
            raise DropoutError(f"matrix: want a scipy sparse matrix (users, items), got {type(matrix).__name__}")
        matrix = matrix.tocsr()
        if not matrix.has_canonical_format or (matrix.data == 0).any():
            matrix = matrix.copy()
            matrix.sum_duplicates()
            matrix.eliminate_zeros()
        return cls(
            matrix.indptr.astype(np.int64),
            torch.from_numpy(matrix.indices.astype(np.int32)),
            matrix.shape[1],
            value=torch.from_numpy(matrix.data.astype(np.float32)) if values else None,
            device=device,
            resident=resident,
        )

    @property
    def entries(self) -> int:
        return int(self.starts[-1])

    def steps(self, size: int, ranks: int = 1) -> int:
        """How many batches an epoch has."""
        return -(-max(self.users // ranks, 1) // size)

    def batches(
        self,
        size: int,
        *,
        shuffle: bool,
        generator: torch.Generator | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> Iterator[Batch]:
        """Every user once, ``size`` at a time; the last batch may be smaller.

        Args:
            size: users a batch.
            shuffle: in an order drawn anew by ``generator``; otherwise in the order of the rows.
            generator: on the CPU it draws the same order for every device, and does not wait for the device.
            rank: with several processes, which share to take: shares are disjoint and have the same number of batches
                (fewer than ``ranks`` users are left out of an epoch).
            ranks: how many processes there are.
        """
        if size < 1:
            raise DropoutError(f"size: want at least 1 user a batch, got {size}")
        if shuffle:
            device = generator.device if generator is not None else torch.device("cpu")
            order = torch.randperm(self.users, generator=generator, device=device).cpu()
        else:
            order = torch.arange(self.users)
        if ranks > 1:
            order = order[: max(self.users - self.users % ranks, 1)][rank::ranks]
        return self.in_order(order, size)

    def batch(self, users: Any) -> Batch:
        """The rows of these indices, in that order; an index may occur twice."""
        order = torch.as_tensor(users, dtype=torch.int64).cpu().reshape(-1)
        if len(order) and not (int(order.min()) >= 0 and int(order.max()) < self.users):
            raise DropoutError(f"users: want row numbers from 0 to {self.users - 1}, got {int(order.min())} to"
                               f" {int(order.max())}")  # fmt: skip
        if not len(order):
            none = order.to(self.device)
            return Batch(none, none, 0, self.items, none, none.float(), none, none)
        return next(self.in_order(order, len(order)))

    def in_order(self, order: Int64[Tensor, "rows"], size: int) -> Iterator[Batch]:
        """Batches of the rows of these indices, which are on the host; gathered a window at a time."""
        host = order.numpy()
        counts = self.starts[host + 1] - self.starts[host]
        ends = np.concatenate([[0], np.cumsum(counts)])
        new_starts = ends[:-1]  # where each row starts in the new order
        # Computed once for all batches, so that a batch consists of views.
        offsets = new_starts - new_starts[np.arange(len(host)) // size * size]
        order, count, offset = (torch.as_tensor(each).to(self.device) for each in (order, counts, offsets))
        lengths, place = count.float(), self.item.device
        shifts, row_counts = (torch.from_numpy(each).to(place) for each in (self.starts[host] - new_starts, counts))

        def gather(first: int, last: int) -> tuple[int, int, Tensor, Tensor | None]:
            low, high = int(ends[first]), int(ends[last])
            source = torch.repeat_interleave(shifts[first:last], row_counts[first:last], output_size=high - low)
            source += torch.arange(low, high, device=place)
            value = None if self.value is None else self._gathered(self.value, source)
            return first, last, self._gathered(self.item, source), value

        for first, last, narrow, value in _prefetch(
            (gather(*each) for each in _windows(ends, size)), int(self.on_host)
        ):
            low, item = int(ends[first]), narrow.long()
            user = torch.repeat_interleave(count[first:last], output_size=len(item)).remainder(size)
            cell = torch.add(item, user, alpha=self.items)
            for a in range(first, last, size):
                b = min(a + size, last)
                entries = slice(int(ends[a]) - low, int(ends[b]) - low)
                yield Batch(
                    user=user[entries],
                    item=item[entries],
                    size=b - a,
                    items=self.items,
                    number=order[a:b],
                    counts=lengths[a:b],
                    offsets=offset[a:b],
                    cell=cell[entries],
                    value=None if value is None else value[entries],
                )

    def _gathered(self, stored: Tensor, source: Int64[Tensor, "entries"]) -> Tensor:
        """Entries on the device; a copy from the host is asynchronous, and torch keeps its pinned memory until it is done."""
        if not self.on_host:
            return stored[source]
        picked = torch.empty(len(source), dtype=stored.dtype, pin_memory=self.device.type == "cuda")
        torch.index_select(stored, 0, source, out=picked)
        return picked.to(self.device, non_blocking=True)


def _has_room(device: torch.device, size: int) -> bool:
    """Whether a device has enough free memory for so many bytes; always true without a GPU."""
    # Asking the driver takes longer than copying a few rows.
    return device.type != "cuda" or size <= WINDOW or size <= MAX_MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]


def _prefetch(each: Iterable[Any], count: int) -> Iterator[Any]:
    """The same values, with ``count`` of them made ahead of time."""
    made = deque[Any]()
    for value in each:
        made.append(value)
        if len(made) > count:
            yield made.popleft()
    yield from made


def _windows(ends: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """RangeParts of users that begin and end with a batch and hold about ``WINDOW`` entries, or one batch if that has more."""
    users, first = len(ends) - 1, 0
    while first < users:
        fits = int(np.searchsorted(ends, ends[first] + WINDOW, side="right")) - 1
        last = min(first + max((fits - first) // size, 1) * size, users)
        yield first, last
        first = last
