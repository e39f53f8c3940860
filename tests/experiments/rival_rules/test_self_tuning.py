"""Self-tuning finds the best rate where it is known, from any start; and nothing but the held-out loss moves a rate."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.learned_responses import stir_responses
from helpers.small_classifier import cross_entropies, small_classifier
from torch import Tensor, nn

import lbdrop
from experiments.rival_rules.responding import RespondingDropout
from experiments.rival_rules.self_tuning import SelfTuning, parameter_groups
from lbdrop import Objective
from lbdrop.dropout import Scale
from lbdrop.masks import deterministic

# ------------------------------------------------------------------------------------------------- a known right answer


Pair = tuple[Tensor, Tensor]


def squares(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, 0] - y) ** 2


def regression(noise: float = 3.0) -> tuple[Pair, Pair]:
    g = torch.Generator().manual_seed(0)
    w = 0.5 * torch.randn(40, generator=g)

    def some(n: int) -> Pair:
        x = torch.randn(n, 40, generator=g)
        return x, x @ w + noise * torch.randn(n, generator=g)

    return some(60), some(2000)


def held_out_loss(train: Pair, held: Pair, rate: float) -> float:
    """Dropout of a linear regression's inputs is ridge: min ‖y − Xw‖² + rate/(1−rate)·Σ_j (XᵀX)_jj w_j²."""
    x, y = train
    gram = x.T @ x
    w = torch.linalg.solve(gram + rate / (1 - rate) * torch.diag(gram.diagonal()), x.T @ y)
    return float(((held[0] @ w - held[1]) ** 2).mean())


def fitted(train: Pair, held: Pair, steps: int, lr: float, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = lbdrop.convert(nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1, bias=False)), verbose=False)
    objective = Objective(model, SelfTuning(model, [held], steps=steps, **options))
    optimizer = torch.optim.Adam(parameter_groups(model, lr=lr, rate_lr=lr))
    for _ in range(steps):
        optimizer.zero_grad()
        objective(squares, *train).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("start", [0.05, 0.8])
def test_best_rate_of_a_linear_regression_is_found_from_far_below_and_far_above(start: float) -> None:
    train, held = regression()
    grid = [i / 50 for i in range(1, 48)]
    best = min(grid, key=lambda rate: held_out_loss(train, held, rate))
    model = fitted(train, held, 100, lr=0.05, share=0.8, start=start, masks=4)
    assert model[0].p == pytest.approx(best, abs=0.1)
    assert best == pytest.approx(0.32)  # neither end of the grid


def test_dropout_is_off_where_every_rate_hurts() -> None:
    model = fitted(*regression(noise=0.0), 200, lr=0.1, masks=2)  # no noise, and more equations than unknowns
    assert model[0].keep == 1.0
    assert not model[0].logit.requires_grad


# ------------------------------------------------------------------------------------------------------------- one step


def test_rates_move_by_measurements_and_get_no_gradient() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=100, plain=0.0, every=3))
    stir_responses(model)
    moved = []
    for _ in range(12):
        model.zero_grad()
        before = model[0].logit.detach().clone()
        objective(cross_entropies, x, y).backward()
        moved.append(not torch.equal(model[0].logit, before))
        assert model[0].logit.grad is None
        assert model[1].weight.grad.abs().sum() > 0
        assert model[3].responses["8"].stretch.grad.abs().sum() > 0
    # The first measurements only fill the window.
    assert moved == [False] * 8 + [True] + [False] * 2 + [True]


def test_short_run_measures_more_often() -> None:
    model, x, y = small_classifier()
    # Forty measurements in two fifths of the steps, where there are as many.
    for steps, every in ((10, 1), (300, 3), (10_000, 8)):
        assert SelfTuning(model, [(x, y)], steps=steps).every == every
    assert SelfTuning(model, [(x, y)], steps=10, every=5).every == 5


def test_slope_is_that_of_each_held_out_loss_through_the_responses() -> None:
    torch.manual_seed(0)
    model, x, y = small_classifier()
    x = x.double()
    rule = SelfTuning(model.double(), [(x, y)], steps=100)
    evaluation = Objective(model.double(), rule).evaluation(cross_entropies, x, y)
    assert not rule.look(evaluation)[1].any()  # without a response the held-out loss does not depend on the rates
    stir_responses(model)
    offsets, slopes = rule.look(evaluation)
    assert offsets.std() == pytest.approx(1.0, abs=0.4)
    assert offsets.shape == slopes.shape == (20, 2)

    def shifted(by: float, which: int) -> Tensor:
        there = offsets.clone()
        there[:, which] += by
        for layer in rule.layers.values():
            layer.offsets = there
        loss = cross_entropies(model.eval(), x, y)
        for layer in rule.layers.values():
            layer.offsets = None
        return loss.detach()

    for which in range(2):
        expected = (shifted(1e-4, which) - shifted(-1e-4, which)) / 2e-4
        torch.testing.assert_close(slopes[:, which], expected, atol=1e-6, rtol=0)
        assert expected.abs().max() > 1e-3


def test_each_example_is_masked_at_its_own_rate() -> None:
    torch.manual_seed(0)
    layer = RespondingDropout(lbdrop.LearnableDropout(rate=0.5))
    layer.offsets = torch.tensor([[-2.0], [0.0], [2.0]])
    mask = layer.draw(1, (3, 4000), torch.ones(3, 4000), None)[0]
    assert torch.allclose(mask.mean(1), torch.sigmoid(layer.offsets[:, 0]), atol=0.03)
    # Inverted scaling by each example's own keep rate leaves the mean as it is.
    assert torch.allclose(layer.masked(torch.ones(3, 4000), mask).mean(1), torch.ones(3), atol=0.15)


@pytest.mark.parametrize("masks", [1, 3])
def test_step_through_any_number_of_masks_leaves_no_offsets(masks: int) -> None:
    model, x, y = small_classifier()
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=100, plain=0.0, masks=masks))
    loss = objective(cross_entropies, x, y)
    assert loss.shape == ()
    loss.backward()
    assert all(layer.offsets is None for layer in objective.layers.values())


def test_measurement_leaves_modes_and_running_statistics_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    lbdrop.convert(model, verbose=False)
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    rule = SelfTuning(model, [(100 + x, y)], steps=100, plain=0.0, every=1)
    model[3].eval()
    Objective(model, rule)(cross_entropies, x, y).backward()
    assert int(model[1].num_batches_tracked) == 1
    assert model[1].running_mean.abs().max() < 1  # of the training batch, not of the held-out one
    assert [module.training for module in model] == [True, True, True, False]


def test_every_parameter_is_in_one_group_and_responses_learn_like_rates() -> None:
    model, x, y = small_classifier()
    SelfTuning(model, [(x, y)], steps=100)
    groups = parameter_groups(model, lr=1e-3, rate_lr=0.02, weight_decay=0.1)
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    assert [group["lr"] for group in groups] == [1e-3, 0.02, 0.02]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0, 0.0]


def test_rate_without_a_gradient_stays_and_the_others_learn() -> None:
    model, x, y = small_classifier()
    model[0].logit.requires_grad_(False)
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=100, plain=0.0, every=1))
    stir_responses(model)
    for _ in range(10):
        objective(cross_entropies, x, y).backward()
    assert model[0].p == pytest.approx(0.3)
    assert model[3].p != pytest.approx(0.1, abs=1e-4)
    # A rate that stays where it is has nothing to respond to.
    assert not model[3].responses["8"].stretch.grad[0].any()
    assert model[3].responses["8"].stretch.grad[1].any()


# -------------------------------------------------------------------------------------------------------------- warm-up


@pytest.mark.parametrize(("scale", "masks"), [("inverted", 1), ("none", 3), ("alpha", 1)])
def test_warm_up_steps_draw_no_masks_and_leave_rates_and_slopes_alone(scale: Scale, masks: int) -> None:
    layers = [lbdrop.LearnableDropout(rate=0.3, scale=scale) for _ in range(2)]
    model = nn.Sequential(layers[0], nn.Linear(6, 8), nn.SELU(), layers[1], nn.Linear(8, 3))
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    rule = SelfTuning(model, [(x, y)], steps=100, start=0.3, every=1, masks=masks)
    objective, examples = Objective(model, rule), []
    stir_responses(model)
    for _ in range(8):  # a fifth of the two fifths that rates have
        assert rule.phase == "warm-up"
        model.zero_grad()
        loss = objective(cross_entropies, x, y)
        with torch.no_grad(), deterministic(model):
            torch.testing.assert_close(loss, F.cross_entropy(model(x), y))
        loss.backward()
        assert all(layer.logit.grad is None and layer.logit.requires_grad for layer in rule.layers.values())
        assert model[1].weight.grad.abs().sum() > 0
        examples.append(float(rule.slopes.sums[0, 0]))
    assert all(layer.p == pytest.approx(0.3) for layer in rule.layers.values())
    assert examples == [0.0] * 8
    with torch.no_grad(), deterministic(model):
        plain = F.cross_entropy(model(x), y)
    assert abs(objective(cross_entropies, x, y) - plain) > 1e-4  # now masks are drawn
    first = float(rule.slopes.sums[0, 0])
    objective(cross_entropies, x, y)
    assert 0 < first < float(rule.slopes.sums[0, 0])
