r"""Which of a user's items support a recommendation: each is removed in turn, and the history scored again.

$$ e_j = s_i(x) - s_i(x \setminus j) \qquad \text{for every } j \in x $$

These are exact effects, not an approximation: all shortened histories are scored in one batch, under the same masks. If the
score is linear in the row, as EASE's, $e_j$ is the weight from $j$ to $i$.
"""

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.sparse import csr_array
from torch import Tensor

from lbdrop.recommend.answer.scoring import Scoring, users_at_once
from lbdrop.recommend.data.rows import Rows

__all__ = ["leave_one_out"]


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
    n = len(history)
    whole = csr_array((np.ones(n, np.float32), history, np.array([0, n])), shape=(1, items))
    found = [_scores(scored, whole, item, device)]
    at_once = users_at_once(max(items, n))
    for first in range(0, n, at_once):
        missing = np.arange(first, min(first + at_once, n))
        kept = np.arange(n) != missing[:, None]
        columns = np.broadcast_to(history, kept.shape)[kept]
        starts = np.arange(len(missing) + 1) * (n - 1)
        rows = csr_array((np.ones(len(columns), np.float32), columns, starts), shape=(len(missing), items))
        found.append(_scores(scored, rows, item, device))
    scores = torch.cat(found)
    return scores[0] - scores[1:]


def _scores(scored: Scoring, rows: csr_array, item: int, device: torch.device | str | None) -> Float[Tensor, "rows"]:
    rows.sort_indices()
    on_device = Rows.from_csr(rows, device)
    with torch.no_grad():
        return scored(on_device.batch(range(on_device.users))).scores[:, item].double().cpu()
