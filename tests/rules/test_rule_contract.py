"""What every rule has to do, whatever it does: one test for all. A new rule needs one line in ``RULES``."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from experiments.rival_rules import self_tuning
from experiments.rival_rules.mask_prior import MaskPrior
from experiments.rival_rules.one_step import OneStep
from experiments.rival_rules.self_tuning import SelfTuning
from lbdrop import Balanced, Bound, LearnableDropout, Objective, parameter_groups
from lbdrop.dropout import learned_layers
from lbdrop.rules.rule import HeldOutRule, Rule, StatefulRule
from lbdrop.sources import source_of

STEPS = 40  # rates of rules that follow held-out data are frozen after 16
EPOCH = 4

Batches = list[tuple[Tensor, Tensor]]
RULES: dict[str, Callable[[nn.Module, Batches], Rule]] = {
    "bound": lambda model, held_out: Bound(model, 20),
    "mask prior": lambda model, held_out: MaskPrior(0.1),
    "balanced": lambda model, held_out: Balanced(model, held_out, steps=STEPS, examples=20),
    "self-tuning": lambda model, held_out: SelfTuning(model, held_out, steps=STEPS, examples=20),
}
WITH_STATE = ("balanced", "self-tuning")

every_rule = pytest.mark.parametrize("name", RULES)
every_rule_and_one_step = pytest.mark.parametrize("name", [*RULES, "one step"])  # which is called as an objective is
rules_with_state = pytest.mark.parametrize("name", WITH_STATE)
# Self-tuning puts layers of its own in the place of the model's.
rules_beside_layers = pytest.mark.parametrize("name", [name for name in RULES if name != "self-tuning"])


def network() -> nn.Sequential:
    """One rate for a layer, and one for each unit of another."""
    torch.manual_seed(0)
    first, second = LearnableDropout(rate=0.3), LearnableDropout(8, rate=0.3)
    return nn.Sequential(first, nn.Linear(6, 8), nn.ReLU(), second, nn.Linear(8, 3))


def data() -> tuple[Tensor, Tensor, Batches]:
    """Training examples, and held-out ones that contradict them: a model over-fits at once."""
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(20, 6, generator=g), torch.randint(0, 3, (20,), generator=g)
    return x, y, [(x[:10], (y[:10] + 1) % 3), (x[10:], (y[10:] + 1) % 3)]


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


class Run:
    """A model, its objective and an optimiser of all parameters."""

    def __init__(self, name: str, model: nn.Module | None = None):
        self.model = network() if model is None else model
        self.x, self.y, held_out = data()
        if name == "one step":
            self.objective: Any = OneStep(self.model, held_out, every=1)
        else:
            rule: Any = RULES[name](self.model, held_out)
            if name == "balanced":
                rule.gate.open()  # in so few steps no gap is certain
            self.objective = Objective(self.model, rule)
        groups = self_tuning.parameter_groups if name == "self-tuning" else parameter_groups
        self.optimizer = torch.optim.Adam(groups(self.model, lr=0.02, rate_lr=0.05))
        if name == "one step":
            self.objective.follow(self.optimizer)

    @property
    def rule(self) -> Any:
        return self.objective.rule

    @property
    def logits(self) -> list[Tensor]:
        return [layer.logit.detach().clone() for layer in learned_layers(self.model).values()]

    def train(self, start: int, stop: int) -> Tensor:
        """Steps of a training loop, whose random numbers follow from the number of the step; the last loss."""
        for step in range(start, stop):
            torch.manual_seed(step)
            if step % EPOCH == 0 and isinstance(getattr(self.objective, "rule", None), HeldOutRule):
                self.rule.restart()
            self.optimizer.zero_grad()
            loss = self.objective(losses, self.x, self.y)
            loss.backward()
            self.optimizer.step()
        return loss

    def state(self) -> dict[str, Any]:
        parts = {"model": self.model, "objective": self.objective, "optimizer": self.optimizer}
        return {name: part.state_dict() for name, part in parts.items()}


def assert_equal(found: Any, expected: Any) -> None:
    """Every number of two states is the same, bit for bit."""
    (leaves, form), (others, other_form) = tree_flatten(found), tree_flatten(expected)
    assert form == other_form
    for leaf, other in zip(leaves, others, strict=True):
        assert torch.equal(leaf, other) if isinstance(leaf, Tensor) else leaf == other


@every_rule_and_one_step
def test_loss_is_a_finite_scalar_with_gradients_for_all_weights(name: str) -> None:
    run = Run(name)
    loss = run.train(0, 2)
    assert loss.shape == ()
    assert loss.isfinite()
    assert all(run.model[layer].weight.grad.abs().sum() > 0 for layer in (1, 4))


@every_rule_and_one_step
def test_every_rate_moves_by_its_gradient_or_by_the_rule(name: str) -> None:
    run = Run(name)
    started = run.logits
    run.train(0, 12)
    assert not any(torch.equal(*pair) for pair in zip(run.logits, started, strict=True))


@every_rule_and_one_step
def test_rate_without_a_gradient_stays(name: str) -> None:
    model = network()
    model[0].logit.requires_grad_(False)
    run = Run(name, model)
    started = run.logits
    run.train(0, 20)
    assert torch.equal(run.logits[0], started[0])
    assert not torch.equal(run.logits[1], started[1])


@every_rule
def test_call_without_gradients_is_no_step_and_moves_nothing(name: str) -> None:
    run, other = Run(name), Run(name)
    for each in (run, other):
        each.train(0, 8)
    with torch.no_grad():
        for _ in range(3):
            assert run.objective(losses, run.x, run.y).isfinite()
    assert_equal(run.state(), other.state())
    for each in (run, other):
        each.train(8, 12)
    assert_equal(run.state(), other.state())


@rules_beside_layers
def test_layers_and_state_of_the_model_know_nothing_of_the_rule(name: str) -> None:
    model = network()
    keys, layers = list(model.state_dict()), [model[0], model[3]]
    attributes = [(type(layer), set(vars(layer)), set(layer._modules)) for layer in layers]
    run = Run(name, model)
    run.train(0, 8)
    assert [model[0], model[3]] == layers
    assert [(type(layer), set(vars(layer)), set(layer._modules)) for layer in layers] == attributes
    assert all(source_of(layer) is None for layer in layers)
    assert list(model.state_dict()) == keys


@every_rule
def test_resumed_run_ends_bit_for_bit_where_an_uninterrupted_one_does(name: str) -> None:
    whole, saved = Run(name), {}
    for start, stop in ((0, 8), (8, 20), (20, 28)):
        whole.train(start, stop)
        saved[stop] = io.BytesIO()
        torch.save(whole.state(), saved[stop])
    for stopped in (8, 20):  # where rates follow measurements, and where they are frozen
        saved[stopped].seek(0)
        state = torch.load(saved[stopped], weights_only=True)
        resumed = Run(name)
        resumed.model.load_state_dict(state["model"])
        resumed.objective.load_state_dict(state["objective"])
        resumed.optimizer.load_state_dict(state["optimizer"])
        resumed.train(stopped, 28)
        assert_equal(resumed.state(), whole.state())


@rules_beside_layers
def test_state_serves_a_rule_made_after_that_of_the_model_was_loaded(name: str) -> None:
    whole = Run(name)
    whole.train(0, 12)
    model = network()
    model.load_state_dict(whole.model.state_dict())
    resumed = Run(name, model)
    resumed.objective.load_state_dict(whole.objective.state_dict())
    resumed.optimizer.load_state_dict(copy.deepcopy(whole.optimizer.state_dict()))
    for each in (whole, resumed):
        each.train(12, 20)
    assert_equal(resumed.state(), whole.state())


@rules_with_state
def test_phases_come_in_order_and_frozen_rates_stay(name: str) -> None:
    run, phases = Run(name), []
    assert isinstance(run.rule, StatefulRule)
    for step in range(20):
        phases.append(run.rule.phase)
        run.train(step, step + 1)
    assert sorted(phases, key=["warm-up", "measuring", "frozen"].index) == phases
    assert set(phases) == {"warm-up", "measuring", "frozen"}
    frozen = run.logits
    run.train(20, 24)
    assert all(torch.equal(*pair) for pair in zip(run.logits, frozen, strict=True))
    assert not any(layer.logit.requires_grad for layer in learned_layers(run.model).values())
