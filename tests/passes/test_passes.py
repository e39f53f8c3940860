"""Everything before the first dropout runs once, whatever the architecture, and nothing else changes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lbdrop import Bound, LearnableDropout, Objective, masks, predict
from lbdrop.dropout import learned_layers
from lbdrop.passes import run as passes
from lbdrop.passes.drawer import Drawer
from lbdrop.rules.measurements import MasksAt
from lbdrop.sources import source_of


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.inside, self.after = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.drop = LearnableDropout(6, 0.4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.before(x))
        return self.after(x + self.drop(self.inside(x)))


class InPlace(Skip):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.before(x))
        total = x * 1.0
        total += self.drop(self.inside(x))  # writes a mask into a tensor that was there before it: vmap cannot
        return self.after(total)


class Branching(Skip):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.before(x))
        dropped = self.drop(self.inside(x))
        if dropped.sum() > 0:  # depends on the mask: vmap cannot
            return self.after(x + dropped)
        return self.after(x - dropped)


class Recurrent(Skip):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(torch.tanh(self.before(x)))
        return self.after(self.rnn(self.drop(x)[:, None])[0][:, 0])


class Normed(Skip):
    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = nn.BatchNorm1d(6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.early(torch.tanh(self.before(x)))
        return self.after(self.late(x + self.drop(self.inside(x))))


class Penalty(torch.autograd.Function):
    """Of value 0, but with a gradient: its output is a constant that holds the inputs of its pass."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.zeros(())

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * x


class Penalised(Skip):
    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.inside(torch.tanh(self.before(x))))
        return self.after(x) + 2 * Penalty.apply(x)


MODELS: list[Callable[[], Skip]] = [Skip, InPlace, Branching, Recurrent, Normed, Penalised]


class FixedMasks(Drawer):
    """A drawer whose masks are made beforehand."""

    def __init__(self, stack: Tensor):
        self.stack = stack

    def draw(self, layer: LearnableDropout, shape: tuple[int, ...], x: Tensor) -> Tensor:
        return self.stack


@pytest.mark.parametrize("scale", ["inverted", "none", "alpha"])
def test_silent_rates_give_the_deterministic_pass_for_any_number_of_masks(scale) -> None:
    model = nn.Sequential(nn.Linear(4, 6), LearnableDropout(6, 0.4, scale=scale), nn.Linear(6, 3)).double()
    logit, x = model[1].logit, torch.randn(5, 4, dtype=torch.double)
    with masks.deterministic(model):
        expected = model(x)
    for count in (1, 3):
        outputs, reached = passes.run(model, lambda: model(x), count, MasksAt([logit], count))
        torch.testing.assert_close(outputs, expected.expand(count, 5, 3))
        assert reached == {model[1]}


@pytest.mark.parametrize("kind", MODELS)
def test_passes_equal_a_plain_loop_in_value_and_gradient(kind) -> None:
    model, x = kind().double(), torch.randn(5, 4, dtype=torch.double)
    z = (torch.rand(3, 5, 6) < 0.6).double()

    def gradients(output: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(output.pow(2).sum(), [p for p in model.parameters() if p.requires_grad]))

    together, reached = passes.run(model, lambda: model(x), 3, FixedMasks(z))
    loop = []
    for mask in z:
        with masks.fixed(model, {"drop": mask}):
            loop.append(model(x))
    torch.testing.assert_close(together, torch.stack(loop))
    assert reached == set(learned_layers(model).values())
    for ours, plain in zip(gradients(together), gradients(torch.stack(loop)), strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.filterwarnings("ignore:objective. want gradients on")
@pytest.mark.parametrize(
    ("kind", "engine"), [(Skip, "lanes"), (Recurrent, "replay"), (Branching, "replay"), (Normed, "replay")]
)
def test_layers_before_the_first_dropout_run_once(kind, engine: str) -> None:
    model, x = kind(), torch.randn(5, 4)
    objective = Objective(model, Bound(model, 10), estimator="rloo-4", coupled=False)
    for _ in range(2):  # the first step may try one engine and take the other
        rows = _rows_multiplied(model.before, lambda: objective(lambda m: m(x).square().sum(1)))
    assert rows == 5
    assert set(passes._needs_replay[model].values()) == {engine == "replay"}
    model.eval()
    predict(model, x, samples=7)
    assert _rows_multiplied(model.before, lambda: predict(model, x, samples=7)) == 5


def _rows_multiplied(layer: nn.Linear, function: Callable[[], object]) -> int:
    """How many rows went through a layer's matrix product, counted in the dispatcher, below every transform."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        rows = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            weight = layer.weight
            for value in args:
                if (
                    isinstance(value, Tensor)
                    and value.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()
                ):
                    if "mm" in func.__name__:
                        self.rows += next(a for a in args if a.dim() > 1 and a.shape[-1] == weight.shape[1]).shape[0]
                    break
            return func(*args, **(kwargs or {}))

    with Watch() as watch, torch.no_grad():
        function()
    return watch.rows


class Remembers(Skip):
    """Keeps tensors of its pass, as models with a cache or a running mean do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.before(x))
        dropped = self.drop(self.inside(x))
        self.seen = dropped
        self.mean = 0.9 * self.mean + 0.1 * dropped.detach().mean(0)
        return self.after(x + dropped)


def test_attributes_that_a_model_keeps_of_a_pass_can_be_read_afterwards() -> None:
    model, x = Remembers(), torch.randn(5, 4)
    predict(model, x, samples=3)
    assert model.seen is not None
    assert float(model.seen.sum()) == float(model.seen.sum())
    assert torch.isfinite(model.state_dict()["mean"]).all()
    assert predict(model, x, samples=8).variance.min() > 0


class Writes(Skip):
    """Writes a mask into a buffer and reads it back: later passes must not find the mask of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.before(x))
        self.kept[:] = self.drop(self.inside(x)).detach()
        return self.after(x + self.kept * 1.0)


def test_buffer_that_holds_a_mask_is_written_in_every_pass() -> None:
    model, x = Writes(), torch.randn(5, 4)
    z = (torch.rand(3, 5, 6) < 0.6).float()
    together, _ = passes.run(model, lambda: model(x), 3, FixedMasks(z))
    for output, mask in zip(together, z, strict=True):
        with masks.fixed(model, {"drop": mask}):
            torch.testing.assert_close(output, model(x))


def test_running_statistics_move_once_in_a_step_after_a_prediction() -> None:
    model, x = Normed(), torch.randn(5, 4)
    predict(model, x)
    Objective(model, Bound(model, 10), coupled=True)(lambda m: m(x).square().sum(1))
    assert int(model.early.num_batches_tracked) == 1


def test_running_statistics_before_the_dropout_move_once_in_a_step() -> None:
    model, x = Normed(), torch.randn(5, 4)
    before = torch.tanh(model.before(x)).detach()
    objective = Objective(model, Bound(model, 10), coupled=True)
    objective(lambda m: m(x).square().sum(1))
    torch.testing.assert_close(model.early.running_mean, 0.1 * before.mean(0))
    assert int(model.early.num_batches_tracked) == 1


def test_error_in_the_loss_reaches_the_caller_unchanged() -> None:
    model = Skip()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        Objective(model, examples=5)(lambda m: m(torch.randn(5, 9)).sum(1))
    assert all(source_of(layer) is None for layer in learned_layers(model).values())


@pytest.mark.parametrize("derivative", [lambda f, x, v: torch.func.jvp(f, (x,), (v,))[1], lambda f, x, v: torch.func.grad(lambda x: (f(x) * 0.5).sum())(x) * v],
                         ids=["forwards", "backwards"])  # fmt: skip
def test_derivatives_inside_a_pass_are_those_of_each_mask(derivative: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    model, x, v = Skip(), torch.randn(5, 4), torch.randn(5, 4)
    stack = (torch.rand(3, 5, 6) < 0.6).float()
    outputs, _ = passes.run(model, lambda: derivative(model, x, v), 3, FixedMasks(stack))
    assert list(passes._needs_replay[model].values()) == [False]
    for mask, each in zip(stack, outputs, strict=True):
        with masks.fixed(model, {"drop": mask}):
            torch.testing.assert_close(each, derivative(model, x, v))


class Two(nn.Module):
    def __init__(self, recurrent: bool) -> None:
        super().__init__()
        self.one, self.other = LearnableDropout(6, 0.4), LearnableDropout(6, 0.4)
        self.rnn = nn.GRU(6, 6, batch_first=True) if recurrent else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.other(torch.tanh(self.one(x)))
        return x if self.rnn is None else self.rnn(x[:, None])[0][:, 0]


@pytest.mark.parametrize(("count", "recurrent"), [(1, False), (3, False), (3, True)], ids=["single", "lanes", "replay"])
def test_masks_go_to_the_named_layers_and_to_no_other(count: int, recurrent: bool) -> None:
    model, x = Two(recurrent).double().eval(), torch.randn(5, 6, dtype=torch.double)
    z = (torch.rand(count, 5, 6) < 0.6).double()
    for _ in range(2):  # the first pass may try one engine and take the other
        outputs, reached = passes.run(model, lambda: model(x), count, FixedMasks(z), [model.one])
        assert reached == {model.one}
        for mask, output in zip(z, outputs, strict=True):
            with masks.fixed(model, {"one": mask}):  # the other layer runs its deterministic pass
                torch.testing.assert_close(output, model(x))
    if count > 1:
        assert list(passes._needs_replay[model].values()) == [recurrent]
