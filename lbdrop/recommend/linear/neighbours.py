r"""The regression of every item on the few others that tell most of it, for catalogues whose pairs do not fit in memory.

$$ B_{Sj} = (G + \Gamma)_{SS}^{-1}\, G_{Sj} \qquad\text{with}\qquad S \;=\; \text{the } K \text{ largest of }
   \frac{G_{ij}^2}{G_{ii} + \Gamma_{ii}} $$

An approximation of the inverse of all pairs: exact where an item has at most $K$ others beside it in any history. What is
left out is what the other items would add to these. The criterion is the squared error that item $i$ alone takes from item
$j$. Memory: the pairs that occur, and $K$ weights an item.

Ning and Karypis, SLIM, ICDM 2011 (selection of neighbours).
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.sparse import csr_array
from torch import Tensor

from lbdrop.recommend.data.rows import Batch

__all__ = ["MAX_NEIGHBOURS", "neighbour_weights", "sparse_co_occurrence", "sparse_scores"]

MAX_NEIGHBOURS = 200
"""K."""
MAX_PAIRS = 400_000_000
"""Of items in a history, over all histories: 5 gigabytes at most. Where there are more, each longer history is cut."""
AT_ONCE = 256
"""Items whose equations are solved together."""


def sparse_co_occurrence(rows: Any, weight: Float[np.ndarray, "users"] | None, seed: int = 0) -> csr_array:
    """XᵀWX; of too many pairs, those of a random part of the longest histories."""
    lengths, starts = np.diff(rows.indptr), rows.indptr[:-1]
    if (lengths.astype(np.int64) ** 2).sum() > MAX_PAIRS:
        longest = next(n for n in range(int(lengths.max()), 0, -1) if (np.minimum(lengths, n) ** 2).sum() <= MAX_PAIRS)
        place = np.random.default_rng(seed).random(rows.nnz)
        user = np.repeat(np.arange(len(lengths)), lengths)
        order = np.lexsort((place, user))
        kept = order[np.arange(rows.nnz) - np.repeat(starts, lengths) < longest]
        rows = csr_array((rows.data[kept], (user[kept], rows.indices[kept])), shape=rows.shape)
    weighted = rows if weight is None else rows.multiply(weight[:, None].astype(np.float32)).tocsr()
    return csr_array(rows.T @ weighted)


def neighbour_weights(
    gram: Any, ridge: Float[np.ndarray, "items"], neighbours: int = MAX_NEIGHBOURS
) -> dict[str, Tensor]:
    """B by its rows: where each item's weights start, whose score they count for, and the weights."""
    own = gram.diagonal() + ridge
    sources, targets, values = [], [], []
    for first in range(0, len(own), AT_ONCE):
        chosen = [_neighbours(gram, own, j, neighbours) for j in range(first, min(first + AT_ONCE, len(own)))]
        widest = max(1, max(len(some) for some in chosen))
        matrix, right = (
            np.tile(np.eye(widest, dtype=np.float32), (len(chosen), 1, 1)),
            np.zeros((len(chosen), widest, 1)),
        )
        for number, some in enumerate(chosen):
            n, part = len(some), gram[some]
            matrix[number, :n, :n] = part[:, some].toarray()
            matrix[number, range(n), range(n)] = own[some]
            right[number, :n] = part[:, [first + number]].toarray()
        factor = torch.linalg.cholesky(torch.from_numpy(matrix))
        found = torch.cholesky_solve(torch.from_numpy(right.astype(np.float32)), factor)[..., 0].numpy()
        for number, some in enumerate(chosen):
            sources.append(some)
            targets.append(np.full(len(some), first + number))
            values.append(found[number, : len(some)])
    parts = (np.concatenate(values), (np.concatenate(sources), np.concatenate(targets)))
    weights = csr_array(parts, shape=gram.shape)
    return {
        "starts": torch.from_numpy(weights.indptr.astype(np.int64)),
        "targets": torch.from_numpy(weights.indices.astype(np.int64)),
        "weights": torch.from_numpy(weights.data.astype(np.float32)),
    }


def _neighbours(gram: Any, own: np.ndarray, item: int, most: int) -> Int64[np.ndarray, "n"]:
    part = slice(gram.indptr[item], gram.indptr[item + 1])
    others, pairs = gram.indices[part].astype(np.int64), gram.data[part]
    value = np.where(others == item, 0.0, pairs**2 / own[others])
    best = np.argsort(-value, kind="stable")[:most]
    return np.sort(others[best[value[best] > 0]])


def sparse_scores(state: dict[str, Tensor], batch: Batch) -> Float[Tensor, "size items"]:
    """The weights of the users' items, added up."""
    starts, targets, weights = (state[name] for name in ("starts", "targets", "weights"))
    counts = (starts[1:] - starts[:-1])[batch.item]
    entry = torch.repeat_interleave(counts)
    within = torch.arange(len(entry), device=entry.device) - (counts.cumsum(0) - counts)[entry]
    place = starts[batch.item][entry] + within
    each = weights[place] if batch.value is None else weights[place] * batch.value[entry].to(weights.dtype)
    table = weights.new_zeros(batch.size * batch.items)
    return table.index_add_(0, batch.user[entry] * batch.items + targets[place], each).view(batch.size, batch.items)
