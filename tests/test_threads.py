"""One model in several threads and tasks: predictions are those of a single thread, and training wants the model to itself."""

import asyncio
import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lbdrop
from lbdrop import DropoutError, masks
from lbdrop.dropout import learned_layers
from lbdrop.guards.compiled import as_written
from lbdrop.sources import source_of


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Dropout(0.4),
        nn.Linear(8, 8),
        nn.Dropout(0.2),
        nn.Linear(8, 3),
    )
    lbdrop.convert(model, verbose=False)
    model[1].eval()  # modes that differ have to come back
    return model


def recurrent() -> nn.Module:
    torch.manual_seed(0)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(4, 6, 2, dropout=0.4, batch_first=True), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.lstm(x[:, None])[0][:, -1])

    return lbdrop.convert(Last(), verbose=False)


def seeded(model: nn.Module, x: Tensor, seed: int) -> Tensor:
    return lbdrop.predict(model, x, samples=5, generator=torch.Generator().manual_seed(seed)).mean


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(("make", "calls"), [(network, 480), (recurrent, 60)])
def test_predictions_of_eight_threads_are_those_of_one(make: Callable[[], nn.Module], calls: int) -> None:
    model, x, other = make(), torch.randn(6, 4), make()
    modes = [module.training for module in model.modules()]
    expected = [seeded(other, x, seed) for seed in range(calls)]
    state = torch.get_rng_state()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda seed: seeded(model, x, seed), range(calls)))
    assert all(map(torch.equal, found, expected))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    model.eval()
    again = copy.deepcopy(model)
    assert torch.equal(lbdrop.bake(model)(x), again(x))


def test_predictions_of_tasks_are_those_of_one_thread() -> None:
    model, x = network(), torch.randn(6, 4)
    expected = [seeded(model, x, seed) for seed in range(40)]

    async def all_at_once() -> list[Tensor]:
        return await asyncio.gather(*(asyncio.to_thread(seeded, model, x, seed) for seed in range(40)))

    assert all(map(torch.equal, asyncio.run(all_at_once()), expected))


def test_masks_of_a_task_are_its_own() -> None:
    model, x = network().eval(), torch.randn(6, 4)
    plain = model(x)

    async def under(mask: float) -> Tensor:
        with masks.fixed(model, dict.fromkeys(("3", "5"), torch.tensor([[mask]]))):
            await asyncio.sleep(0)
            await asyncio.to_thread(lambda: None)
            here = model(x)
            assert torch.equal(await asyncio.to_thread(model, x), here)
        return here

    async def both() -> tuple[Tensor, Tensor]:
        return await asyncio.gather(under(0.0), under(1.0))

    dropped, kept = asyncio.run(both())
    assert not torch.equal(dropped, kept)
    assert torch.equal(model(x), plain)


def test_masks_of_a_thread_are_its_own() -> None:
    model, x = network().eval(), torch.randn(6, 4)
    plain = model(x)
    with masks.held(model) as draw, ThreadPoolExecutor(1) as pool:
        first = model(x)
        assert torch.equal(pool.submit(model, x).result(), plain)
        assert torch.equal(model(x), first)
        assert len(draw.uniforms) == 2


@pytest.mark.usefixtures("without_type_checks")
def test_predictions_of_a_model_and_of_a_part_of_it_leave_their_modes() -> None:
    whole, x = nn.Sequential(network(), nn.Linear(3, 2)), torch.randn(6, 4)
    models = whole, whole[0]
    modes = [module.training for module in whole.modules()]
    expected = [seeded(models[seed % 2], x, seed) for seed in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda seed: seeded(models[seed % 2], x, seed), range(200)))
    assert all(map(torch.equal, found, expected))
    assert [module.training for module in whole.modules()] == modes


class Waits(nn.Module):
    """Stops in its pass until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.inside, self.go_on = network(), threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.inside.set()
        assert self.go_on.wait(60)
        return self.body(x)

    def objective(self) -> lbdrop.Objective:
        self.go_on.set()  # it looks at the graph of the model
        objective = lbdrop.Objective(self, examples=6, estimator="disarm")
        self.inside.clear(), self.go_on.clear()
        return objective


def test_model_whose_graph_is_read_changes_no_other_thread() -> None:
    """Reading a graph replaces the call of every module of the process."""
    slow, model, x = Waits(), network(), torch.randn(6, 4)
    expected = seeded(model, x, 0)
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(lbdrop.Objective, slow, examples=6)
        assert slow.inside.wait(60)
        second = pool.submit(lbdrop.Objective, network(), examples=6)
        assert torch.equal(seeded(model, x, 0), expected)
        slow.go_on.set()
        for objective in (reading.result(), second.result()):
            objective(squares, x).backward()
    assert torch.equal(seeded(model, x, 0), expected)


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum(1)


@pytest.mark.parametrize("second", ["predict", "train"])
def test_training_is_refused_to_share_the_model(second: str) -> None:
    model, x = Waits(), torch.randn(6, 4)
    objective = model.objective()
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(objective, squares, x)
        assert model.inside.wait(60)
        with pytest.raises(DropoutError, match=r"want a model .* got one .*copy\.deepcopy"):
            lbdrop.predict(model, x) if second == "predict" else objective(squares, x)
        model.go_on.set()
        step.result().backward()
    assert model.training
    lbdrop.predict(model, x)


def test_part_of_a_model_in_training_gives_no_prediction() -> None:
    model, x = Waits(), torch.randn(6, 4)
    objective = model.objective()
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(objective, squares, x)
        assert model.inside.wait(60)
        with pytest.raises(DropoutError, match="got one in a training step"):
            lbdrop.predict(model.body, x)
        assert model.body.training
        model.go_on.set()
        step.result().backward()


@pytest.mark.filterwarnings("ignore:objective. want a model in training mode")  # the prediction has changed it
def test_training_is_refused_while_another_thread_predicts() -> None:
    model, x = Waits(), torch.randn(6, 4)
    objective = model.objective()
    with ThreadPoolExecutor(1) as pool:
        prediction = pool.submit(lbdrop.predict, model, x, 3)
        assert model.inside.wait(60)
        with pytest.raises(DropoutError, match="got one that another thread predicts with"):
            objective(squares, x)
        model.go_on.set()
        assert prediction.result().mean.isfinite().all()
    objective(squares, x).backward()


@pytest.mark.parametrize("change", [lambda m: m.body[0].weight.mul_(2), lambda m: m.train()], ids=["weights", "mode"])
def test_model_that_another_thread_changes_gives_no_prediction(change: Callable[[Waits], object]) -> None:
    model, x = Waits(), torch.randn(6, 4)
    with ThreadPoolExecutor(1) as pool:
        prediction = pool.submit(lbdrop.predict, model, x, 3)
        assert model.inside.wait(60)
        with torch.no_grad():
            change(model)
        model.go_on.set()
        with pytest.raises(DropoutError, match="another thread has changed"):
            prediction.result()


def test_block_computed_again_in_another_thread_than_its_masks_is_refused() -> None:
    model, x = network(), torch.randn(6, 4, requires_grad=True)
    with masks.drawn(model), ThreadPoolExecutor(1) as pool:
        loss = checkpoint(model, x, use_reentrant=False).sum()
        with pytest.raises(DropoutError, match="backward\\(\\) after the context"):
            pool.submit(loss.backward).result()
    assert all(source_of(layer) is None for layer in learned_layers(model).values())


@pytest.mark.usefixtures("without_type_checks")
def test_compiled_model_does_not_break_or_compile_again_for_open_contexts() -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model, x, counter = network(), torch.randn(6, 4), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for _ in range(4):
        compiled(x)
        lbdrop.predict(model, x)
    assert counter.frame_count == 1
    assert torch.export.export(model.eval(), (x,)).module()(x).equal(model(x))


@pytest.mark.usefixtures("without_type_checks")
def test_predictions_that_overlap_leave_the_compiler_as_it_was() -> None:
    """Its stance is one for all threads: put back by each in turn, it would stay at the one of the first to come."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    first, second = as_written(), as_written()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    model, x, counter = network(), torch.randn(6, 4), CompileCounter()
    compiled = torch.compile(model, backend=counter)
    compiled(x)
    assert counter.frame_count == 0
    second.__exit__(None, None, None)
    compiled(x)
    assert counter.frame_count == 1
