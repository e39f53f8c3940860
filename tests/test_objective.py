"""From per-example losses to gradients for weights and rates."""

import gc
import itertools
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from helpers.one_dropout import batch, losses, network
from torch import Tensor, nn

import lbdrop
from lbdrop import Bound, LearnableDropout, Objective, estimators, parameter_groups
from lbdrop.dropout import Scale, learned_layers
from lbdrop.rules.priors import bernoulli_kl


def gradients(model: nn.Module, seed: int, scale: float = 1.0, parts: int = 1, data=None, **settings) -> list[Tensor]:
    x, y = data or batch()
    objective = Objective(model, examples=100, **settings)
    torch.manual_seed(seed)
    model.zero_grad()
    for piece_x, piece_y in zip(x.chunk(parts), y.chunk(parts), strict=True):
        (objective(losses(piece_x, piece_y)) * scale / parts).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_weights_and_rates_get_their_gradients_in_one_backward_pass() -> None:
    model = network()
    assert len(gradients(model, 0)) == 5


def test_loss_is_the_mean_over_examples_and_masks_plus_kl_over_n() -> None:
    model, (x, y) = network("none"), batch()
    bound = Bound(model, examples=50, s=0.7)
    objective = Objective(model, bound, estimator="rloo-3", generator=torch.Generator().manual_seed(1))
    loss = objective(losses(x, y))
    z = estimators.independent(model[2].keep.detach(), 3, (16, 8), torch.Generator().manual_seed(1)).z
    by_hand = torch.stack([F.cross_entropy(model[3](model[:2](x) * mask), y) for mask in z]).mean()
    keep, norms = model[2].keep, model[3].weight.pow(2).sum(0)
    kl = (keep * norms / (2 * 0.7**2) + keep * keep.log() + (1 - keep) * (1 - keep).log() + math.log(2)).sum()
    torch.testing.assert_close(loss, by_hand + kl / 50)


def test_gradient_is_the_formula_of_the_estimator() -> None:
    """The whole path, layers, taps and reductions, against ARM written out by hand."""
    model, (x, y) = network("none"), batch()
    objective = Objective(
        model, Bound(model, 1, weight=0.0), estimator="arm", generator=torch.Generator().manual_seed(1)
    )
    objective(losses(x, y)).backward()
    u = torch.rand(16, 8, generator=torch.Generator().manual_seed(1))
    keep = model[2].keep.detach()
    f = [F.cross_entropy(model[3](model[:2](x) * z), y, reduction="none") for z in ((u > 1 - keep), (u < keep))]
    by_hand = ((f[0] - f[1])[:, None] * (u - 0.5)).mean(0)
    torch.testing.assert_close(model[2].logit.grad, by_hand)


@pytest.mark.parametrize("estimator", ["arm", "double-cv"])
def test_gradients_scale_with_the_loss(estimator: str) -> None:
    model, data = network().double(), batch()
    data = (data[0].double(), data[1])
    once = gradients(model, 3, data=data, estimator=estimator)
    scaled = gradients(model, 3, scale=1024.0, data=data, estimator=estimator)
    for a, b in zip(once, scaled, strict=True):
        torch.testing.assert_close(a * 1024, b)


@pytest.mark.parametrize("estimator", ["arm", "disarm"])
def test_accumulated_parts_have_the_gradient_of_the_whole(estimator: str) -> None:
    """Exactly where one mask and its mirror image serve a step: parts then draw what the whole does."""
    model, data = network().double(), batch(32)
    data = (data[0].double(), data[1])
    whole, split = (gradients(model, 3, parts=parts, data=data, estimator=estimator) for parts in (1, 4))
    for a, b in zip(whole, split, strict=True):
        torch.testing.assert_close(a, b)


def test_accumulated_parts_estimate_the_gradient_of_the_whole() -> None:
    """Split in two or not, the mean over many draws agrees."""
    model, (x, y) = network(), batch(8)
    data = x.repeat(50, 1), y.repeat(50)
    whole, split = (
        torch.stack([gradients(model, seed, parts=parts, data=data)[2] for seed in range(30)]) for parts in (1, 2)
    )
    error = (whole.var(0) / 30 + split.var(0) / 30).sqrt()
    assert bool(((whole.mean(0) - split.mean(0)).abs() < 4 * error).all())


@pytest.mark.usefixtures("without_type_checks")
def test_autocast_and_compiled_models_agree_with_plain_ones() -> None:
    model, data = network(), batch()
    plain = gradients(model, 5, data=data)
    compiled = gradients(torch.compile(model, backend="eager"), 5, data=data)
    for a, b in zip(plain, compiled, strict=True):
        torch.testing.assert_close(a, b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = gradients(model, 5, data=data)
    for a, b in zip(plain, half, strict=True):
        torch.testing.assert_close(a, b, atol=2e-2, rtol=5e-2)


COMPILED = """
import torch, torch.nn.functional as F, lbdrop
from torch import nn
graphs = []
def backend(graph, _):
    graphs.append(graph)
    return graph.forward
model = torch.compile(nn.Sequential(nn.Linear(3, 8), lbdrop.LearnableDropout(8), nn.Linear(8, 2)), backend=backend)
x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
lbdrop.Objective(model, examples=10)(lambda m: F.cross_entropy(m(x), y, reduction="none")).backward()
for _ in range(3):
    model(x)
assert len(graphs) == 1, len(graphs)
"""


@pytest.mark.process
def test_compiled_model_is_one_graph_in_and_outside_of_the_objective() -> None:
    # In a process of its own: the run-time type checks of the tests cannot be traced.
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("scale", "moved"), [("none", 7), ("inverted", 7), ("alpha", 8)])
def test_unit_that_is_zero_for_every_example_has_a_gradient_in_alpha_dropout_alone(scale: Scale, moved: int) -> None:
    """There a dropped unit is not 0."""
    model, (x, y) = network(scale), batch()
    with torch.no_grad():
        model[0].weight[3], model[0].bias[3] = 0, 0  # tanh(0) = 0: unit 3 is always 0
    for estimator in ("arm", "rloo-4", "double-cv"):
        model.zero_grad()
        Objective(model, Bound(model, 1, weight=0.0), estimator=estimator)(losses(x, y)).backward()
        assert bool(model[2].logit.grad[3] != 0) == (scale == "alpha")
        assert int((model[2].logit.grad != 0).sum()) == moved


def test_rate_is_trained_to_the_exact_minimum() -> None:
    """One unit, output z·w with w fixed, target t: E(z w − t)² is least at keep 0 or 1; the KL of a strong prior wins."""
    layer = LearnableDropout(1, 0.5, scale="none")
    model = nn.Sequential(layer)
    objective = Objective(model, Bound(model, examples=1, prior_keep=0.2, weight=50.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.ones(64, 1)
    for _ in range(100):
        optimizer.zero_grad()
        objective(lambda m: (m(x)[:, 0] - 1.0).pow(2)).backward()
        optimizer.step()
    keep = torch.linspace(0.001, 0.999, 999)
    exact = (1 - keep) + 50 * bernoulli_kl(torch.logit(keep), 0.2)
    assert layer.keep.item() == pytest.approx(float(keep[exact.argmin()]), abs=0.02)


def test_useful_unit_is_kept_where_there_is_no_kl() -> None:
    layer = LearnableDropout(1, 0.5, scale="none")
    model = nn.Sequential(layer)
    objective = Objective(model, Bound(model, 1, weight=0.0), estimator="arm")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.2)
    for _ in range(50):
        optimizer.zero_grad()
        objective(lambda m: (m(torch.ones(32, 1))[:, 0] - 1.0).pow(2)).backward()
        optimizer.step()
    assert layer.keep.item() > 0.95


def test_tensors_of_a_step_are_freed_but_for_the_numbers_of_the_last() -> None:
    model, (x, y) = network(), batch()
    objective = Objective(model, examples=10)

    for _ in range(3):
        objective(losses(x, y)).backward()
    gc.collect()
    gc.freeze()  # what is there already is neither searched nor counted
    try:
        for _ in range(10):
            objective(losses(x, y)).backward()
            objective(losses(x, y))  # never differentiated
        gc.collect()
        left = [each for each in gc.get_objects() if isinstance(each, Tensor)]
    finally:
        gc.unfreeze()
    assert len(left) == 2  # the loss and its KL
    assert {float(each) for each in left} == {objective.last["loss"], objective.last["kl"]}


@pytest.mark.filterwarnings("ignore:objective. want gradients on")
def test_loss_without_gradients_needs_nothing_else() -> None:
    model, (x, y) = network(), batch()
    with torch.no_grad():
        assert not Objective(model, examples=10)(losses(x, y)).requires_grad


class Hard(nn.Module):
    """A mask that reaches the loss through a step function alone: it has no slope, but its rate has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.weights = LearnableDropout(3, 0.4, scale="none"), torch.tensor([1.0, -0.8, 0.5])

    def forward(self, x: Tensor) -> Tensor:
        return (self.drop(x) @ self.weights > 0.3).to(x.dtype)


@pytest.mark.parametrize("estimator", ["arm", "disarm", "rloo-4", "arms-4", "double-cv"])
def test_rates_learn_through_a_step_function(estimator: str) -> None:
    model, x = Hard(), torch.ones(1, 3)
    exact = torch.zeros(3)
    for bits in itertools.product([0.0, 1.0], repeat=3):
        z = torch.tensor(bits)
        f = (float(z @ model.weights > 0.3) - 0.7) ** 2
        chance = torch.where(z > 0, torch.tensor(0.6), torch.tensor(0.4)).prod()
        exact += chance * f * (z - 0.6)
    objective = Objective(model, Bound(model, 1, weight=0.0), estimator=estimator)
    many = x.expand(1000, 3)
    drawn = torch.stack(
        [torch.autograd.grad(objective(lambda m: (m(many) - 0.7).pow(2)), model.drop.logit)[0] for _ in range(40)]
    )
    error = drawn.std(0) / len(drawn) ** 0.5
    assert bool(((drawn.mean(0) - exact).abs() < 4 * error + 1e-7).all())


def test_frozen_rates_and_parts_without_gradients_are_allowed() -> None:
    model, (x, y) = network(), batch()

    def distilled(m: nn.Module) -> Tensor:
        with torch.no_grad():
            target = m(x).softmax(-1)
        return -(target * m(x).log_softmax(-1)).sum(-1)

    Objective(model, examples=10)(distilled).backward()
    model[2].logit.requires_grad_(False)
    model.zero_grad()
    with pytest.warns(UserWarning, match="want rates that learn, got logits that all require no gradient"):
        Objective(model, examples=10)(losses(x, y)).backward()
    assert model[2].logit.grad is None
    assert model[0].weight.grad is not None


def test_parametrised_weights_train_and_bake() -> None:
    last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 2))
    model, (x, y) = nn.Sequential(nn.Linear(3, 8), LearnableDropout(8, scale="none"), last), batch()
    Objective(model, examples=10)(losses(x, y)).backward()
    model.eval()
    torch.testing.assert_close(lbdrop.bake(model)(x), model(x))


def test_parameter_groups_hold_every_parameter_once() -> None:
    model = network()
    groups = parameter_groups(model, rate_lr=0.1, lr=0.01, weight_decay=0.5)
    assert [len(g["params"]) for g in groups] == [4, 1]
    assert groups[1]["params"][0] is model[2].logit
    assert (groups[1]["lr"], groups[1]["weight_decay"], groups[0]["weight_decay"]) == (0.1, 0.0, 0.5)
    torch.optim.AdamW(groups)


class Halve:
    """A user's rule: half the loss, no KL."""

    def loss(self, evaluation):
        return evaluation.losses().mean() / 2


@pytest.mark.filterwarnings("ignore:objective. want gradients on")
def test_rule_of_one_method_is_enough_for_another_way_to_learn() -> None:
    model, (x, y) = network(), batch()
    with torch.no_grad():
        ours = Objective(model, Halve(), generator=torch.Generator().manual_seed(1))(losses(x, y))
        plain = Objective(model, Bound(model, 1, weight=0.0), generator=torch.Generator().manual_seed(1))(losses(x, y))
    torch.testing.assert_close(ours * 2, plain)


def test_shared_rates_sum_their_gradients() -> None:
    shared = LearnableDropout(rate=0.3)
    model = nn.Sequential(
        nn.Linear(3, 8), shared, nn.Linear(8, 8), LearnableDropout(logit=shared.logit), nn.Linear(8, 2)
    )
    apart = nn.Sequential(*[nn.Linear(3, 8), LearnableDropout(rate=0.3), nn.Linear(8, 8), LearnableDropout(rate=0.3), nn.Linear(8, 2)])  # fmt: skip
    apart.load_state_dict(model.state_dict())
    data = batch()
    for net in (model, apart):
        Objective(net, examples=10, generator=torch.Generator().manual_seed(1))(losses(*data)).backward()
    total = sum(layer.logit.grad for layer in learned_layers(apart).values())
    torch.testing.assert_close(shared.logit.grad, total)
