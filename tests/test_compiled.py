"""A compiled model runs compiled wherever layers draw by themselves, and nothing is compiled again after the first steps."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lbdrop
from lbdrop import Objective
from lbdrop.rivals import ConcreteDropout, FixedDropout, GaussianDropout

pytestmark = pytest.mark.usefixtures("without_type_checks")
X, Y = torch.randn(12, 6, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3


class Backend:
    """Counts graphs and their calls, and computes as without compiling."""

    def __init__(self) -> None:
        self.graphs = self.calls = 0

    def __call__(self, graph: Any, _: Any) -> Callable[..., Any]:
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.calls += 1
            return graph.forward(*args)

        return run


@pytest.fixture
def backend() -> Iterator[Backend]:
    torch._dynamo.reset()
    yield Backend()
    torch._dynamo.reset()


def network(dropout: Callable[[], nn.Module] = lambda: nn.Dropout(0.3)) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), dropout(), nn.Linear(8, 8), nn.ReLU(), dropout(), nn.Linear(8, 3))


def learned() -> nn.Sequential:
    return lbdrop.convert(network(), verbose=False)  # pyright: ignore[reportReturnType]


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def trained(
    objective: Objective, model: nn.Module, steps: int, after: Callable[[int], None] = lambda step: None
) -> list[Tensor]:
    """The gradients of every step; weights and rates move."""
    torch.manual_seed(3)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(steps):
        optimizer.zero_grad()
        objective(losses, X, Y).backward()
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        after(step)
    return found


def equal(a: list[Tensor], b: list[Tensor]) -> None:
    assert len(a) == len(b) > 0
    for left, right in zip(a, b, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("estimator", ["arm", "disarm", "rloo-3", "arms-4", "double-cv-4", None])
def test_gradients_of_a_compiled_model_are_those_of_the_model(backend: Backend, estimator: str | None) -> None:
    found = []
    for compiled in (False, True):
        model = learned()
        given = torch.compile(model, backend=backend) if compiled else model
        found.append(trained(Objective(given, examples=100, estimator=estimator), model, 20))  # pyright: ignore
    equal(*found)


def test_steps_of_weights_alone_run_compiled_and_nothing_is_compiled_again(backend: Backend) -> None:
    model, graphs = learned(), []
    objective = Objective(torch.compile(model, backend=backend), examples=100)  # pyright: ignore[reportArgumentType]
    trained(objective, model, 60, after=lambda _: graphs.append(backend.graphs))
    share = objective.runner.plan_of(lambda m: losses(m, X, Y)).share
    assert backend.calls > 60 * (1 - share) - 15
    assert graphs[-1] == 1


def test_held_out_rule_runs_compiled_and_nothing_is_compiled_again_measurements_included(backend: Backend) -> None:
    found = []
    for compiled in (True, False):
        model, graphs = learned(), []
        given: Any = torch.compile(model, backend=backend) if compiled else model
        objective = Objective(given, held_out=[(X, Y)], steps=80, examples=12)
        found.append(trained(objective, model, 80, after=lambda _: graphs.append(backend.graphs)))  # noqa: B023
        if compiled:
            assert backend.calls > 80 + 2 * objective.rule.measurements.count  # pyright: ignore
            assert objective.rule.phase == "frozen"  # pyright: ignore[reportAttributeAccessIssue]
            assert graphs[3] == graphs[-1] <= 3
    equal(*found)


@pytest.mark.parametrize("scheme", [FixedDropout, ConcreteDropout, GaussianDropout])
def test_other_schemes_run_compiled_with_the_same_gradients(backend: Backend, scheme: type[nn.Module]) -> None:
    found = []
    for compiled in (True, False):
        model = network(lambda: scheme(None, 0.3))
        given: Any = torch.compile(model, backend=backend) if compiled else model
        found.append(trained(Objective(given, examples=100), model, 5))
    equal(*found)
    assert backend.calls == 4  # the first step looks for dropouts that are not reached


class Residual(nn.Module):
    """Not a container of torch's own, whose code torch does not compile in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body = learned()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + x[:, :3]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch reads it of a block's input
@pytest.mark.parametrize("part", ["in place", "a block"])
def test_parts_that_are_compiled_draw_the_masks_of_the_model(backend: Backend, part: str) -> None:
    found = []
    for compiled in (True, False):
        block = Residual()
        model = block if part == "in place" else nn.Sequential(nn.Linear(6, 6), block)
        if compiled:
            block.compile(backend=backend)
        found.append(trained(Objective(model, examples=100), model, 20))
        found.append([lbdrop.predict(model, X, generator=torch.Generator().manual_seed(1)).mean])
    equal(found[0], found[2])
    assert backend.graphs


def test_dropout_in_functions_runs_uncompiled_and_says_so_once(backend: Backend) -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(F.dropout(self.first(x), 0.3, self.training))

    model = lbdrop.convert(Inside(), example=X, verbose=False)
    with pytest.warns(UserWarning, match="dropout in functions, which compiled graphs do not see"):
        objective = Objective(torch.compile(model, backend=backend), examples=100)  # pyright: ignore[reportArgumentType]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(objective, model, 5)
    assert not backend.graphs
