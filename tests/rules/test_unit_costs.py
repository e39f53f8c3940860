"""Balanced rates of single units: where a unit's price has a closed form its odds follow, and the layer costs what it should."""

import copy
from typing import Any

import pytest
import torch
from helpers.least_squares_with_dropout import over_fitted, squares
from helpers.small_classifier import cross_entropies
from torch import Tensor, nn

import lbdrop
from lbdrop import Balanced, Objective, parameter_groups
from lbdrop.rules.balanced import CONSTANTS as C
from lbdrop.rules.unit_costs import COST_POWER, MIN_SHARE, UnitCosts, unit_costs

# ------------------------------------------------------------------------------------------------ known right answers


class Seen:
    """A rule that asks for prices, and keeps them."""

    def __init__(self, logits: list[Tensor]):
        self.logits = logits
        self.plain, self.prices = torch.zeros(0), [torch.zeros(0)]

    def loss(self, evaluation: Any) -> Tensor:
        self.plain, self.prices = unit_costs(evaluation, self.logits)
        return self.plain.mean()


def prices_of(model: nn.Module, losses: Any, *batch: Tensor) -> tuple[Tensor, list[Tensor]]:
    rule = Seen([each.logit for each in lbdrop.dropout.learned_layers(model).values()])
    Objective(model, rule)(losses, *batch)
    return rule.plain, rule.prices


@pytest.mark.parametrize("scale", ["inverted", "none"])
def test_the_price_of_an_input_is_half_its_mean_squared_slope(scale: Any) -> None:
    torch.manual_seed(0)
    x, y, weight = torch.randn(50, 4).double(), torch.randn(50).double(), torch.tensor([[3.0, 1.0, 0.1, 0.0]]).double()
    drop = lbdrop.LearnableDropout(4, rate=0.3, scale=scale)
    drop.logit.data += torch.linspace(-1, 1, 4)
    model = nn.Sequential(drop, nn.Linear(4, 1, bias=False)).double()
    model[1].weight.data = weight / (1 if scale == "inverted" else drop.keep.detach().double())
    plain, (prices,) = prices_of(model, squares, x, y)
    off = x @ weight[0] - y
    torch.testing.assert_close(plain, (off**2).float())
    torch.testing.assert_close(prices, 0.5 * (2 * off[:, None] * weight * x).square().mean(0), rtol=1e-5, atol=1e-8)


def test_where_noise_is_small_all_units_together_cost_what_their_prices_say() -> None:
    """Cross-entropy at its own probabilities is bent as the squares of its slopes are."""
    torch.manual_seed(0)
    x, weight = torch.randn(20_000, 3).double(), 0.3 * torch.randn(4, 3).double()
    y = torch.distributions.Categorical(logits=x @ weight.T).sample()
    drop = lbdrop.LearnableDropout(3, rate=0.01)
    model = nn.Sequential(drop, nn.Linear(3, 4, bias=False)).double()
    model[1].weight.data = weight
    plain, (prices,) = prices_of(model, cross_entropies, x, y)
    with torch.no_grad():
        noisy = sum(cross_entropies(model.train(), x, y).mean() for _ in range(40)) / 40
    assert float(noisy - plain.mean()) == pytest.approx(float(prices.sum() * 0.01 / 0.99), rel=0.1)


def test_channels_tokens_and_shared_rates_add_up_what_their_masks_cost() -> None:
    torch.manual_seed(0)
    maps = nn.Sequential(
        lbdrop.LearnableDropout(2, rate=0.3, channels=True), nn.Flatten(), nn.Linear(2 * 9, 1)
    ).double()
    x, y = torch.randn(5, 2, 3, 3).double(), torch.randn(5).double()
    _, (found,) = prices_of(maps, squares, x, y)
    slope = 2 * (maps[1:](x)[:, 0] - y).detach()
    each = (slope[:, None] * maps[2].weight * x.flatten(1)).view(5, 2, 9).sum(2)  # one mask for a whole map
    torch.testing.assert_close(found, 0.5 * each.square().mean(0).detach(), rtol=1e-5, atol=1e-8)

    first = lbdrop.LearnableDropout(2, rate=0.3)
    tokens = nn.Sequential(
        first, lbdrop.LearnableDropout(2, rate=0.3, logit=first.logit), nn.Flatten(), nn.Linear(6, 1)
    )
    x = torch.randn(5, 3, 2).double()
    model = tokens.double()
    _, found, *_ = prices_of(model, squares, x, y)
    slope = 2 * (model[2:](x)[:, 0] - y).detach()
    each = (slope[:, None] * model[3].weight * x.flatten(1)).view(5, 3, 2)  # a mask for every token, in two layers
    torch.testing.assert_close(found[0], 2 * 0.5 * each.square().sum(1).mean(0).detach(), rtol=1e-5, atol=1e-8)


def per_unit(weights: Tensor) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A regression with these weights, whose training examples are fitted better than the held-out ones."""
    generator = torch.Generator().manual_seed(0)

    def some(count: int, noise: float) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, len(weights), generator=generator, dtype=torch.float64)
        return x, x @ weights + noise * torch.randn(count, generator=generator, dtype=torch.float64)

    model = nn.Sequential(lbdrop.LearnableDropout(len(weights), rate=0.3), nn.Linear(len(weights), 1, bias=False))
    model[1].weight.data = weights[None].clone()
    return model.double(), some(2000, 1.0), some(2000, 3.0)


def test_units_have_odds_by_their_prices_and_cost_the_share_together() -> None:
    weights = torch.tensor([2.0, 1.0, 1.0, 0.5, 0.5]).double()
    model, train, held_out = per_unit(weights)
    rule = Balanced(model, [held_out], steps=1000, every=1)
    objective = Objective(model, rule)
    torch.manual_seed(0)
    for _ in range(rule.frozen_after):
        objective(squares, *train)
    rates = model[0].rate.double()
    odds, costs = rates / (1 - rates), (train[0] * weights).square().mean(0)
    gap = float((squares(model[1], *held_out).mean() - squares(model[1], *train).mean()).detach())
    assert float(odds @ costs) == pytest.approx(C.cost_share * gap, rel=0.1)
    torch.testing.assert_close(odds / odds[0], (costs / costs[0]) ** -COST_POWER, rtol=0.15, atol=0)
    assert rates.max() < C.max_rate


def test_in_the_first_steps_units_move_together() -> None:
    model, train, held_out = per_unit(torch.tensor([2.0, 1.0, 1.0, 0.5, 0.5]).double())
    rule = Balanced(model, [held_out], steps=1000, every=1)
    objective, ratios = Objective(model, rule), []
    torch.manual_seed(0)
    for _ in range(100):
        objective(squares, *train)
        ratios.append(float(model[0].rate.max() / model[0].rate.min()))
    early = round(C.warm_up * rule.frozen_after)
    assert ratios[: early - 1] == [1.0] * (early - 1)
    assert model[0].p > 2 * C.start  # though they moved
    assert min(ratios[early:]) > 1.5


def test_a_unit_that_nothing_depends_on_has_more_noise_but_not_without_end() -> None:
    prices = UnitCosts(torch.zeros(4))
    prices.add(torch.tensor([0.0, 1e-9, 1.0, 3.0]).double(), 0.9)
    shares = prices.shares()
    assert shares[0] == shares[1] == pytest.approx(float(shares[2]) * MIN_SHARE**-COST_POWER)
    assert float(shares @ prices.sums) == pytest.approx(4.0)
    nothing = UnitCosts(torch.zeros(2))
    assert nothing.shares().tolist() == [1.0, 1.0]


# -------------------------------------------------------------------------------------------------------------- a run


def small_per_unit() -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    return lbdrop.convert(model, per="unit", example=x[:2], verbose=False), x, y


def trained(objective: Objective, optimizer: Any, batches: list[Any], epochs: range) -> None:
    for epoch in epochs:
        torch.manual_seed(epoch)
        objective.rule.restart()
        for x, y in batches * 4:
            optimizer.zero_grad()
            objective(cross_entropies, x, 2 - y).backward()
            optimizer.step()


@pytest.mark.parametrize("stopped", [1, 3, 7])
def test_a_run_with_rates_per_unit_taken_up_again_ends_where_it_would_have(stopped: int) -> None:
    torch.manual_seed(0)
    first, x, y = small_per_unit()
    batches = [(x[:10], 2 - y[:10]), (x[10:], 2 - y[10:])]

    def made(model: nn.Module) -> tuple[Objective, Any]:
        objective = Objective(model, held_out=batches, steps=80, examples=20)
        return objective, torch.optim.Adam(parameter_groups(model, lr=3e-2))

    second = copy.deepcopy(first)
    whole = made(first)
    trained(*whole, batches, range(10))
    assert first[0].rate.max() > 1.05 * first[0].rate.min()
    objective, optimizer = made(second)
    trained(objective, optimizer, batches, range(stopped))
    third, _, _ = small_per_unit()
    again, other = made(third)
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    other.load_state_dict(optimizer.state_dict())
    again.load_state_dict(copy.deepcopy(objective.state_dict()))
    trained(again, other, batches, range(stopped, 10))
    for name, value in first.state_dict().items():
        torch.testing.assert_close(third.state_dict()[name], value, rtol=0, atol=0)


def test_where_rates_are_per_layer_no_unit_is_unit_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a backward pass that nobody needs")

    monkeypatch.setattr("lbdrop.rules.balanced.unit_costs", never)
    model, train, held_out, _ = over_fitted(C.cost_share)
    objective = Objective(model, Balanced(model, [held_out], steps=100, every=1))
    for _ in range(20):
        objective(squares, *train)
    assert model[0].p > 1.5 * C.start


def test_a_look_leaves_no_gradient_on_weights_or_rates() -> None:
    torch.manual_seed(0)
    model, x, y = small_per_unit()
    rule = Balanced(model, [(x, y)], steps=100, every=1)
    objective = Objective(model, rule)
    for _ in range(8):
        objective(cross_entropies, x, y)
    assert rule.unit_costs[0] is not None
    assert (rule.unit_costs[0].sums > 0).all()
    assert all(p.grad is None for p in model.parameters())


def test_a_layer_whose_rate_has_come_to_nothing_is_off_whatever_its_cheapest_unit_has() -> None:
    torch.manual_seed(0)
    model, x, y = small_per_unit()
    rule = Balanced(model, [(x, y)], steps=100)
    rule.unit_costs[0].level.fill_(lbdrop.dropout.logit_of(0.015))
    model[0].logit.data[0] = lbdrop.dropout.logit_of(0.1)
    rule.step = 40
    Objective(model, rule)(cross_entropies, x, y)
    assert rule.phase == "frozen"
    assert (model[0].keep == 1.0).all()
    assert model[3].p == pytest.approx(C.start)


def test_unit_costs_follow_their_logit_to_another_device() -> None:
    costs = UnitCosts(torch.zeros(3)).on(torch.device("meta"))
    assert costs.level.device.type == costs.sums.device.type == "meta"


def test_a_batch_that_goes_around_all_units_with_rates_has_no_price() -> None:
    model, x, y = small_per_unit()
    rule = Seen([each.logit for each in lbdrop.dropout.learned_layers(model).values()])

    def around(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return x.sum(1).square()

    with pytest.warns(UserWarning, match="never reached"):
        Objective(model, rule, unreached="warn")(around, x, y)
    assert len(rule.plain) == len(x)
    assert not any(prices.any() for prices in rule.prices)
