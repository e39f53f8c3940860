r"""Which of a user's items support a recommendation: each is removed in turn, and the history scored again.

$$ e_j = s_i(x) - s_i(x \setminus j) \qquad \text{for every } j \in x $$

These are exact effects, not an approximation: all shortened histories are scored in one batch, under the same masks. If the
score is linear in the row, as EASE's, $e_j$ is the weight from $j$ to $i$. Of two experts, each gets what the score loses when
the item is missing for it alone, averaged over whether it is missing for the other (Shapley values, which add up to $e_j$; what
the shorter history changes for both is halved).
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.sparse import csr_array
from torch import Tensor

from lbdrop.recommend.answer.scoring import Scoring, users_at_once
from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.product import Experts, Product

__all__ = ["leave_one_out", "through_experts"]


def leave_one_out(
    scored: Scoring,
    history: Int64[np.ndarray, "n"],
    item: int,
    items: int,
    device: torch.device | str | None = None,
) -> Float[Tensor, "n"]:
    """How much the score of ``item`` falls when each item of the history is missing.

    Args:
        scored: the model, see :func:`lbdrop.recommend.answer.scoring.scoring`.
        history: the indices of the user's items.
        item: the index of the item to explain.
        items: size of the catalogue.
        device: where the model is.
    """
    with torch.no_grad():
        whole, *shortened = (scored(b).scores[:, item].double().cpu() for b in _histories(history, items, device))
    return whole - torch.cat(shortened)


@torch.no_grad()
def through_experts(
    model: Product, history: Int64[np.ndarray, "n"], item: int, device: torch.device | str | None = None
) -> Float[Tensor, "n 2"]:
    """The same of a product, by expert: through the linear model, and through the network."""
    whole, *shortened = _histories(history, model.network.items, device)
    full = model.experts(whole)
    before = model.combined(full, whole)[0, item].double()
    found = []
    for batch in shortened:
        short = model.experts(batch)
        same = next(_histories(history, model.network.items, device, copies=batch.size))
        network, linear = (
            model.combined(each, same)[:, item].double()
            for each in (
                Experts(short.network, full.linear.expand_as(short.linear)),
                Experts(full.network.expand_as(short.network), short.linear),
            )
        )
        both = model.combined(short, batch)[:, item].double()
        found.append(torch.stack([before - linear + network - both, before - network + linear - both], 1) / 2)
    return torch.cat(found).cpu()


def _histories(
    history: Int64[np.ndarray, "n"], items: int, device: torch.device | str | None, copies: int = 1
) -> Iterator[Batch]:
    """The whole history in some copies, then batches of it without each item in turn."""
    n = len(history)
    whole = np.tile(history, copies), np.arange(copies + 1) * n
    yield _batch(csr_array((np.ones(n * copies, np.float32), *whole), shape=(copies, items)), device)
    at_once = users_at_once(max(items, n))
    for first in range(0, n, at_once):
        missing = np.arange(first, min(first + at_once, n))
        kept = np.arange(n) != missing[:, None]
        columns = np.broadcast_to(history, kept.shape)[kept]
        starts = np.arange(len(missing) + 1) * (n - 1)
        yield _batch(
            csr_array((np.ones(len(columns), np.float32), columns, starts), shape=(len(missing), items)), device
        )


def _batch(rows: csr_array, device: torch.device | str | None) -> Batch:
    rows.sort_indices()
    on_device = Rows.from_csr(rows, device)
    return on_device.batch(range(on_device.users))
