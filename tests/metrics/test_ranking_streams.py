"""In batches or at once, in one process or two: the same recall, NDCG, errors, coverage and popularity."""

import pytest
import torch

from lbdrop.errors import DropoutError
from lbdrop.metrics import ranking
from lbdrop.metrics.ranking_streams import Ranking


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    kind = torch.rand(50, 80, generator=g)
    kind[::10] = 0.9  # users with nothing held out
    return (
        torch.randn(50, 80, generator=g),
        kind < 0.2,
        (kind > 0.2) & (kind < 0.3),
        torch.randint(100, (80,), generator=g),
    )


def expected() -> dict[str, float]:
    scores, seen, held, likes = drawn()
    ranked = ranking.top_items(scores, seen, 30)
    recall, ndcg = (
        ranking.mean_over_users(ranking.recall_at_k(ranked, held, 5)),
        ranking.mean_over_users(ranking.ndcg_at_k(ranked, held, 30)),
    )
    popularity = ranking.popularity_at_k(ranked, ranking.popularity_percentile(likes), 3).mean()
    return {
        "recall@5": float(recall.mean), "recall@5_error": float(recall.error), "ndcg@30": float(ndcg.mean), "ndcg@30_error": float(ndcg.error),
        "coverage@3": float(ranking.coverage(ranking.times_recommended(ranked, 80, 3))), "popularity@3": float(popularity),
    }  # fmt: skip


def stream(*parts: slice) -> Ranking:
    scores, seen, held, likes = drawn()
    metric = Ranking(likes, recall=[5], ndcg=[30], shown=3)
    for part in parts:
        metric.update(scores[part], seen[part], held[part])
    return metric


def test_batches_give_the_measures_of_all_users_at_once() -> None:
    found = stream(slice(0, 13), slice(13, 14), slice(14, 50)).compute()
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected(), rel=1e-5)


def test_processes_add_up() -> None:
    one, two = stream(slice(0, 20)), stream(slice(20, 50))
    for name, how in one._reductions.items():
        setattr(one, name, how(torch.stack([getattr(one, name), getattr(two, name)])))  # as torchmetrics does on sync
    assert {name: float(value) for name, value in one.compute().items()} == pytest.approx(expected(), rel=1e-5)


def test_reset_clears_all_sums() -> None:
    metric = stream(slice(0, 20))
    metric.reset()
    scores, seen, held, _ = drawn()
    metric.update(scores, seen, held)
    assert {name: float(value) for name, value in metric.compute().items()} == pytest.approx(expected(), rel=1e-5)


def test_stream_without_k_is_an_error() -> None:
    for recall, ndcg in (([], []), ([0], [5])):
        with pytest.raises(DropoutError, match="k: want at least one"):
            Ranking(torch.ones(3), recall=recall, ndcg=ndcg)
