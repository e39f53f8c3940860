"""Learned dropout in closed form: gradients against autograd and differences, rates against a search to the fourth digit."""

import math
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.data.splits import HeldOut, split_users
from lbdrop.recommend.linear import ridge_rates
from lbdrop.recommend.linear.ridge_rates import RidgeScores, learn_ridge


@pytest.fixture(scope="module")
def problem() -> tuple[Tensor, HeldOut]:
    data = Interactions.from_frame(generate_shop(users=500, items=40, groups=4).interactions)
    split = split_users(data, 80)
    return torch.from_numpy((split.train.rows.T @ split.train.rows).toarray()).double(), split.validation


def held_out_loss(problem: tuple[Tensor, HeldOut]) -> ridge_rates._Problem:
    gram, held_out = problem
    return ridge_rates._Problem(gram, *ridge_rates._users(held_out, torch.arange(len(gram)), gram))


def test_gradient_of_scores_agrees_with_differences() -> None:
    x = (torch.rand(30, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) < 0.4).double()
    ridge = torch.linspace(0.5, 4, 7, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda r: RidgeScores.apply(r, x.T @ x, x[:5]), (ridge,))


def test_gradient_of_every_items_rate_agrees_with_autograd_through_the_inverse(problem: tuple[Tensor, HeldOut]) -> None:
    p = held_out_loss(problem)
    ridge = (0.4 * p.count + 30).requires_grad_()
    (found,) = torch.autograd.grad(p.loss(ridge), ridge)
    inverse = torch.linalg.inv(p.gram + torch.diag(ridge))
    scores = p.x - p.x @ inverse / inverse.diagonal()
    loss = p._cross_entropy(scores, torch.tensor(p.calibration))
    (expected,) = torch.autograd.grad(loss, ridge)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_learned_rate_is_that_of_a_search_to_the_fourth_digit(problem: tuple[Tensor, HeldOut]) -> None:
    p = held_out_loss(problem)

    def loss(log_odds: float) -> float:
        return float(p.loss(math.exp(log_odds) * p.count + 60.0))

    best = min((x / 4 for x in range(-12, 13)), key=loss)
    searched: Any = minimize_scalar(loss, bounds=(best - 0.3, best + 0.3), options={"xatol": 1e-7})
    learned = learn_ridge(*problem, None, 60.0, "model")
    assert learned.rate == pytest.approx(1 / (1 + math.exp(-searched.x)), abs=1e-4)
    assert learned.loss == pytest.approx(searched.fun, abs=1e-6)


def test_both_numbers_learned_are_no_worse_than_any_of_a_grid(problem: tuple[Tensor, HeldOut]) -> None:
    p, learned = held_out_loss(problem), learn_ridge(*problem, None, None, "model")
    losses = [
        float(p.loss(rate / (1 - rate) * p.count + ridge)) for rate in (0.2, 0.5, 0.8) for ridge in (10.0, 50.0, 250.0)
    ]
    assert learned.loss <= min(losses) + 1e-6
    assert learned.inverses < 40


def test_rates_by_popularity_and_item_fit_at_least_as_well(problem: tuple[Tensor, HeldOut]) -> None:
    one, by_popularity, own = (learn_ridge(*problem, None, None, per) for per in ("model", "popularity", "item"))
    assert own.loss < by_popularity.loss <= one.loss + 1e-6
    count = problem[0].diagonal()
    assert one.odds(count).unique().numel() == 1
    assert own.odds(count).unique().numel() > 10


def test_rates_of_a_large_catalogue_are_learned_on_its_most_popular_items(
    problem: tuple[Tensor, HeldOut], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ridge_rates, "MAX_ITEMS", 25)
    learned = learn_ridge(*problem, None, None, "item")
    rare = torch.argsort(-problem[0].diagonal(), stable=True)[25:]
    own = learned.own
    assert own is not None
    assert len(own) == 40
    assert own[rare].eq(0).all()
