"""Balanced noise of single units: their odds follow from unit costs, which have a closed form, and the layer costs its share."""

from typing import Any

import pytest
import torch
from helpers.least_squares_with_dropout import Pair, over_fitted, squares
from helpers.small_classifier import cross_entropies, small_classifier
from torch import Tensor, nn

import lbdrop
from lbdrop import Balanced, Objective
from lbdrop.dropout import learned_layers, logit_of
from lbdrop.rules.balanced import CONSTANTS as C
from lbdrop.rules.unit_costs import COST_POWER, MIN_SHARE, UnitCosts, unit_costs

# ------------------------------------------------------------------------------------------- unit costs in closed form


class UnitCostRule:
    """A rule that measures unit costs, and keeps them."""

    def __init__(self, logits: list[Tensor]):
        self.logits = logits
        self.plain, self.costs = torch.zeros(0), [torch.zeros(0)]

    def loss(self, evaluation: Any) -> Tensor:
        self.plain, self.costs = unit_costs(evaluation, self.logits)
        return self.plain.mean()


def costs_of(model: nn.Module, losses: Any, *batch: Tensor) -> tuple[Tensor, list[Tensor]]:
    rule = UnitCostRule([each.logit for each in learned_layers(model).values()])
    Objective(model, rule)(losses, *batch)
    return rule.plain, rule.costs


@pytest.mark.parametrize("scale", ["inverted", "none"])
def test_cost_of_an_input_is_half_its_mean_squared_slope(scale: Any) -> None:
    torch.manual_seed(0)
    x, y, weight = torch.randn(50, 4).double(), torch.randn(50).double(), torch.tensor([[3.0, 1.0, 0.1, 0.0]]).double()
    drop = lbdrop.LearnableDropout(4, rate=0.3, scale=scale)
    drop.logit.data += torch.linspace(-1, 1, 4)
    model = nn.Sequential(drop, nn.Linear(4, 1, bias=False)).double()
    model[1].weight.data = weight / (1 if scale == "inverted" else drop.keep.detach().double())
    plain, (costs,) = costs_of(model, squares, x, y)
    off = x @ weight[0] - y
    torch.testing.assert_close(plain, (off**2).float())
    torch.testing.assert_close(costs, 0.5 * (2 * off[:, None] * weight * x).square().mean(0), rtol=1e-5, atol=1e-8)


def test_little_noise_of_all_units_costs_the_sum_of_their_costs() -> None:
    """Cross-entropy at its own probabilities is bent as the squares of its slopes are."""
    torch.manual_seed(0)
    x, weight = torch.randn(20_000, 3).double(), 0.3 * torch.randn(4, 3).double()
    y = torch.distributions.Categorical(logits=x @ weight.T).sample()
    drop = lbdrop.LearnableDropout(3, rate=0.01)
    model = nn.Sequential(drop, nn.Linear(3, 4, bias=False)).double()
    model[1].weight.data = weight
    plain, (costs,) = costs_of(model, cross_entropies, x, y)
    with torch.no_grad():
        noisy = sum(cross_entropies(model.train(), x, y).mean() for _ in range(40)) / 40
    assert float(noisy - plain.mean()) == pytest.approx(float(costs.sum() * 0.01 / 0.99), rel=0.1)


def test_cost_of_a_rate_is_the_sum_over_its_masks_of_channels_tokens_and_layers() -> None:
    torch.manual_seed(0)
    maps = nn.Sequential(
        lbdrop.LearnableDropout(2, rate=0.3, channels=True), nn.Flatten(), nn.Linear(2 * 9, 1)
    ).double()
    x, y = torch.randn(5, 2, 3, 3).double(), torch.randn(5).double()
    _, (found,) = costs_of(maps, squares, x, y)
    slope = 2 * (maps[1:](x)[:, 0] - y).detach()
    each = (slope[:, None] * maps[2].weight * x.flatten(1)).view(5, 2, 9).sum(2)  # one mask for a whole map
    torch.testing.assert_close(found, 0.5 * each.square().mean(0).detach(), rtol=1e-5, atol=1e-8)

    first = lbdrop.LearnableDropout(2, rate=0.3)
    tokens = nn.Sequential(first, lbdrop.LearnableDropout(2, logit=first.logit), nn.Flatten(), nn.Linear(6, 1))
    x = torch.randn(5, 3, 2).double()
    model = tokens.double()
    _, found, *_ = costs_of(model, squares, x, y)
    slope = 2 * (model[2:](x)[:, 0] - y).detach()
    each = (slope[:, None] * model[3].weight * x.flatten(1)).view(5, 3, 2)  # a mask for every token, in two layers
    torch.testing.assert_close(found[0], 2 * 0.5 * each.square().sum(1).mean(0).detach(), rtol=1e-5, atol=1e-8)


def per_unit(weights: Tensor) -> tuple[nn.Module, Pair, Pair]:
    """A regression with these weights, whose training examples are fitted better than the held-out ones."""
    generator = torch.Generator().manual_seed(0)

    def some(count: int, noise: float) -> Pair:
        x = torch.randn(count, len(weights), generator=generator, dtype=torch.float64)
        return x, x @ weights + noise * torch.randn(count, generator=generator, dtype=torch.float64)

    model = nn.Sequential(lbdrop.LearnableDropout(len(weights), rate=0.3), nn.Linear(len(weights), 1, bias=False))
    model[1].weight.data = weights[None].clone()
    return model.double(), some(2000, 1.0), some(2000, 3.0)


def test_units_have_odds_by_their_costs_and_cost_the_share_together() -> None:
    weights = torch.tensor([2.0, 1.0, 1.0, 0.5, 0.5]).double()
    model, train, held_out = per_unit(weights)
    rule = Balanced(model, [held_out], steps=500, every=1)
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


def test_units_move_together_in_warm_up() -> None:
    model, train, held_out = per_unit(torch.tensor([2.0, 1.0, 1.0, 0.5, 0.5]).double())
    rule = Balanced(model, [held_out], steps=500, every=1)
    objective, ratios = Objective(model, rule), []
    torch.manual_seed(0)
    for _ in range(50):
        objective(squares, *train)
        ratios.append(float(model[0].rate.max() / model[0].rate.min()))
    early = round(C.warm_up * rule.frozen_after)
    assert ratios[: early - 1] == [1.0] * (early - 1)
    assert model[0].p > 2 * C.start  # though they moved
    assert min(ratios[early:]) > 1.5


def test_unit_that_nothing_depends_on_has_more_noise_within_a_bound() -> None:
    costs = UnitCosts(torch.zeros(4))
    costs.add(torch.tensor([0.0, 1e-9, 1.0, 3.0]).double(), 0.9)
    shares = costs.shares()
    assert shares[0] == shares[1] == pytest.approx(float(shares[2]) * MIN_SHARE**-COST_POWER)
    assert float(shares @ costs.sums) == pytest.approx(4.0)
    nothing = UnitCosts(torch.zeros(2))
    assert nothing.shares().tolist() == [1.0, 1.0]


# -------------------------------------------------------------------------------------------------------------- a run


def passes_with_gradients(model: nn.Module, train: Pair, held_out: Pair, steps: int = 20) -> int:
    """How many passes of all measurements are followed by a backward pass."""
    found: list[bool] = []

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found.append(torch.is_grad_enabled() and not model.training)
        return squares(model, x, y)

    objective = Objective(model, Balanced(model, [held_out], steps=100, every=1))
    for _ in range(steps):
        objective(losses, *train)
    return sum(found)


def test_measurement_takes_a_backward_pass_only_where_units_have_rates_of_their_own() -> None:
    model, train, held_out, _ = over_fitted(C.cost_share)
    assert passes_with_gradients(model, train, held_out) == 0
    assert model[0].p > 1.5 * C.start
    assert passes_with_gradients(*per_unit(torch.ones(3).double())) == 20


def test_measurement_leaves_no_gradient_on_weights_or_rates() -> None:
    model, x, y = small_classifier(per="unit")
    objective = Objective(model, Balanced(model, [(x, y)], steps=100, every=1))
    for _ in range(8):
        objective(cross_entropies, x, y)
    assert (objective.state_dict()["state"]["unit_costs"][0]["sums"] > 0).all()
    assert all(p.grad is None for p in model.parameters())


def test_layer_below_the_smallest_rate_is_off_whatever_the_rate_of_its_cheapest_unit() -> None:
    model, x, y = small_classifier(per="unit")
    objective = Objective(model, Balanced(model, [(x, y)], steps=100))
    state = objective.state_dict()
    state["state"] |= {"step": objective.rule.frozen_after, "gate": {"aside": None}}
    state["state"]["unit_costs"][0]["level"].fill_(logit_of(0.015))
    state["state"]["logits"][0][0] = logit_of(0.1)
    objective.load_state_dict(state)
    assert model[0].rate.max() == pytest.approx(0.1)
    objective(cross_entropies, x, y)
    assert objective.rule.phase == "frozen"
    assert (model[0].keep == 1.0).all()
    assert model[3].p == pytest.approx(C.start)


def test_unit_costs_follow_their_logit_to_another_device() -> None:
    costs = UnitCosts(torch.zeros(3)).on(torch.device("meta"))
    assert costs.level.device.type == costs.sums.device.type == "meta"


def test_batch_that_goes_around_all_dropouts_has_no_unit_costs() -> None:
    model, x, y = small_classifier(per="unit")
    rule = UnitCostRule([each.logit for each in learned_layers(model).values()])

    def around(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return x.sum(1).square()

    with pytest.warns(UserWarning, match="never reached"):
        Objective(model, rule, unreached="warn")(around, x, y)
    assert len(rule.plain) == len(x)
    assert not any(costs.any() for costs in rule.costs)
