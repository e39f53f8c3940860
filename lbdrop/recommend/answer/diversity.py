r"""The best items that are not all alike: maximal marginal relevance, one item after the other.

$$ \operatorname*{argmax}_{i \notin L}\; (1 - d)\, r_{ui} - d\, \max_{j \in L} s_{ij} $$

$L$ is the list so far, $r$ the user's score from 0 (the worst candidate) to 1 (the best), $s$ the similarity of two items
and $d$ the diversity. Candidates are the best ``10 k`` items.

Carbonell and Goldstein, The Use of MMR, Diversity-Based Reranking, SIGIR 1998.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from lbdrop.metrics.ranking import NO_ITEM, top_items
from lbdrop.recommend.linear.methods import Linear
from lbdrop.recommend.model.product import Product
from lbdrop.recommend.model.vae import VAE

__all__ = ["diverse_items", "pairwise"]

CANDIDATES = 10
"""Candidates for each place of the list."""
MAX_SIMILARITIES = 2**24
"""Of candidates with all items, in memory at once."""


def diverse_items(
    model: VAE | Linear | Product,
    scores: Float[Tensor, "users items"],
    seen: Bool[Tensor, "users items"] | None,
    k: int,
    diversity: float,
    fitted: int,
) -> Int64[Tensor, "users ranks"]:
    """As :func:`~lbdrop.metrics.ranking.top_items`, but items like those before them come later, or not at all."""
    candidates = top_items(scores, seen, CANDIDATES * k)
    at_once = max(1, MAX_SIMILARITIES // (candidates.shape[1] * scores.shape[1]))
    chosen = [
        _rerank(model, some, scores[start : start + at_once], diversity, fitted, min(k, some.shape[1]))
        for start in range(0, len(candidates), at_once)
        for some in (candidates[start : start + at_once],)
    ]
    return torch.cat(chosen) if chosen else candidates[:, :k]


def _rerank(
    model: VAE | Linear | Product,
    candidates: Int64[Tensor, "n c"],
    scores: Float[Tensor, "n items"],
    diversity: float,
    fitted: int,
    k: int,
) -> Int64[Tensor, "n k"]:
    absent, place = candidates == NO_ITEM, candidates.clamp(min=0)
    score = scores.gather(1, place)
    lowest = score.masked_fill(absent, torch.inf).amin(1, keepdim=True)
    relevance = (score - lowest) / (score[:, :1] - lowest).clamp(min=torch.finfo(score.dtype).tiny)
    alike = pairwise(model, place, fitted)
    nearest, used, picked = torch.zeros_like(relevance), absent.clone(), []
    for _ in range(k):
        value = (1 - diversity) * relevance - diversity * nearest
        best = value.masked_fill(used, -torch.inf).argmax(1, keepdim=True)
        # Once a user has no candidate left, argmax says any.
        picked.append(candidates.gather(1, best).masked_fill(used.gather(1, best), NO_ITEM))
        used = used.scatter(1, best, True)
        nearest = nearest.maximum(alike.gather(1, best[:, :, None].expand(-1, -1, alike.shape[2]))[:, 0])
    return torch.cat(picked, 1)


def pairwise(model: VAE | Linear | Product, items: Int64[Tensor, "n c"], fitted: int) -> Float[Tensor, "n c c"]:
    """The similarity of each pair of c items, n times, from 0 to 1, which is that of a typical item to the one most like it.

    From ``fitted`` on, items are new, and like no others.
    """
    known = items < fitted
    place = items.clamp(max=fitted - 1)
    each = model.similarity(place.flatten()).float().view(*items.shape, -1)
    pairs = each.gather(2, place[:, None, :].expand(-1, items.shape[1], -1))
    typical = each.amax(2).median(1).values.clamp(min=1e-12)[:, None, None]
    return ((pairs + pairs.mT) / 2 / typical).clamp(0, 1) * (known[:, None] & known[:, :, None])
