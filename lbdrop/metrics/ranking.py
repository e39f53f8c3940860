r"""How many of a user's held-out items are high in the ranking, from one ``topk`` of the scores.

With $\text{rel}_r = 1$ where the item at rank $r$ is among the user's $n$ held-out ones,

$$ \text{Recall@}k = \frac{\sum_{r \le k} \text{rel}_r}{\min(k, n)} \qquad
   \text{NDCG@}k = \frac{\sum_{r \le k} \text{rel}_r / \log_2(r + 1)}{\sum_{r \le \min(k, n)} 1 / \log_2(r + 1)} $$

Both are 1 for the best possible ranking. They are given per user, so that methods can be compared user by user. A user
without held-out items has NaN, and :func:`mean_over_users` leaves it out. Two more measures are the share of the catalogue that
is recommended to anyone, and the popularity of the recommended items. Everything stays on the scores' device without waiting
for it. So many users can be ranked in pieces: collect the values of each piece, and take the mean once.

Liang, Krishnan, Hoffman and Jebara, Variational Autoencoders for Collaborative Filtering, WWW 2018.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from lbdrop.errors import DropoutError

__all__ = [
    "MeanOverUsers",
    "coverage",
    "mean_over_users",
    "ndcg_at_k",
    "popularity_at_k",
    "popularity_percentile",
    "recall_at_k",
    "times_recommended",
    "top_items",
    "which_items",
]

NO_ITEM = -1
"""The entry of a ranking if the user has no further item."""

Pairs = tuple[Int[Tensor, "entries"], Int[Tensor, "entries"]]
Ranked = Int64[Tensor, "users ranks"]
PerUser = Float[Tensor, "users"]


class MeanOverUsers(NamedTuple):
    """A mean over users, its standard error (standard deviation / √users), and the number of users."""

    mean: Float[Tensor, ""]
    error: Float[Tensor, ""]
    users: Int64[Tensor, ""]


# ----------------------------------------------------------------------------------------------------------- rankings


def top_items(scores: Float[Tensor, "users items"], seen: Bool[Tensor, "users items"] | Pairs | None, k: int) -> Ranked:
    """The k best-scored items of each user, best first, without those the user has seen.

    Args:
        scores: larger is better. An item of −∞ or NaN is never recommended; equal scores have any order.
        seen: a bool for each user and item, or the indices (user, item) of each item seen, or None.
        k: length of the ranking; at most the catalogue is ranked. If a user has fewer unseen items, it ends in −1.

    >>> top_items(torch.tensor([[0.1, 0.4, 0.3]]), (torch.tensor([0]), torch.tensor([1])), k=3).tolist()
    [[2, 0, -1]]
    """
    if k < 1:
        raise DropoutError(f"k: want at least 1, got {k}")
    if isinstance(seen, tuple):
        seen = which_items(*seen, scores.shape)
    hidden = scores.isnan() if seen is None else scores.isnan() | seen
    best = scores.masked_fill(hidden, -torch.inf).topk(min(k, scores.shape[1]), dim=1)
    return torch.where(best.values == -torch.inf, NO_ITEM, best.indices)


def which_items(
    users: Int[Tensor, "entries"], items: Int[Tensor, "entries"], shape: tuple[int, ...]
) -> Bool[Tensor, "users items"]:
    """A bool for each user and item, true at these indices (user, item)."""
    flags = torch.zeros(shape[0] * shape[1], dtype=torch.bool, device=users.device)
    # Scatter, because an assignment through an index would copy the value to the device and wait.
    return flags.scatter_(0, users.long() * shape[1] + items.long(), True).view(shape[0], shape[1])


# ----------------------------------------------------------------------------------------------------- recall and NDCG


def recall_at_k(ranked: Ranked, relevant: Bool[Tensor, "users items"], k: int) -> PerUser:
    """Held-out items among the first k, divided by min(k, held-out), per user; NaN without held-out items.

    >>> ranked, relevant = torch.tensor([[2, 0, 1]]), torch.tensor([[True, False, True, True]])
    >>> recall_at_k(ranked, relevant, k=3).tolist()
    [0.6666666865348816]
    """
    hits, count = _hits(ranked, relevant, k)
    return hits.sum(1) / count.clamp(max=k)


def ndcg_at_k(ranked: Ranked, relevant: Bool[Tensor, "users items"], k: int) -> PerUser:
    """Held-out items among the first k, each counted as 1/log₂(rank + 1), divided by the largest possible sum, per user.

    The largest sum has min(k, held-out) items at the top; NaN without held-out items.

    >>> ranked, relevant = torch.tensor([[2, 0, 1]]), torch.tensor([[False, True, True, False]])
    >>> round(float(ndcg_at_k(ranked, relevant, k=3)), 4)  # (1 + 1/2) / (1 + 1/log₂ 3)
    0.9197
    """
    hits, count = _hits(ranked, relevant, k)
    ranks = torch.arange(1, min(k, relevant.shape[1]) + 1, device=ranked.device, dtype=torch.float64)
    gains = 1 / (ranks + 1).log2()
    best = torch.cat([gains.new_zeros(1), gains.cumsum(0)])  # of 0, 1, 2, … held-out items
    return ((hits @ gains[: hits.shape[1]].float()) / best[count.clamp(max=len(gains))]).to(hits.dtype)


def _hits(ranked: Tensor, relevant: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Which of the first k are held-out items, and how many held-out items present are."""
    if k < 1:
        raise DropoutError(f"k: want at least 1, got {k}")
    if ranked.shape[1] < min(k, relevant.shape[1]):
        raise DropoutError(f"ranked: want at least {k} items for each user, got {ranked.shape[1]}; rank more items")
    first = ranked[:, :k]
    hits = relevant.gather(1, first.clamp(min=0)) & (first != NO_ITEM)
    return hits.float(), relevant.sum(1)


def mean_over_users(values: PerUser) -> MeanOverUsers:
    """Mean and standard error of a per-user measure over the users without NaN, summed in double precision.

    >>> mean_over_users(torch.tensor([0.0, torch.nan, 1.0])).mean.item()
    0.5
    """
    present = ~values.isnan()
    users = present.sum()
    wide = values.double().nan_to_num(0.0)
    mean = wide.sum() / users
    spread = ((wide - mean).square() * present).sum() / (users - 1)
    return MeanOverUsers(mean, (spread / users).sqrt(), users)


# --------------------------------------------------------------------------------------------- coverage and popularity


def times_recommended(ranked: Ranked, items: int, k: int) -> Int64[Tensor, "items"]:
    """How many users have each item among their first k; sums over pieces of users may be added."""
    first = ranked[:, :k].reshape(-1)
    counts = torch.zeros(items + 1, dtype=torch.long, device=ranked.device)
    counts.scatter_add_(0, torch.where(first == NO_ITEM, items, first), torch.ones_like(first))
    return counts[:items]


def coverage(times: Int64[Tensor, "items"]) -> Float[Tensor, ""]:
    """The share of the catalogue that is recommended to at least one user, of :func:`times_recommended`."""
    return (times > 0).float().mean()


def popularity_percentile(likes: Int[Tensor, "items"] | Float[Tensor, "items"]) -> Float[Tensor, "items"]:
    """The share of the catalogue with fewer likes in training, items with as many counted half: from 0 to 1.

    >>> popularity_percentile(torch.tensor([10, 50, 10, 90])).tolist()
    [0.25, 0.625, 0.25, 0.875]
    """
    ordered = likes.sort().values
    fewer = torch.searchsorted(ordered, likes.contiguous())
    no_more = torch.searchsorted(ordered, likes.contiguous(), right=True)
    return (fewer + no_more) / (2 * len(likes))


def popularity_at_k(ranked: Ranked, percentile: Float[Tensor, "items"], k: int) -> PerUser:
    """The mean popularity percentile of the first k items, per user; random items have 1/2 on average."""
    first = ranked[:, :k]
    present = first != NO_ITEM
    return (percentile[first.clamp(min=0)] * present).sum(1) / present.sum(1)
