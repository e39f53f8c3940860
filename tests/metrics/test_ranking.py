"""Recall and NDCG against a plain loop over users, a case computed by hand, and edge cases."""

import math

import pytest
import torch
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.metrics import ranking

SHAPES = [(7, 30, 5), (4, 12, 12), (5, 9, 20), (3, 1, 1), (6, 40, 1)]


def slow(scores: list[float], seen: set[int], held: set[int], k: int) -> tuple[float, float]:
    """One user, by sorting in Python."""
    order = sorted((i for i in range(len(scores)) if i not in seen), key=lambda i: -scores[i])[:k]
    if not held:
        return math.nan, math.nan
    gain = sum(1 / math.log2(rank + 2) for rank, item in enumerate(order) if item in held)
    best = sum(1 / math.log2(rank + 2) for rank in range(min(k, len(held))))
    return sum(item in held for item in order) / min(k, len(held)), gain / best


def drawn(users: int, items: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    scores = torch.rand(users, items, generator=g, dtype=torch.float64).argsort(1).double()  # a permutation: no ties
    kind = torch.rand(users, items, generator=g)
    kind[0] = 0.9  # a user with nothing seen and nothing held out
    return scores, kind < 0.3, (kind >= 0.3) & (kind < 0.6)


@pytest.mark.parametrize(("users", "items", "k"), SHAPES)
@pytest.mark.parametrize("pairs", [False, True])
def test_measures_of_every_user_agree_with_a_plain_loop(users: int, items: int, k: int, pairs: bool) -> None:
    scores, seen, held = drawn(users, items, seed=users)
    given = (seen.nonzero()[:, 0], seen.nonzero()[:, 1]) if pairs else seen
    ranked = ranking.top_items(scores, given, k)
    assert ranked.shape == (users, min(k, items))
    found = zip(ranking.recall_at_k(ranked, held, k).tolist(), ranking.ndcg_at_k(ranked, held, k).tolist(), strict=True)
    for user, both in enumerate(found):
        sets = (set(part[user].nonzero().flatten().tolist()) for part in (seen, held))
        assert both == pytest.approx(slow(scores[user].tolist(), *sets, k), nan_ok=True, abs=1e-6)


def test_ranking_of_100_gives_the_measures_of_every_smaller_k() -> None:
    scores, seen, held = drawn(20, 300, seed=1)
    ranked = ranking.top_items(scores, seen, 100)
    for k in (1, 20, 50):
        short = ranking.top_items(scores, seen, k)
        assert torch.equal(ranked[:, :k], short)
        for measure in (ranking.recall_at_k, ranking.ndcg_at_k):
            assert torch.equal(measure(ranked, held, k).nan_to_num(-1), measure(short, held, k).nan_to_num(-1))


def test_measures_of_a_case_computed_by_hand() -> None:
    # Ranked after removing item 3: 0, 4, 1, 2. Held out: 4 and 2, so hits at ranks 2 and 4.
    scores, held = torch.tensor([[0.9, 0.5, 0.1, 1.0, 0.7]]), torch.tensor([[False, False, True, False, True]])
    ranked = ranking.top_items(scores, (torch.tensor([0]), torch.tensor([3])), 4)
    assert ranked.tolist() == [[0, 4, 1, 2]]
    assert ranking.recall_at_k(ranked, held, 1).tolist() == [0.0]
    assert ranking.recall_at_k(ranked, held, 2).tolist() == [0.5]
    assert ranking.recall_at_k(ranked, held, 4).tolist() == [1.0]
    ideal = 1 + 1 / math.log2(3)
    assert ranking.ndcg_at_k(ranked, held, 2).item() == pytest.approx((1 / math.log2(3)) / ideal)
    assert ranking.ndcg_at_k(ranked, held, 4).item() == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal)


def test_best_ranking_has_one_and_the_worst_zero() -> None:
    _, seen, held = drawn(10, 50, seed=2)
    best, worst = ranking.top_items(held.float(), seen, 5), ranking.top_items(-held.float(), seen, 5)
    for measure in (ranking.recall_at_k, ranking.ndcg_at_k):
        assert torch.allclose(measure(best, held, 5)[1:], torch.ones(9))
        assert torch.equal(measure(worst, held, 5)[1:], torch.zeros(9))


def test_ranking_ends_with_no_item_if_the_user_has_seen_everything() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, -torch.inf, 1.0], [torch.nan, 2.0, 3.0]])
    seen = torch.tensor([[False, True, True], [False, False, False], [False, False, False]])
    ranked = ranking.top_items(scores, seen, 10)
    assert ranked.tolist() == [[0, -1, -1], [0, 2, -1], [2, 1, -1]]
    everything = torch.ones(3, 3, dtype=torch.bool)
    assert ranking.recall_at_k(ranked, everything, 3).tolist() == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert ranking.times_recommended(ranked, 3, 3).tolist() == [2, 1, 2]


def test_scores_are_not_changed() -> None:
    scores, seen, _ = drawn(3, 8, seed=0)
    before = scores.clone()
    ranking.top_items(scores, seen, 3)
    assert torch.equal(scores, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_scores_are_ranked(dtype: torch.dtype) -> None:
    scores = torch.tensor([[0.0, 2.0, 1.0]], dtype=dtype)
    assert ranking.top_items(scores, None, 2).tolist() == [[1, 2]]


def test_mean_and_standard_error_leave_out_users_without_held_out_items() -> None:
    values = torch.tensor([0.2, torch.nan, 0.4, 0.9, torch.nan])
    mean, error, users = ranking.mean_over_users(values)
    there = torch.tensor([0.2, 0.4, 0.9]).double()
    assert users.item() == 3
    assert mean.item() == pytest.approx(0.5)
    assert error.item() == pytest.approx(float(there.std() / 3**0.5))
    nobody = ranking.mean_over_users(torch.full((2,), torch.nan))
    assert (nobody.mean.isnan().item(), nobody.users.item()) == (True, 0)
    assert ranking.mean_over_users(torch.tensor([0.3])).error.isnan()


def test_coverage_adds_up_over_pieces() -> None:
    scores, seen, _ = drawn(40, 60, seed=4)
    ranked = ranking.top_items(scores, seen, 2)
    whole = ranking.times_recommended(ranked, 60, 2)
    pieces = [ranking.times_recommended(ranked[part], 60, 2) for part in (slice(0, 7), slice(7, 40))]
    assert torch.equal(whole, pieces[0] + pieces[1])
    assert whole.sum().item() == 80
    assert ranking.coverage(whole).item() == pytest.approx(len(set(ranked.flatten().tolist())) / 60)
    assert ranking.times_recommended(ranked, 60, 1).sum().item() == 40


def test_popularity_is_the_mean_percentile_of_the_recommended_items() -> None:
    likes = torch.tensor([5, 0, 5, 100])
    percentile = ranking.popularity_percentile(likes)
    slow_percentile = [sum((o < own) + 0.5 * (o == own) for o in likes.tolist()) / 4 for own in likes.tolist()]
    assert percentile.tolist() == slow_percentile
    assert percentile.mean().item() == 0.5
    shown = ranking.popularity_at_k(torch.tensor([[3, 1], [0, -1], [-1, -1]]), percentile, 2)
    assert shown[:2].tolist() == [(0.875 + 0.125) / 2, 0.5]
    assert shown[2].isnan()
    assert ranking.popularity_at_k(torch.tensor([[3, 1]]), percentile, 1).tolist() == [0.875]


def test_ranking_too_short_for_k_is_an_error() -> None:
    scores, seen, held = drawn(3, 30, seed=0)
    ranked = ranking.top_items(scores, seen, 5)
    with pytest.raises(DropoutError, match="ranked: want at least 6 items for each user, got 5"):
        ranking.recall_at_k(ranked, held, 6)
    for call in (lambda: ranking.top_items(scores, seen, 0), lambda: ranking.ndcg_at_k(ranked, held, 0)):
        with pytest.raises(DropoutError, match="k: want at least 1, got 0"):
            call()
