"""A budget says what steps cost on average, and nothing else: gradients stay unbiased however steps are thinned."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lbdrop
from lbdrop import Bound, LearnableDropout, Objective, estimators
from lbdrop.dropout import learned_layers
from lbdrop.errors import DropoutError
from lbdrop.passes.price import ANYWAY, FURTHER_MASK, MIN_SHARE, Pass, Plan, plan_for


class Coupled(nn.Module):
    """BatchNorm in training mode behind the dropout: the loss of one example depends on the masks of others."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.norm = LearnableDropout(2, 0.4), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.drop(x)).pow(3) + x


class Repeated(nn.Module):
    """One rate in two places, with other scales."""

    def __init__(self, scale: str = "inverted") -> None:
        super().__init__()
        self.first = LearnableDropout(None, 0.3, scale=scale)
        self.second = LearnableDropout(logit=self.first.logit, scale=scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)).cumsum(1))


def losses(m: nn.Module, x: Tensor) -> Tensor:
    return (m(x) * torch.tensor([1.0, -0.7], dtype=x.dtype)).sum(1).square()


def exact(model: nn.Module, x: Tensor, per_batch: bool) -> Tensor:
    """The gradient of the expected mean loss: all masks of an example enumerated, or of the batch where it is coupled."""
    layers, total = learned_layers(model), torch.zeros((), dtype=x.dtype)
    for rows in [x] if per_batch else x.split(1):
        for bits in itertools.product((0.0, 1.0), repeat=rows.numel() * len(layers)):
            given = dict(zip(layers, torch.tensor(bits, dtype=x.dtype).view(len(layers), *rows.shape), strict=True))
            chance = torch.ones((), dtype=x.dtype)
            for name, z in given.items():
                chance = chance * torch.where(z > 0, layers[name].keep, 1 - layers[name].keep).prod()
            with lbdrop.masks.fixed(model, given):
                total = total + chance * losses(model, rows).sum() / len(x)
    return torch.autograd.grad(total, next(iter(layers.values())).logit)[0]


@pytest.mark.parametrize(
    ("make", "coupled"),
    [(Repeated, False), (lambda: Repeated("none"), False), (lambda: Repeated("alpha"), False), (Coupled, True)],
    ids=["inverted", "none", "alpha", "coupled"],
)
def test_thinned_gradient_is_that_of_all_masks_enumerated(make: Callable[[], nn.Module], coupled: bool) -> None:
    torch.manual_seed(0)
    share = 0.3
    model, x = make().double(), torch.randn(3, 2, dtype=torch.double)
    expected = exact(model, x, per_batch=coupled)
    objective = Objective(model, Bound(model, 1, weight=0.0), coupled=coupled)
    objective.runner.plan = Plan(estimators.get("double-cv-3"), share)
    many = x if coupled else x.repeat(100, 1)
    count = 300 if coupled else 150
    logit = next(iter(learned_layers(model).values())).logit
    draws = torch.stack([torch.autograd.grad(objective(losses, many), logit)[0] for _ in range(count)])
    plain = (draws.view(count, -1) == 0).all(1).double().mean()
    assert abs(float(plain) - (1 - share)) < 4 * math.sqrt(share * (1 - share) / count) + 1e-9
    error = draws.std(0) / count**0.5
    assert bool((error < 0.5 * expected.abs().max()).all())  # else the test would say nothing
    assert bool(((draws.mean(0) - expected).abs() < 4 * error).all())


def thinned(share: float = 0.5, **settings: object) -> tuple[nn.Sequential, Objective]:
    torch.manual_seed(0)
    model = nn.Sequential(LearnableDropout(2, 0.3), nn.Linear(2, 2))
    objective = Objective(model, examples=10, **settings)  # pyright: ignore[reportArgumentType]
    objective.runner.plan = Plan(estimators.get("double-cv-3"), share)
    return model, objective


def gradients(steps: int, scale: float = 1.0, generator: int | None = None, share: float = 0.5) -> list[Tensor]:
    drawn = None if generator is None else torch.Generator().manual_seed(generator)
    model, objective = thinned(share, generator=drawn)
    model, x = model.double(), torch.randn(4, 2, dtype=torch.double)
    for _ in range(steps):
        (scale * objective(losses, x)).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_loss_scale_and_accumulation_reach_thinned_gradients() -> None:
    once, scaled = gradients(6), gradients(6, scale=1024.0)
    for a, b in zip(once, scaled, strict=True):
        torch.testing.assert_close(1024 * a, b)


def test_thinned_steps_follow_from_the_random_state_or_the_generator() -> None:
    for seed in (None, 3):
        for a, b in zip(gradients(6, generator=seed), gradients(6, generator=seed), strict=True):
            assert torch.equal(a, b)


def test_weights_have_their_expected_gradient_in_every_thinned_step() -> None:
    """Through one mask or three: the mean over many steps agrees."""
    sums = []
    for share in (1e-9, 1.0):
        model, objective = thinned(share)
        x = torch.tensor([[1.0, -2.0], [0.5, 1.0]]).repeat(400, 1)
        found = [torch.autograd.grad(objective(losses, x), model[1].weight)[0] for _ in range(40)]
        sums.append(torch.stack(found))
    error = sum(each.var(0) / len(each) for each in sums).sqrt()
    assert bool(((sums[0].mean(0) - sums[1].mean(0)).abs() < 4 * error).all())


def test_rates_have_a_gradient_in_every_step_for_other_processes_to_average() -> None:
    model, objective = thinned(1e-9)
    objective.rule.weight = 0.0  # pyright: ignore[reportAttributeAccessIssue]
    for _ in range(2):
        objective(losses, torch.randn(4, 2)).backward()
    assert model[0].logit.grad is not None
    assert not model[0].logit.grad.any()


def test_step_of_weights_alone_is_a_plain_pass() -> None:
    """The layers draw by themselves, in no context: what a compiled model needs, and the masks of a plain training step."""
    model, objective = thinned(1e-9)
    x, seen = torch.randn(4, 2), []
    objective(losses, x)
    model[0].register_forward_hook(lambda layer, _, out: seen.append(lbdrop.sources.source_of(layer)))
    state = torch.get_rng_state()
    loss = objective(losses, x) - objective.rule.kl(objective.layers) / 10  # pyright: ignore
    torch.set_rng_state(state)
    torch.rand(())  # whether rates learn
    torch.testing.assert_close(loss, losses(model, x).mean())
    assert seen == [None, None]


def test_first_step_finds_mistakes_whether_rates_learn_in_it_or_not() -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        model = nn.Sequential(LearnableDropout(2, 0.3), nn.Linear(2, 2))
        with pytest.raises(DropoutError, match="one loss for each of the 4 examples"):
            Objective(model, examples=10)(lambda m, x: m(x).flatten(), torch.randn(4, 2))


# --------------------------------------------------------------------------------------------------------- what a plan is


def test_small_tail_has_many_masks_in_every_step_and_a_long_one_few_in_some() -> None:
    sizes = {"tail": (4096, 1), "half": (300, 256), "all": (1, 4096)}
    plans = {}
    for name, (before, behind) in sizes.items():
        model = nn.Sequential(nn.Linear(512, before), nn.Linear(before, 64), LearnableDropout(), nn.Linear(64, behind), nn.Linear(behind, 1))  # fmt: skip
        objective, x = Objective(model, examples=10), torch.randn(512, 512)
        objective(lambda m, x=x: m(x)[:, 0])
        plans[name] = objective.runner.plan
    assert plans["tail"] == Plan(plans["tail"].estimator, 1.0)
    assert plans["tail"].estimator.masks == 8
    assert plans["half"].estimator.masks in (2, 3, 4)
    assert plans["all"].estimator.masks == 3
    assert 0 < plans["all"].share < 0.5


def test_plan_costs_what_the_budget_is() -> None:
    found = Pass(total=1e9, behind=1e9, uses=1, elements=0)
    for budget in (1.1, 1.25, 2.0):
        plan = plan_for(found, budget, calls=0.0)
        spent = ANYWAY + plan.share * FURTHER_MASK * (plan.estimator.masks - 1)
        assert spent == pytest.approx(max(budget - 1, ANYWAY + MIN_SHARE * FURTHER_MASK * 2))
    assert plan_for(found, 5.0, calls=0.0).estimator.masks == 4
    assert plan_for(found, 10.0, calls=0.0).share == 1


def test_counting_changes_neither_model_nor_random_state() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), LearnableDropout(2, 0.3), nn.LSTM(2, 3, batch_first=True))
    objective, state = Objective(model, examples=10), torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = objective.runner.plan_of(lambda m: m(torch.ones(4, 2))[0].sum(1))
    assert plan.share <= 1
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_frozen_rates_cost_one_mask() -> None:
    model, objective = thinned(1.0)
    model[0].logit.requires_grad_(False)
    assert objective.evaluation(losses, torch.randn(4, 2)).losses().shape == (1, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 1.0}, "above 1"),
        ({"budget": math.nan}, "above 1"),
        ({"budget": 2.0, "estimator": "arm"}, "budget and estimator: want one of them"),
    ],
)
def test_budget_that_cannot_be_kept_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(DropoutError, match=message):
        Objective(nn.Sequential(LearnableDropout(2)), examples=9, **settings)
