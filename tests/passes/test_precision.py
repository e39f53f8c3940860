"""Under autocast, masks that run together compute in the precision in which they would one by one."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lbdrop
from experiments.rival_rules.response import Response
from experiments.rival_rules.self_tuning import SelfTuning
from lbdrop import DropoutError, LearnableDropout, Objective, masks, predict
from lbdrop.dropout import NoiseLayer
from lbdrop.passes import autocast as precision
from lbdrop.passes import run as passes
from lbdrop.passes.autocast import lane_autocast
from lbdrop.passes.drawer import Drawer
from lbdrop.sites.lora import GatedRanks

# Gradients are compared in eval mode, where running statistics stay.
pytestmark = pytest.mark.filterwarnings("ignore:objective. want a model in training mode")

HALF = torch.bfloat16


def assert_rounded_alike(a: Tensor | None, b: Tensor | None) -> None:
    torch.testing.assert_close(a, b, rtol=2**-6, atol=2**-6)  # a few roundings to bfloat16 one after another


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=HALF)


# Smooth networks: at the kink of a ReLU a rounding makes a gradient or none.


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), LearnableDropout(8, 0.4), nn.Linear(8, 8), nn.GELU(), LearnableDropout(8, 0.4),
        nn.Linear(8, 3),
    )  # fmt: skip


def convolutional() -> nn.Module:
    """In its order of layers a mask meets convolutions, BatchNorm, a transposed convolution, pooling and a linear head."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), LearnableDropout(4, 0.4, channels=True), nn.Conv2d(4, 6, 3),
        nn.BatchNorm2d(6), nn.GELU(), nn.ConvTranspose2d(6, 4, 2), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def transformer() -> nn.Module:
    """With LayerNorm, and dropout learned in its attention too."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, activation="gelu", batch_first=True)
    return nn.Sequential(lbdrop.convert(layer, verbose=False), nn.Flatten(), nn.Linear(32, 3))


class Adapted(nn.Module):
    """A layer with an adapter of gated ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.up = nn.Linear(6, 3), nn.Linear(4, 3, bias=False)
        self.down = GatedRanks.of(nn.Linear(6, 4, bias=False), cost=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 4 * self.up(self.down(x))


MODELS: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (perceptron, (5, 6)), (convolutional, (5, 3, 8, 8)), (transformer, (5, 4, 8)), (Adapted, (5, 6)),
]  # fmt: skip


@pytest.fixture
def lanes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a model that vmap can take went to replay")

    monkeypatch.setattr(passes, "run_replay", refuse)


class RecordingDrawer(Drawer):
    """Draws masks and keeps them, so that a loop of passes can use the same ones."""

    def __init__(self, count: int):
        self.count, self.stacks = count, list[Tensor]()
        self.index = self.use = 0

    def begin(self) -> None:
        self.stacks.clear()

    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        self.stacks.append(layer.draw(self.count, shape, x, None))
        return self.stacks[-1]

    def mask(self, layer: NoiseLayer, x: Tensor) -> Tensor:
        self.use += 1
        return self.stacks[self.use - 1][self.index]

    def one_by_one(self, model: nn.Module, x: Tensor) -> Tensor:
        outputs = []
        with masks.use(model, self):
            for index in range(self.count):
                self.index, self.use = index, 0
                outputs.append(model(x))
        return torch.stack(outputs)


@contextmanager
def replayed(model: nn.Module) -> Iterator[None]:
    mode = tuple(module.training for module in model.modules())
    passes._needs_replay[model] = {mode: True}
    yield
    del passes._needs_replay[model]


# ------------------------------------------------------------------------------------------------------------ models


@pytest.mark.usefixtures("lanes_only")
@pytest.mark.parametrize(("kind", "shape"), MODELS)
def test_lanes_under_autocast_equal_a_loop_of_passes(kind, shape) -> None:
    model, x, kept = kind().eval(), torch.randn(shape), RecordingDrawer(4)
    with half(), torch.no_grad():
        together, _ = passes.run(model, lambda: model(x), 4, kept)
        alone = kept.one_by_one(model, x)
    assert together.dtype == alone.dtype == HALF
    assert_rounded_alike(together, alone)
    assert not torch.allclose(alone[0], alone[1], atol=0.05)  # or any masks would do


@pytest.mark.parametrize(("kind", "shape"), MODELS)
def test_predictions_in_lanes_equal_those_in_replay(kind, shape, monkeypatch) -> None:
    model, x = kind(), torch.randn(shape)
    with half():
        with replayed(model.eval()):
            slow = predict(model, x, samples=6)
        monkeypatch.setattr(passes, "run_replay", None)
        fast = predict(model, x, samples=6)
    assert_rounded_alike(fast.samples, slow.samples)
    assert not torch.equal(fast.mean, predict(model, x, samples=6).mean)  # float32 without autocast


@pytest.mark.usefixtures("lanes_only")
@pytest.mark.parametrize("inner", [torch.float32, torch.float64])
def test_model_that_switches_autocast_off_stays_in_its_precision(inner: torch.dtype) -> None:
    class FullPrecision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.exact, self.head = LearnableDropout(6), nn.Linear(6, 6).to(inner), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.drop(x)
            if inner == torch.float64:  # autocast itself leaves it alone
                exact = self.exact(x.double())
            else:
                with torch.autocast("cpu", enabled=False):
                    exact = self.exact(x)
            return exact, self.head(exact.float())

    model, x = FullPrecision(), torch.randn(4, 6)
    with half():
        (exact, head), _ = passes.run(model, lambda: model(x), 3, RecordingDrawer(3))
    assert (exact.dtype, head.dtype) == (inner, HALF)


def test_functional_dropout_is_found_under_autocast() -> None:
    class Hidden(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            return F.dropout(super().forward(input), 0.3)

    with half(), pytest.raises(DropoutError, match=r"dropout\(p=0.3\)"):
        predict(Hidden(*perceptron()), torch.randn(5, 6), samples=3)


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_models_without_autocast_stay_in_their_precision(dtype: torch.dtype) -> None:
    model, x = perceptron().to(dtype), torch.randn(5, 6, dtype=dtype)
    output, _ = passes.run(model, lambda: model(x), 3, RecordingDrawer(3))
    assert output.dtype == dtype


# ---------------------------------------------------------------------------------------------------------- training


def gradients(model: nn.Module, objective: Callable[[], Objective], x: Tensor) -> dict[str, Tensor]:
    """Loss, and gradients of weights and rates, of one step."""
    made = objective()
    for module in model.modules():
        if isinstance(module, Response):
            nn.init.constant_(module.stretch, 0.3)  # as if learned
    torch.manual_seed(1)
    model.zero_grad()
    loss = made(lambda m, x: F.cross_entropy(m(x), torch.arange(len(x)) % 3, reduction="none"), x)
    loss.backward()
    assert loss.dtype == torch.float32
    return {"loss": loss.detach()} | {k: p.grad for k, p in model.named_parameters() if p.grad is not None}


def agree(kind: Callable[[], nn.Module], shape: tuple[int, ...], objective, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = kind().eval(), torch.randn(shape)  # for BatchNorm; masks are drawn all the same
    with half():
        with replayed(model):
            slow = gradients(model, lambda: objective(model, x), x)
        monkeypatch.setattr(passes, "run_replay", None)
        fast = gradients(model, lambda: objective(model, x), x)
    assert set(fast) == set(slow)
    assert len(fast) > len(list(model.parameters())) / 2
    for name, value in slow.items():
        assert fast[name].dtype == torch.float32
        error = float((fast[name] - value).norm() / value.norm().clamp(min=1e-2))
        assert error < (0.15 if "logit" in name else 0.03), (name, error)  # rates follow small differences of losses


@pytest.mark.parametrize("estimator", ["double-cv-4", "arm", "disarm", "rloo-4", "arms-4"])
def test_gradients_of_every_estimator_in_lanes_equal_those_in_replay(estimator: str, monkeypatch) -> None:
    agree(perceptron, (16, 6), lambda m, _: Objective(m, examples=100, estimator=estimator), monkeypatch)


@pytest.mark.parametrize(("kind", "shape"), MODELS)
def test_gradients_of_every_model_in_lanes_equal_those_in_replay(kind, shape, monkeypatch) -> None:
    agree(kind, shape, lambda m, _: Objective(m, examples=100), monkeypatch)


@pytest.mark.parametrize(("kind", "shape"), MODELS)
def test_gradients_of_self_tuning_in_lanes_equal_those_in_replay(kind, shape, monkeypatch) -> None:
    def objective(model: nn.Module, x: Tensor) -> Objective:
        return Objective(model, SelfTuning(model, [(x,)], steps=100, plain=0.0, masks=3))

    agree(kind, shape, objective, monkeypatch)


# --------------------------------------------------------------------------------------------------------- functions

W, B, Y = torch.randn(6, 6), torch.randn(6), torch.randint(0, 6, (4,))
ATTENTION = nn.MultiheadAttention(6, 2, batch_first=True)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(x, W, B),
    "operator": lambda x: W[:4, :4] @ x @ W,
    "method": lambda x: x.matmul(W),
    "addmm": lambda x: torch.addmm(B, x, W),
    "baddbmm": lambda x: torch.baddbmm(B, x[None], W[None]),
    "einsum": lambda x: torch.einsum("bi,ij->bj", x, W),
    "tensordot": lambda x: torch.tensordot(x, W, 1),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.1])),
    "conv1d": lambda x: F.conv1d(x, torch.ones(2, 4, 3), torch.ones(2)),
    "conv1d of half": lambda x: F.conv1d(x.bfloat16(), torch.ones(2, 4, 3), torch.ones(2)),
    "conv3d": lambda x: F.conv3d(x[None, :, :, None, None], torch.ones(2, 4, 3, 1, 1)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "attention layer": lambda x: ATTENTION(x[None], x[None], x[None], need_weights=False)[0],
    "attention weights": lambda x: ATTENTION(x[None], x[None], x[None])[1],
    "softmax": lambda x: F.softmax(x.bfloat16(), -1),
    "cross entropy": lambda x: F.cross_entropy(x.bfloat16(), Y, reduction="none"),
    "squares": lambda x: F.mse_loss(x.bfloat16(), W[:4], reduction="none"),
    "logistic": lambda x: F.binary_cross_entropy_with_logits(x.bfloat16(), torch.ones(4, 6)),
    "product": lambda x: x.bfloat16().prod(-1),
    "sum": lambda x: x.bfloat16().sum(-1),
    "pseudo-inverse": lambda x: torch.pinverse(x.bfloat16()),  # made of products, which stay in float32 with it
    "power": lambda x: 2 ** x.bfloat16() + x.bfloat16() ** 2,
    "norm": lambda x: x.bfloat16().norm(dim=-1),
    "pooling": lambda x: F.max_pool3d(x.bfloat16()[None, :, :, None, None], (2, 1, 1)),
    "cat": lambda x: torch.cat([x.bfloat16(), W]),
    "batch norm": lambda x: F.batch_norm(x.bfloat16(), B, B**2, B, B),
    "batch norm of double": lambda x: F.batch_norm(x.double(), B.double(), B.double() ** 2),
    "layer norm": lambda x: F.layer_norm(x.bfloat16(), (6,), B, B),
    "instance norm": lambda x: F.instance_norm(x.bfloat16()[None], weight=B[:4], bias=B[:4]),
    "double": lambda x: F.linear(x.double(), W.double(), B.double()),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_in_lanes_have_the_precision_of_a_plain_call(name: str) -> None:
    function, x = FUNCTIONS[name], torch.randn(3, 4, 6)
    with half():
        alone = torch.stack([function(each) for each in x])
        with lane_autocast():
            together = torch.func.vmap(function)(x)
    assert together.dtype == alone.dtype
    assert_rounded_alike(together, alone)


def test_lists_of_autocast_agree_with_the_header_of_torch() -> None:
    """Its header has the order of every device but the CPU, whose functions are tried above."""
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    found = {
        name: set(re.findall(r"_\((\w+)", body))
        for name, body in re.findall(r"#define AT_FORALL_(\w+)\(_\)((?:.*\\\n)*.*)", header)
    }
    assert {"LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE", "PROMOTE"} <= set(found)
    assert found["LOWER_PRECISION_FP"] <= precision.LOWER
    assert found["PROMOTE"] <= precision.WIDEST
    assert not (found["FP32"] | found["FP32_SET_OPT_DTYPE"]) & (precision.LOWER | precision.WIDEST)
    listed = found["LOWER_PRECISION_FP"] | found["PROMOTE"] | found["FP32"] | found["FP32_SET_OPT_DTYPE"]
    assert listed <= precision._registered("cuda")
