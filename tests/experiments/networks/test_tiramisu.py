"""FC-DenseNet has the published sizes, takes its dropout block by block and any image, and shares the way down among masks."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.networks.tiramisu import CommonDropout2d, FCDenseNet, Plan, batch_statistics
from lbdrop import DropoutError, LearnableDropout, Objective, Predictive, predict
from lbdrop.dropout import noise_layers
from lbdrop.passes import run as passes
from lbdrop.passes.drawer import IndependentMasks
from lbdrop.passes.run import run_lanes, run_replay

TINY = Plan((1, 1, 1, 1, 1), 2, 4)


def dropout(block: str, channels: int) -> nn.Module:
    return LearnableDropout(rate=0.2, channels=True) if block == "middle" else CommonDropout2d(0.2)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none").flatten(1).mean(1)


def count(blocks: tuple[int, ...], middle: int, growth: int, classes: int) -> int:
    """Parameters by hand: k×k convolution n→m has k²nm + m, BatchNorm of n has 2n."""
    layer = lambda n: 2 * n + 9 * n * growth + growth  # noqa: E731
    dense = lambda n, layers: sum(layer(n + i * growth) for i in range(layers))  # noqa: E731
    total, width, skips = 9 * 3 * 48 + 48, 48, []
    for layers in blocks:
        total += dense(width, layers)
        width += layers * growth
        skips.append(width)
        total += 2 * width + width * width + width
    total, new = total + dense(width, middle), middle * growth
    for layers, skip in zip(reversed(blocks), reversed(skips), strict=True):
        total += 9 * new * new + new + dense(new + skip, layers)
        width, new = new + skip + layers * growth, layers * growth
    return total + width * classes + classes


# ------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("depth", "plan", "parameters"),
    [
        (56, ((4,) * 5, 4, 12), 1_376_795),
        (67, ((5,) * 5, 5, 16), 3_463_243),
        (103, ((4, 5, 7, 10, 12), 15, 16), 9_322_091),
    ],
)
def test_parameter_counts_are_the_published_ones(depth: int, plan: tuple, parameters: int) -> None:
    with torch.device("meta"):
        model = FCDenseNet(depth, classes=11)
    assert sum(p.numel() for p in model.parameters()) == parameters == count(*plan, classes=11)


def test_concatenated_widths_of_103_are_the_published_ones() -> None:
    with torch.device("meta"):
        model = FCDenseNet(103)
    assert model.widths == [896, 1088, 816, 576, 384, 256]
    # What the last layer of a block reads, and what it adds to that.
    blocks = [model.middle, *(up.block for up in model.up)]
    assert [block.layers[-1].norm.num_features + 16 for block in blocks] == model.widths
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
    assert len(convolutions) == 103


def test_weights_start_he_uniform_from_the_generator() -> None:
    one, two = (FCDenseNet(56, plan=TINY, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one.head.weight, two.head.weight)
    weight = FCDenseNet(56).down[0].block.layers[3].conv.weight
    bound = (6 / (9 * weight.shape[1])) ** 0.5
    assert 0.95 * bound < weight.abs().max() <= bound
    assert float(weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    assert not one.head.bias.any()


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (45, 60), (63, 38)])
def test_output_has_the_size_of_the_input(size: tuple[int, int]) -> None:
    model = FCDenseNet(56, classes=5, plan=TINY).eval()
    assert model(torch.rand(1, 3, *size)).shape == (1, 5, *size)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(DropoutError, match="want one of 56, 67, 103, got 100"):
        FCDenseNet(100)
    with pytest.raises(DropoutError, match="void is not one"):
        FCDenseNet(56, classes=0)
    with pytest.raises(DropoutError, match="want a function of a block's name"):
        FCDenseNet(56, dropout=nn.Dropout(0.2))
    with pytest.raises(DropoutError, match="sides of at least 32, got"):
        FCDenseNet(56, plan=TINY)(torch.rand(1, 3, 31, 64))
    with pytest.raises(DropoutError, match="divide bytes by 255"):
        FCDenseNet(56, plan=TINY)(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    with pytest.raises(DropoutError, match="from 0 to below 1, got 1"):
        CommonDropout2d(1.0)


# ----------------------------------------------------------------------------------------------------------- dropout


def test_dropout_factory_gets_block_and_channels() -> None:
    made: list[tuple[str, int]] = []

    def note(block: str, channels: int) -> nn.Module:
        made.append((block, channels))
        return nn.Identity()

    with torch.device("meta"):
        FCDenseNet(103, dropout=note)
    assert made.count(("middle", 16)) == 15
    down = [block for block, _ in made if block.startswith("down")]
    assert [down.count(f"down.{i}") for i in range(5)] == [5, 6, 8, 11, 13]  # one more before each pooling
    assert [channels for block, channels in made if block == "down.0"] == [16] * 4 + [112]
    assert [[b for b, _ in made].count(f"up.{i}") for i in range(5)] == [12, 10, 7, 5, 4]


def test_middle_block_drops_whole_channels() -> None:
    model = FCDenseNet(56, plan=TINY, dropout=dropout)
    layer = model.middle.layers[0].dropout
    seen: list[Tensor] = []
    layer.register_forward_hook(lambda _, args, out: seen.append(out.detach() / args[0].detach()))
    model(torch.rand(8, 3, 64, 64))
    assert {round(float(v), 2) for v in seen[0].flatten()} == {0.0, 1.25}
    assert torch.allclose(seen[0].amax((2, 3)), seen[0].amin((2, 3)))


def test_common_dropout_keeps_the_mean_and_is_off_in_eval_mode() -> None:
    layer, x = CommonDropout2d(0.25), torch.ones(400, 50, 2, 2)
    y = layer(x)
    assert y.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert torch.equal(y.amax((2, 3)), y.amin((2, 3)))
    assert float(y.mean()) == pytest.approx(1, abs=0.02)
    assert layer.eval()(x) is x


def test_fixed_dropout_is_the_same_under_all_masks_of_a_step() -> None:
    """With masks that all keep everything, the losses of a step differ by nothing at all."""
    model = FCDenseNet(56, plan=TINY, dropout=dropout)
    with torch.no_grad():
        for layer in model.middle.layers:
            layer.dropout.logit.fill_(60.0)
    x, y = torch.rand(2, 3, 32, 40), torch.randint(0, 11, (2, 32, 40))
    objective = Objective(model, examples=10, estimator="rloo-2", coupled=True)
    found = objective.evaluation(lambda m: losses(m, x, y)).losses()
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], objective.evaluation(lambda m: losses(m, x, y)).losses()[0])


# ------------------------------------------------------------------------------------------------------ shared prefix


class Convolutions(TorchDispatchMode):
    """Counts convolutions by the number of channels they read, below all engines."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []
        self.channels_last: list[bool] = []
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            self.reads.append(args[0].shape[1])
            self.channels_last.append(args[0].is_contiguous(memory_format=torch.channels_last))
            self.dtypes |= {args[0].dtype, args[1].dtype}
        return func(*args, **(kwargs or {}))


def test_down_path_runs_once_for_all_masks_of_a_training_step() -> None:
    model = FCDenseNet(56, plan=TINY, dropout=dropout)
    x, y = torch.rand(2, 3, 32, 40), torch.randint(0, 11, (2, 32, 40))
    objective = Objective(model, examples=10, estimator="rloo-2", coupled=True)
    objective(losses, x, y)  # the engine is chosen
    with Convolutions() as ran:
        objective(losses, x, y).backward()
    once = 1 + 5 * 2  # the first, and a layer and a transition for each block
    assert ran.reads.count(3) == 1
    assert len(ran.reads) == once + 1 + 2 * (1 + 5 * 2 + 1)  # the first middle layer reads what no mask has touched


def test_down_path_runs_once_for_all_masks_of_a_prediction() -> None:
    model = FCDenseNet(56, plan=TINY, dropout=dropout)
    predict(model, torch.rand(2, 3, 32, 40), samples=1)  # a pass is counted, once for a model
    with Convolutions() as ran:
        predict(model, torch.rand(2, 3, 32, 40), samples=5)
    assert ran.reads.count(3) == 1
    assert len(ran.reads) == 11 + 2 + 5 * 2 + 1  # and what is behind the masks is one call for all of them


# --------------------------------------------------------------------------------------------------------- statistics


def test_normalisation_in_eval_mode_is_torchs() -> None:
    model = FCDenseNet(56, plan=TINY)
    norm = model.middle.layers[1].norm
    plain = nn.BatchNorm2d(norm.num_features)
    with torch.no_grad():
        for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            value.uniform_(0.5, 2)
    plain.load_state_dict(norm.state_dict())
    x = torch.randn(3, norm.num_features, 4, 5)
    assert torch.allclose(norm(x), plain(x), atol=1e-6)  # and so do the running statistics move
    assert torch.equal(norm.running_var, plain.running_var)
    norm.eval(), plain.eval()
    assert torch.allclose(norm(x), plain(x), atol=1e-6)
    with batch_statistics(model):
        assert torch.allclose(norm(x), plain.train()(x), atol=1e-5)
    assert norm.running_mean is not None


@pytest.mark.parametrize("own", [True, False])
def test_masks_run_together_equal_masks_run_one_by_one(own: bool) -> None:
    model = FCDenseNet(56, plan=TINY, dropout=dropout).eval()
    image, layers = torch.rand(1, 3, 64, 70), noise_layers(model).values()
    with batch_statistics(model) if own else nullcontext(), torch.no_grad():
        together, one_by_one = (
            engine(
                layers,
                lambda: model(image),
                3,
                IndependentMasks([torch.Generator().manual_seed(seed) for seed in range(3)]),
            )[0]
            for engine in (run_lanes, run_replay)
        )
    assert torch.allclose(together, one_by_one, atol=1e-4)
    assert not torch.allclose(one_by_one[0], one_by_one[1], atol=1e-3)


def test_lane_maps_keep_the_layout_of_one_image() -> None:
    model = FCDenseNet(56, plan=TINY, dropout=dropout).to(memory_format=torch.channels_last)
    image = torch.rand(2, 3, 40, 50).contiguous(memory_format=torch.channels_last)
    with Convolutions() as ran:
        predict(model, image, samples=3)
    assert all(ran.channels_last)


@pytest.mark.parametrize("own", [True, False])
def test_masks_under_autocast_run_together_with_the_same_outputs(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    strong = lambda block, _: nn.Identity() if "down" in block else LearnableDropout(rate=0.5, channels=True)  # noqa: E731
    model = FCDenseNet(56, plan=TINY, dropout=strong).to(memory_format=torch.channels_last).eval()
    image = torch.rand(2, 3, 40, 50).contiguous(memory_format=torch.channels_last)
    other = torch.Generator().manual_seed(0)
    seeds = torch.randint(2**62, (3,), generator=other.clone_state()).tolist()
    one = [torch.Generator().manual_seed(seed) for seed in seeds]
    layers = noise_layers(model).values()
    with torch.autocast("cpu", dtype=torch.bfloat16), batch_statistics(model) if own else nullcontext():
        with torch.no_grad():
            one_by_one = Predictive.of(run_replay(layers, lambda: model(image), 3, IndependentMasks(one))[0])
        monkeypatch.setattr(passes, "run_replay", None)
        predict(model, image, samples=1, generator=other.clone_state())  # a pass is counted, once for a model
        with Convolutions() as ran:
            together = predict(model, image, samples=3, generator=other)
    assert ran.dtypes == {torch.bfloat16}
    assert all(ran.channels_last)
    assert len(ran.reads) == 11 + 2 + 5 * 2 + 1
    assert together.samples is not None
    assert one_by_one.samples is not None
    torch.testing.assert_close(together.samples, one_by_one.samples, rtol=2**-5, atol=2**-6)
    assert (one_by_one.samples[0] - one_by_one.samples[1]).abs().max() > 2**-3  # or any masks would do
