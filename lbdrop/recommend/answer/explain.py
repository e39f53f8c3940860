r"""Which of a user's items support a recommendation: each is removed in turn, and the history scored again.

$$ e_j = s_i(x) - s_i(x \setminus j) \qquad \text{for every } j \in x $$

These are exact effects, not an approximation: all shortened histories are scored in one batch, under the same masks. If the
score is linear in the row, as EASE's, $e_j$ is the weight from $j$ to $i$. Of two experts, each gets what the score loses when
the item is missing for it alone, averaged over whether it is missing for the other (Shapley values, which add up to $e_j$; what
the shorter history changes for both is halved).
"""

from itertools import chain, repeat

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lbdrop.recommend.answer.scoring import Scoring, batches_of, without_each
from lbdrop.recommend.model.product import Experts, Product

__all__ = ["effect_columns", "leave_one_out", "through_experts"]


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
    batches = batches_of(chain([history], without_each(history)), items, device)
    with torch.no_grad():
        scores = torch.cat([scored(batch).scores[:, item].double().cpu() for batch in batches])
    return scores[0] - scores[1:]


@torch.no_grad()
def through_experts(
    model: Product, history: Int64[np.ndarray, "n"], item: int, device: torch.device | str | None = None
) -> Float[Tensor, "n 2"]:
    """The same of a product, by expert: through the linear model, and through the network."""
    (whole,) = batches_of([history], model.network.items, device)
    full = model.experts(whole)
    before = model.combined(full, whole)[0, item].double()
    found = []
    for batch in batches_of(without_each(history), model.network.items, device):
        short = model.experts(batch)
        (same,) = batches_of(repeat(history, batch.size), model.network.items, device)
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


def effect_columns(
    items: pl.Series, effect: Float[np.ndarray, "n"], experts: dict[str, np.ndarray]
) -> dict[str, pl.Series]:
    """A row for each item of a history, the strongest support first; shares are of the sum of all absolute effects."""
    order, total = np.argsort(-effect, kind="stable"), np.abs(effect).sum()
    share = np.abs(effect) / (total if total > 0 else 1.0)
    columns = {"effect": effect, "share": share, **experts}
    return {"item_id": items.gather(order)} | {name: pl.Series(each[order]) for name, each in columns.items()}
