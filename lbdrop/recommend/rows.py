r"""The interaction matrix, and batches of its rows on the device that cost no look back at the host.

A row-compressed matrix is two arrays: where each user's items start, and the items. An epoch draws one permutation of the
users on the host, where the starts are known too, so the bounds of every batch are known without asking the device. The
permuted entries are gathered a window of batches at a time, and batches are slices of that window.

The items may live on the device, or on the host where the device has no room for them, even as a map of a file. Then windows
are gathered on the host and copied from pinned memory, each while the steps of the one before are still running; the
batches are the same.
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

__all__ = ["TABLE", "Batch", "Resident", "Rows", "users_at_once"]

# Entries gathered at once: enough that their few kernels are lost among those of the steps, small beside the model.
WINDOW = 4_000_000

Resident = Literal["auto", "device", "host"]
"""Where the items live; by the room there is unless told."""
# What training itself may want beside the items: they move in if they leave half of what is free.
SHARE = 0.5

TABLE = 2**24
"""Numbers in one table of scores at most, so that a handful of them stay below half a gigabyte."""


def users_at_once(items: int, most: int = 1000) -> int:
    """How many users' scores fit into one table."""
    return max(1, min(most, TABLE // items))


@dataclass(frozen=True)
class Batch:
    """Some users' rows as a list of entries, in the order of the users."""

    user: Int64[Tensor, "entries"]
    """For each stored entry its user's position in the batch, 0 … size − 1; never falls."""
    item: Int64[Tensor, "entries"]
    """For each stored entry its item."""
    size: int
    """Users in the batch, those without any entry too."""
    items: int
    """Items of the catalogue."""
    number: Int64[Tensor, "size"]
    """The users' row numbers in the data set."""
    counts: Float[Tensor, "size"]
    """Entries of each user."""
    offsets: Int64[Tensor, "size"]
    """Where each user's entries start: what ``embedding_bag`` wants."""
    cell: Int64[Tensor, "entries"]
    """Each entry's place in the flattened dense matrix: user · items + item."""
    value: Float[Tensor, "entries"] | None = None
    """The entries' weights; ``None`` where every entry is 1."""
    share: Float[Tensor, "size"] | None = None
    """How much each user counts in a mean, summing to 1; ``None`` where all count alike. Rows that only fill up have 0."""

    def mean(self, each: Float[Tensor, "size"]) -> Float[Tensor, ""]:
        """The mean over users of a value of each."""
        return each.mean() if self.share is None else (self.share * each).sum()

    def per_entry(self, each: Float[Tensor, "entries"]) -> Float[Tensor, "entries"]:
        """A value of each entry as its part in the mean over users of its sum over their entries."""
        return each / self.size if self.share is None else each * self.share.index_select(0, self.user)

    def cells(self, width: int) -> Int64[Tensor, "entries"]:
        """Each entry's place in a flattened table of ``width`` columns."""
        return self.cell if width == self.items else torch.add(self.item, self.user, alpha=width)

    def dense(self, values: Tensor | None = None, dtype: torch.dtype | None = None, width: int | None = None) -> Tensor:
        """The rows written out: (size, items), or (n, size, items) for ``values`` of shape (n, entries).

        Without ``values`` an entry is its weight, or 1. Gradients reach ``values``. A ``width`` of more than the items adds
        columns of zeros.
        """
        width = self.items if width is None else width
        if values is None:
            values = self.value
        if values is None:
            flat = torch.zeros(self.size * width, dtype=dtype, device=self.item.device)
            return flat.index_fill_(0, self.cells(width), 1.0).view(self.size, width)
        values = values if dtype is None else values.to(dtype)
        flat = values.new_zeros(*values.shape[:-1], self.size * width)
        # Every cell is written at most once, so this is as exact, and as repeatable, as an assignment.
        flat = flat.scatter(-1, self.cells(width).expand(values.shape), values)
        return flat.view(*values.shape[:-1], self.size, width)

    @property
    def device(self) -> torch.device:
        return self.item.device


class Rows:
    """A row-compressed matrix whose batches are on a device.

    Args:
        starts: where each row's items start, and where the last one's end.
        item: the items of all rows; a map of a file stays one on the host.
        items: items of the catalogue.
        value: the weights of the items; all 1 without them.
        device: where batches are.
        resident: where ``item`` and ``value`` live: on the device, on the host, or by the room there is.

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
        self.starts = starts  # on the host: gives the bounds of every slice
        self.users, self.items = len(starts) - 1, items
        self.device = torch.device(device if device is not None else "cpu")
        """Where batches are."""
        size = item.nbytes + (0 if value is None else value.nbytes)
        self.on_host = resident == "host" or (resident == "auto" and not _has_room(self.device, size))
        home = torch.device("cpu") if self.on_host else self.device
        self.item = item.to(home)
        self.value = None if value is None else value.to(home)

    @classmethod
    def from_csr(
        cls,
        matrix: Any,
        device: torch.device | str | None = None,
        *,
        values: bool = False,
        resident: Resident = "auto",
    ) -> "Rows":
        """A scipy matrix (users × items), for batches on the device; its stored values are dropped unless ``values``.

        Explicit zeros and duplicates are taken out first: an entry stands for an interaction.
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
        """Every user once, ``size`` at a time; the last batch has what is left.

        Args:
            size: users a batch.
            shuffle: in an order drawn anew by ``generator``; otherwise in the order of the rows.
            generator: one of the CPU draws the same order for every device, and needs no look at the device.
            rank: with several processes, which share to take: shares are disjoint and have the same number of batches
                (fewer than ``ranks`` users are left out of an epoch).
            ranks: how many processes there are.
        """
        if size < 1:
            raise DropoutError(f"size: want at least 1 user a batch, got {size}")
        if shuffle:
            place = generator.device if generator is not None else torch.device("cpu")
            order = torch.randperm(self.users, generator=generator, device=place).cpu()
        else:
            order = torch.arange(self.users)
        if ranks > 1:
            order = order[: max(self.users - self.users % ranks, 1)][rank::ranks]
        return self.in_order(order, size)

    def batch(self, users: Any) -> Batch:
        """The rows of the given numbers, in that order; a row may be asked for twice."""
        order = torch.as_tensor(users, dtype=torch.int64).cpu().reshape(-1)
        if len(order) and not (int(order.min()) >= 0 and int(order.max()) < self.users):
            raise DropoutError(f"users: want row numbers from 0 to {self.users - 1}, got {int(order.min())} to"
                               f" {int(order.max())}")  # fmt: skip
        if not len(order):
            none = order.to(self.device)
            return Batch(none, none, 0, self.items, none, none.float(), none, none)
        return next(self.in_order(order, len(order)))

    def in_order(self, order: Int64[Tensor, "rows"], size: int) -> Iterator[Batch]:
        """Batches of the rows of these numbers, which are on the host; gathered a window at a time."""
        host = order.numpy()
        counts = self.starts[host + 1] - self.starts[host]
        ends = np.concatenate([[0], np.cumsum(counts)])
        fresh = ends[:-1]  # where each row starts in the new order
        # Once an epoch rather than once a batch: a batch is then nothing but views.
        offsets = fresh - fresh[np.arange(len(host)) // size * size]
        order, count, offset = (torch.as_tensor(each).to(self.device) for each in (order, counts, offsets))
        lengths, home = count.float(), self.item.device
        shifts, lines = (torch.from_numpy(each).to(home) for each in (self.starts[host] - fresh, counts))

        def gather(first: int, last: int) -> tuple[int, int, Tensor, Tensor | None]:
            low, high = int(ends[first]), int(ends[last])
            source = torch.repeat_interleave(shifts[first:last], lines[first:last], output_size=high - low)
            source += torch.arange(low, high, device=home)
            value = None if self.value is None else self._chosen(self.value, source)
            return first, last, self._chosen(self.item, source), value

        for first, last, narrow, value in _ahead((gather(*each) for each in _windows(ends, size)), int(self.on_host)):
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

    def _chosen(self, stored: Tensor, source: Int64[Tensor, "entries"]) -> Tensor:
        """Entries on the device; from the host the copy is on its way, and the pinned memory is torch's to look after."""
        if not self.on_host:
            return stored[source]
        picked = torch.empty(len(source), dtype=stored.dtype, pin_memory=self.device.type == "cuda")
        torch.index_select(stored, 0, source, out=picked)
        return picked.to(self.device, non_blocking=True)


def _has_room(device: torch.device, size: int) -> bool:
    """Whether a device takes so many bytes and has as many left; only a GPU has memory of its own to run out of."""
    # A few rows, as a question brings them, are not worth asking the driver about.
    return device.type != "cuda" or size <= WINDOW or size <= SHARE * torch.cuda.mem_get_info(device)[0]


def _ahead(each: Iterable[Any], count: int) -> Iterator[Any]:
    """The same, with so many made before they are asked for."""
    made = deque[Any]()
    for one in each:
        made.append(one)
        if len(made) > count:
            yield made.popleft()
    yield from made


def _windows(ends: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of users that begin and end with a batch and hold about ``WINDOW`` entries, or one batch if that has more."""
    users, first = len(ends) - 1, 0
    while first < users:
        fits = int(np.searchsorted(ends, ends[first] + WINDOW, side="right")) - 1
        last = min(first + max((fits - first) // size, 1) * size, users)
        yield first, last
        first = last
