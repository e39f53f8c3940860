"""A dense block as one operation is the network's own, gradients and running statistics included, and so are its kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from experiments.networks import dense
from experiments.networks.tiramisu import CommonDropout2d, FCDenseNet, Plan, _Block
from lbdrop import LearnableDropout, Objective, predict
from lbdrop.dropout import noise_layers
from lbdrop.passes import run as passes
from lbdrop.passes.drawer import IndependentMasks

TINY = Plan((2, 1, 1, 1, 1), 2, 4)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks take the one operation on a CPU too, with its steps in torch."""
    monkeypatch.setattr(dense, "is_fast", lambda x, weight: True)


def block(whole: bool, rate: float = 0.3) -> _Block:
    made = _Block(5, 3, 4, lambda _: CommonDropout2d(rate), whole).double()
    for value in made.parameters():
        nn.init.normal_(value)
    return made


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, c, 3, 4, generator=generator, dtype=torch.double).add(c).requires_grad_() for c in (3, 2)]


def everything(made: _Block, given: list[Tensor]) -> list[Tensor]:
    """The output, all gradients, and the running statistics afterwards."""
    out = made(*given)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    found = torch.autograd.grad((out * weight).sum(), [*given, *made.parameters()])
    return [out.detach(), *found, *(value.clone() for value in made.buffers())]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_fused_block_equals_its_layers_one_by_one(whole: bool, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = block(whole, rate), block(whole, rate)
    other.load_state_dict(one.state_dict())
    drawn = torch.rand(3, 2, 4, dtype=torch.double).gt(0.3).div(0.7) if rate else [None] * 3
    masks = {id(layer.dropout): mask for made in (one, other) for layer, mask in zip(made.layers, drawn, strict=True)}
    monkeypatch.setattr(CommonDropout2d, "mask", lambda self, x, channels: masks[id(self)])
    plain = everything(one, inputs())
    monkeypatch.setattr(dense, "is_fast", lambda x, weight: True)
    fast = everything(other, inputs())
    assert len(plain) == len(fast) > 20
    for a, b in zip(plain, fast, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def small() -> FCDenseNet:
    def dropout(name: str, channels: int) -> nn.Module:
        return LearnableDropout(rate=0.3, channels=True) if name == "middle" else CommonDropout2d(0.2)

    return FCDenseNet(56, classes=3, plan=TINY, dropout=dropout)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none").flatten(1).mean(1)


@pytest.mark.process
@pytest.mark.usefixtures("fast")
def test_prediction_lanes_equal_single_passes() -> None:
    model, x = small(), torch.rand(2, 3, 64, 70)
    layers = noise_layers(model).values()
    with torch.no_grad():
        for _ in range(30):
            model(torch.rand(2, 3, 64, 70))  # running statistics move
        model.eval().up[0].conv.weight.mul_(100)  # or masks of so few pixels would be hard to see
        together, one_by_one = (
            engine(
                layers,
                lambda: model(x),
                3,
                IndependentMasks([torch.Generator().manual_seed(seed) for seed in range(3)]),
            )[0]
            for engine in (passes.run_lanes, passes.run_replay)
        )
    torch.testing.assert_close(together, one_by_one, rtol=1e-3, atol=1e-4)
    assert (together[0] - together[1]).abs().max() > 1e-2


def test_fused_prediction_equals_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    with torch.no_grad():
        for _ in range(3):
            model(torch.rand(4, 3, 40, 44))  # running statistics move
    x = torch.rand(2, 3, 33, 47)
    plain = predict(model, x, samples=5, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(dense, "is_fast", lambda x, weight: True)
    fast = predict(model, x, samples=5, generator=torch.Generator().manual_seed(1))
    assert plain.samples is not None
    assert fast.samples is not None
    torch.testing.assert_close(fast.samples, plain.samples, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("fast")
def test_down_path_is_one_operation_for_all_masks_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the masks each block runs for each of them, before them once; losses under equal masks are equal."""
    ran: list[int] = []
    real = dense._Trained.apply

    class Counted:
        @staticmethod
        def apply(*args: object) -> object:
            ran.append(args[0])
            return real(*args)

    monkeypatch.setattr(dense, "_Trained", Counted)
    model = small()
    with torch.no_grad():
        for layer in model.middle.layers:
            layer.dropout.logit.fill_(60.0)
    x, y = torch.rand(2, 3, 32, 40), torch.randint(0, 3, (2, 32, 40))
    objective = Objective(model, examples=10, estimator="rloo-2", coupled=True)
    objective(losses, x, y)  # the engine is chosen
    ran.clear()
    found = objective.evaluation(lambda m: losses(m, x, y)).losses()
    assert torch.equal(found[0], found[1])
    assert ran.count(1) == 5  # blocks of the way down have one input, those of the way up two
    assert ran.count(2) == 2 * 5
    found.mean().backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in model.first.parameters())


def eager(made: _Block) -> None:
    """Ordinary MC dropout: masks at test."""
    made.eval()
    for layer in made.layers:
        layer.dropout.train()


def one_norm_at_test(made: _Block) -> None:
    made.layers[1].norm.eval()


def listened_to(made: _Block) -> None:
    made.layers[1].conv.register_forward_hook(lambda *_: None)


def another_momentum(made: _Block) -> None:
    made.layers[1].norm.momentum = 0.5


def no_running_statistics(made: _Block) -> None:
    for layer in made.layers:
        layer.norm.running_mean = layer.norm.running_var = None


@pytest.mark.parametrize("change", [eager, one_norm_at_test, listened_to, another_momentum, no_running_statistics])
def test_unusual_block_runs_layer_by_layer(change, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = block(True), block(True)
    other.load_state_dict(one.state_dict())
    change(one), change(other)
    found = []
    for made, fast in ((one, False), (other, True)):
        monkeypatch.setattr(dense, "is_fast", lambda x, weight, fast=fast: fast)
        torch.manual_seed(0)
        with torch.no_grad():
            found.append((made(*inputs()), *(value.clone() for value in made.buffers())))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.usefixtures("fast")
def test_second_derivative_is_refused() -> None:
    made, given = block(True, 0.0), inputs()
    (first,) = torch.autograd.grad(made(*given).square().sum(), [given[0]], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.usefixtures("fast")
def test_transformed_functions_run_layer_by_layer() -> None:
    made, given = block(True, 0.0), inputs()
    by_func = torch.func.grad(lambda x: made(x, given[1].detach()).square().sum())(given[0].detach())
    (plain,) = torch.autograd.grad(made(*given).square().sum(), [given[0]])
    torch.testing.assert_close(by_func, plain)


@pytest.mark.process
def test_triton_kernels_equal_the_steps_in_torch() -> None:
    """Interpreted, since a GPU is not at hand: in a process of its own, which decides that when Triton is imported."""
    script = Path(__file__).parents[2] / "helpers" / "dense_kernels.py"
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compared" in done.stdout
