"""Numbers that stay numbers: what is not finite is found at its step and named, rates come back, seeds repeat."""

import math
from typing import Any

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from helpers.small_recommender import assert_unchanged, likes, recommender, state
from torch import Tensor, nn

import lbdrop
from experiments.vision.batches import Batches
from experiments.vision.train import Schedule
from experiments.vision.train import fit as fit_images
from lbdrop import ConcreteDropout, DropoutError, GaussianDropout, LearnableDropout, Objective, estimators
from lbdrop.dropout import FURTHEST_LOGIT, NoiseLayer, hold_in_range
from lbdrop.estimators import antithetic, disarm
from lbdrop.guards.finite import MAX_COPIED, finite_gradients
from lbdrop.masks import Held, use
from lbdrop.recommend.row_masks import RowMasks, row_values
from lbdrop.recommend.rows import Rows
from lbdrop.recommend.settings import method
from lbdrop.recommend.train import fit as fit_recommender
from lbdrop.step import Step


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x)


def network(*first: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*first, nn.Linear(3, 6), nn.Tanh(), LearnableDropout(6, 0.3), nn.Linear(6, 2))


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def batch(rows: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(rows, 3, generator=generator) + 0.5, torch.arange(rows) % 2


# ---------------------------------------------------------------------------------------------------- found and named


@pytest.mark.parametrize("handed_over", [True, False])
def test_an_input_that_is_no_number_is_named_with_its_example(handed_over: bool) -> None:
    model, (x, y) = network(), batch()
    x[2, 1] = torch.nan
    objective, before = Objective(model, examples=10), state(model)
    with pytest.raises(
        DropoutError, match=r"for examples \[2\] of this batch; the model's input is not finite in rows \[2\]"
    ):
        objective(losses, x, y) if handed_over else objective(lambda m: losses(m, x, y))
    assert_unchanged(model, before)
    assert all(module.training for module in model.modules())


def test_the_layer_is_named_where_numbers_end() -> None:
    x, y = batch()
    x[3] = -1.0
    with pytest.raises(DropoutError, match=r"examples \[3\] .* first in the output of layer '0' \(Log\)"):
        Objective(network(Log()), examples=10)(losses, x, y)


@pytest.mark.parametrize("name", ["0.weight", "2.logit"])
def test_a_weight_or_logit_that_was_none_before_the_step_is_named(name: str) -> None:
    model = network()
    model.get_parameter(name).data.view(-1)[0] = torch.nan
    with pytest.raises(DropoutError, match=f"not finite before the step: {name}; look at the steps before this one"):
        Objective(model, examples=10)(losses, *batch())


def root(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Finite at 0, its slope is not."""
    return (model[3](model[2](model[1](model[0](x)))) * 0).square().sum(1).sqrt()


def test_a_gradient_that_is_none_though_losses_are_finite_stops_before_the_optimiser() -> None:
    model = network()
    before = state(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = Objective(model, examples=10)(root, *batch())
    assert torch.isfinite(loss)
    with pytest.raises(DropoutError, match="gradient: want finite numbers, got NaN or infinity for 0.weight, 0.bias"):
        loss.backward()
        optimizer.step()
    assert_unchanged(model, before)
    Objective(model, examples=10, check=False)(root, *batch()).backward()  # asked not to look, it does not


def test_a_scaler_deals_with_its_own_overflow() -> None:
    model = network()
    before = state(model)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(Objective(model, examples=10)(root, *batch())).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() < 65536
    assert_unchanged(model, before)


@pytest.mark.parametrize("numbers", [30, MAX_COPIED + 10], ids=["small", "large"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_one_gradient_that_is_no_number_is_found_in_every_precision(dtype: torch.dtype, numbers: int) -> None:
    parameters = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in (3, numbers, 5)]
    assert finite_gradients(parameters) is None  # no gradient yet

    def found(value: float) -> bool:
        parameters[1].grad = torch.ones(numbers, dtype=dtype)
        parameters[1].grad[numbers // 2] = value
        parameters[2].grad = torch.full((5,), -torch.finfo(dtype).max, dtype=dtype)  # a sum of these overflows
        answer = finite_gradients(parameters)
        assert answer is not None
        return not bool(answer)

    assert [found(value) for value in (math.nan, math.inf, -math.inf, 1.0)] == [True, True, True, False]


def test_a_prediction_that_is_no_number_is_refused_and_a_logit_of_minus_infinity_is_not() -> None:
    model, (x, _) = network(), batch()
    x[4, 0] = torch.nan
    where = r"NaN or infinity in rows \[4\] of part 1 .* input is not finite in rows \[4\]"
    with pytest.raises(DropoutError, match=where):
        lbdrop.predict(model, [torch.ones(5, 3), x], progress=False)

    def never_the_second(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).masked_fill(torch.tensor([False, True]), -torch.inf)

    assert lbdrop.predict(model, torch.ones(5, 3), forward=never_the_second).mean[:, 1].eq(0).all()


# ------------------------------------------------------------------------------------------------------ rates come back


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("kind", [LearnableDropout, ConcreteDropout])
def test_a_rate_driven_to_an_extreme_comes_back_when_the_objective_changes(kind: type[NoiseLayer], sign: float) -> None:
    torch.manual_seed(0)
    layer = kind(None, 0.5, scale="none")
    model = nn.Sequential(layer, nn.Flatten())
    objective, x = Objective(model, examples=1_000_000), torch.ones(64, 4)
    optimizer = torch.optim.Adam(model.parameters(), 0.3, betas=(0.9, 0.9))
    for step in range(250):
        now = sign if step < 150 else -sign
        optimizer.zero_grad()
        objective(lambda m, now=now: -now * m(x).sum(1)).backward()
        optimizer.step()
        if step == 149:
            there = float(layer.logit.detach())
    assert abs(there) == pytest.approx(FURTHEST_LOGIT, abs=0.5)  # at the edge but for one step
    assert float(layer.logit.detach()) * sign < -2


def test_without_the_range_a_rate_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbdrop.objective.hold_in_range", lambda layers: None)
    with pytest.raises(AssertionError):
        test_a_rate_driven_to_an_extreme_comes_back_when_the_objective_changes(LearnableDropout, 1.0)


def test_a_variance_at_its_bound_comes_back() -> None:
    layer = GaussianDropout(None, 0.4)
    model = nn.Sequential(layer, nn.Linear(4, 1))
    objective, x = Objective(model, examples=1_000_000), torch.ones(32, 4)
    layer.logit.data.fill_(-5.0)  # far below the bound, where the variance has no gradient
    optimizer = torch.optim.SGD([layer.logit], 1.0)
    for _ in range(20):
        optimizer.zero_grad()
        objective(lambda m: 10 * (m(x) - m[1](x)).square().sum(1)).backward()  # noise alone
        optimizer.step()
    assert float(layer.logit.detach()) > 0.1


@pytest.mark.parametrize("name", ["sivae-lbd", "sivae-concrete", "sivae-gaussian"])
def test_the_recommenders_rates_stay_in_their_range(name: str) -> None:
    model = recommender(name, rate_lr=50.0)
    fit_recommender(model, likes(), device="cpu", progress=False)
    assert model.masks.logit is not None
    least = 0.0 if name == "sivae-gaussian" else -FURTHEST_LOGIT
    logit = model.masks.logit.detach()
    assert ((logit >= least) & (logit <= FURTHEST_LOGIT)).all()
    assert ((logit == least) | (logit >= FURTHEST_LOGIT - 1e-6)).any()  # such steps would have gone further


# ------------------------------------------------------------------------------------------- ten thousand steps in bf16


@pytest.fixture
def unhooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users run it: checks of shapes would take most of the time of so many small steps."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "bfloat16 parameters"])
def test_ten_thousand_steps_at_extreme_rates_stay_finite_in_bfloat16(autocast: bool) -> None:
    """The layer, the estimator and the optimiser, without the engine that runs whole models."""
    torch.manual_seed(0)
    layer, head = LearnableDropout(4), nn.Linear(4, 2)
    if not autocast:
        layer, head = layer.bfloat16(), head.bfloat16()
    edge = FURTHEST_LOGIT  # inverted scaling multiplies what is kept at .001 by a thousand
    layer.logit.data.copy_(torch.tensor([-edge, -edge, edge, edge]))
    optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=1e-3)
    x, y = torch.randn(6, 4).to(head.weight.dtype), torch.arange(6) % 2
    with use(layer, Held()):  # inside a context: gradients reach the rate through 1/keep too
        for _ in range(10_000):
            hold_in_range([layer])
            step = Step({"": layer}, estimators.get("disarm"), None)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                output = head(layer.masked(x, step.draw(layer, (6, 4), x)))
                found = F.cross_entropy(output.flatten(0, 1).float(), y.repeat(2), reduction="none").view(2, 6)
            step.weigh(found).mean().backward()
            step.release()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(p).all() for p in (*layer.parameters(), *head.parameters()))
    assert layer.rate.min() < 0.02
    assert layer.rate.max() > 0.98


@pytest.mark.usefixtures("unhooked")
def test_ten_thousand_steps_of_row_masks_at_extreme_rates_stay_finite_in_bfloat16() -> None:
    torch.manual_seed(0)
    batch = Rows.from_csr(likes(6, 12)).batch(range(6))
    settings = [method("sivae-lbd", normalise=each) for each in ("before", "after")]
    masks = RowMasks(12, settings[0]).bfloat16()
    assert masks.logit is not None
    masks.logit.data.copy_(torch.linspace(-FURTHEST_LOGIT, FURTHEST_LOGIT, 12))
    weights = nn.Parameter(torch.randn(12, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([masks.logit, weights], lr=1e-3)
    for _ in range(10_000):
        logits = masks.logits(batch)
        assert logits is not None
        keep = torch.sigmoid(logits.detach())
        pair = antithetic(keep, 2, (1, len(keep)))
        seen = torch.cat([row_values(pair.z[:, 0], logits, batch, each, torch.bfloat16) for each in settings])
        sums = torch.zeros(4, 6, dtype=torch.bfloat16).index_add(1, batch.user, seen * weights[batch.item])
        f = (sums - 1).abs().view(2, 2, 6).sum(0)
        each = disarm(pair.z, keep[None], f.detach().float()[:, batch.user][:, None])
        total = f.mean() + batch.per_entry(masks.kl(logits)).sum()
        (total + ((logits - logits.detach()) * batch.per_entry(each.sum(0))).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        masks.logit.data.clamp_(-FURTHEST_LOGIT, FURTHEST_LOGIT)
    assert torch.isfinite(total)
    assert torch.isfinite(masks.logit).all()
    assert torch.isfinite(weights).all()
    assert masks.keep.min() < 0.01
    assert masks.keep.max() > 0.99


# --------------------------------------------------------------------------------------------------- seeds, bit by bit


def trained(seed: int) -> tuple[dict[str, Tensor], Tensor]:
    model, (x, y) = network(), batch(8)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    objective = Objective(model, examples=8)
    torch.manual_seed(seed)
    for _ in range(15):
        optimizer.zero_grad()
        objective(losses, x, y).backward()
        optimizer.step()
    return state(model), lbdrop.predict(model, x, samples=7).mean


def pictured(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.ReLU(), LearnableDropout(6), nn.Linear(6, 2))
    images = torch.randint(0, 256, (24, 3, 4, 4), generator=torch.Generator().manual_seed(4)).to(torch.uint8)
    batches = Batches(images, torch.arange(24) % 2, 8, train=True, generator=torch.Generator())
    fit_images(model, Objective(model, examples=24), batches, Schedule(2, 0.01, 0.1), seed=seed, progress=False)
    return state(model)


def fitted(seed: int) -> dict[str, Tensor]:
    model = recommender()
    fit_recommender(model, likes(), device="cpu", seed=seed, progress=False)
    return state(model)


@pytest.mark.parametrize("run", [lambda s: trained(s)[0], lambda s: {"mean": trained(s)[1]}, pictured, fitted],
                         ids=["objective", "predict", "images", "recommender"])  # fmt: skip
def test_the_same_seed_gives_the_same_result_bit_for_bit_and_another_another(run: Any) -> None:
    first, again, other = run(5), run(5), run(6)
    assert all(first[name].equal(again[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)
