"""Every method trains from the common start and records everything; a run taken up again equals one that never stopped."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from experiments.camvid import measure, recipes, runs
from experiments.networks.tiramisu import Plan
from experiments.vision import segment
from experiments.vision.camvid import VOID, CamVid, Scenes
from experiments.vision.crops import Crops
from experiments.vision.train import _History
from lbdrop import Bound, Objective
from lbdrop.cli import app
from lbdrop.dropout import noise_layers
from lbdrop.errors import DropoutError

pytestmark = pytest.mark.process

SMALL = recipes.Settings(
    plan=Plan((1, 1, 1, 1, 1), 2, 4), crop=32, rounds=(recipes.Round(1, batch=3),), epochs=2, batch=3, samples=3, save_every=1,
    crop_scale=(1.0, 1.25), crop_lr=1e-2, rate_lr=0.1,
)  # fmt: skip


def scenes(count: int, seed: int) -> Scenes:
    """Three classes above each other, each of a colour, with noise and a void corner."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.zeros(count, 36, 44, dtype=torch.uint8)
    labels[:, 12:] = 3
    labels[:, 24:] = 8
    colours = torch.tensor([[200, 220, 250], [90, 90, 90], [160, 30, 30]])[(labels // 4).long()]
    noise = torch.randint(-30, 30, (count, 36, 44, 3), generator=generator)
    images = (colours + noise).clamp(0, 255).to(torch.uint8).permute(0, 3, 1, 2).contiguous()
    labels[:, :6, :6] = VOID
    return Scenes(images, labels, tuple(f"{seed}-{i}" for i in range(count)))


def data() -> CamVid:
    return CamVid(scenes(6, 0), scenes(2, 1), scenes(5, 2))


@pytest.fixture(scope="module")
def start() -> recipes.Start:
    return recipes.common_start(SMALL, data(), progress=False)


def numbers(records: list[dict]) -> list[object]:
    """What a run says, without how long it took."""
    return [(r["test"], r["validation"], r["rates"], [e["loss"] for e in r["history"]]) for r in records]


@pytest.mark.parametrize("method", recipes.METHODS)
def test_methods_continue_from_the_start_and_record_everything(method: str, start: recipes.Start) -> None:
    records, maps = recipes.run(replace(SMALL, method=method), data(), start, progress=False)
    assert [r["method"] for r in records] == [row.name for row in recipes.METHODS[method].rows] == list(maps)
    for record in records:
        json.dumps(record, allow_nan=False)
        assert set(record["test"]) == {
            "accuracy",
            "mean_iou",
            "nll",
            "brier",
            "ece",
            "pavpu_mean_entropy",
            "pavpu_sweep",
        }
        assert set(record["validation"]) == set(record["test"])
        assert len(record["class_iou"]) == 11
        assert record["class_iou"]["car"] is not None
        assert len(record["pavpu_curve"]["pavpu"]) == len(record["pavpu_curve"]["t"]) == 11
        assert sum(record["reliability"]["count"]) == 5 * (36 * 44 - 36)  # pixels that are not void
        assert len(record["rates"]) == 2
        assert len(record["start"]["losses"]) == record["start"]["epochs"] == 1
        learns = recipes.METHODS[method].layer.learns
        moved = any(abs(layer["mean"] - (0.05 if learns else 0.2)) > 1e-3 for layer in record["rates"].values())
        assert moved == learns
        found = maps[record["method"]]
        assert found["predicted"].shape == found["entropy"].shape == (4, 36, 44)
        disagree = bool((found["mutual_information"] > 0).any())
        assert disagree == (record["method"] != "regular")
        assert found["index"].tolist() == measure.chosen(5)


def test_common_start_fits_all_methods_and_leaves_their_rates(start: recipes.Start) -> None:
    for method, each in recipes.METHODS.items():
        network = recipes.build(replace(SMALL, method=method))
        found = network.load_state_dict(start.state, strict=False)
        assert not found.unexpected_keys
        assert found.missing_keys == [f"middle.layers.{i}.dropout.logit" for i in range(2)]
        rate = 0.05 if each.layer.learns else 0.2
        assert [layer.p for layer in noise_layers(network).values()] == pytest.approx([rate, rate])
    kernels = [value for name, value in start.state.items() if value.dim() > 1]
    assert {value.dtype for value in kernels} == {torch.bfloat16}


def test_method_continues_from_the_starts_weights_under_the_bound_of_all_pixels(
    start: recipes.Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[dict[str, Tensor], segment.Segmenter]] = []
    groups: list[tuple[float, float, float]] = []
    settle, step = segment.Segmenter._settle, segment.Segmenter._step

    def settled(self: segment.Segmenter, x: Tensor, y: Tensor) -> None:
        seen.append(({name: value.clone() for name, value in self.network.state_dict().items()}, self))
        settle(self, x, y)

    def stepped(self: segment.Segmenter, x: Tensor, y: Tensor) -> Tensor:
        factor = self.schedule.factor(len(groups) // 3, self.steps)
        groups.extend((group["lr"], group["base_lr"], factor) for group in self._groups())
        return step(self, x, y)

    monkeypatch.setattr(segment.Segmenter, "_settle", settled)
    monkeypatch.setattr(segment.Segmenter, "_step", stepped)
    recipes.run(SMALL, data(), start, progress=False)
    ((state, module),) = seen
    assert all(torch.equal(state[name], value.to(state[name].dtype)) for name, value in start.state.items())
    assert module.objective is not None
    assert isinstance(module.objective.rule, Bound)
    assert module.objective.rule.weight == pytest.approx(1 / (36 * 44))
    # Weights, rates and kernels, two epochs of two steps: all follow the schedule.
    assert {base for _, base, _ in groups} == {SMALL.lr, SMALL.rate_lr, SMALL.kernel_lr}
    assert len(groups) == 3 * 4
    assert all(lr == pytest.approx(base * factor) for lr, base, factor in groups)


class Stopped(Exception):
    pass


@pytest.mark.parametrize(("recipe", "method"), [("fast", "lbd"), ("paper", "mc")])
def test_resumed_run_equals_an_uninterrupted_one(
    recipe: str, method: str, start: recipes.Start, tmp_path: Path
) -> None:
    settings = replace(SMALL, method=method, optimizer=recipes.RECIPES[recipe].get("optimizer", SMALL.optimizer))
    whole = recipes.run(settings, data(), start, checkpoints=tmp_path / "whole", progress=False)
    real = _History.on_train_epoch_start

    def stop(self, trainer, module):
        if trainer.current_epoch == 1:
            raise Stopped
        real(self, trainer, module)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_History, "on_train_epoch_start", stop)
        with pytest.raises(Stopped):
            recipes.run(settings, data(), start, checkpoints=tmp_path / "parts", progress=False)
    again = recipes.run(settings, data(), start, checkpoints=tmp_path / "parts", progress=False)
    assert numbers(again[0]) == numbers(whole[0])
    assert all(torch.equal(again[1][row][name], maps[name]) for row, maps in whole[1].items() for name in maps)
    assert [epoch["epoch"] for epoch in again[0][0]["history"]] == [0, 1]


def test_checkpoint_of_the_whole_network_takes_less_than_60_mib(tmp_path: Path) -> None:
    """Kernels, and the two moments that AdamW alone would keep of each, in bfloat16; under Muon it is one."""
    network = recipes.build(recipes.Settings())
    optimizer = torch.optim.AdamW(network.parameters())
    for p in network.parameters():
        optimizer.state[p] = {"step": torch.ones(()), "exp_avg": torch.ones_like(p), "exp_avg_sq": torch.ones_like(p)}
    schedule = segment.SegmentationSchedule(1, 1e-3, 1e-3)
    module = segment.Segmenter(network, None, schedule, 1, 0)
    with torch.no_grad():
        network.head.weight.fill_(1 / 3)
    checkpoint = {"state_dict": module.state_dict(), "optimizer_states": [optimizer.state_dict()]}
    module.on_save_checkpoint(checkpoint)
    torch.save(checkpoint, tmp_path / "last.ckpt")
    assert (tmp_path / "last.ckpt").stat().st_size < 60 * 2**20
    # Training goes on from what was kept, and rates are kept in full.
    kept = checkpoint["state_dict"]["network.head.weight"]
    assert kept.dtype == torch.bfloat16
    assert torch.equal(network.head.weight, kept.float())
    assert checkpoint["state_dict"]["network.middle.layers.0.dropout.logit"].dtype == torch.float32


def test_paper_recipe_is_the_published_one() -> None:
    paper = replace(recipes.Settings(recipe="paper"), **recipes.RECIPES["paper"])
    assert (paper.batch, paper.epochs, paper.lr, paper.optimizer, paper.rate, paper.samples, paper.estimator) == (1, 700, 1e-4, "rmsprop", 0.2, 10, "arm")  # fmt: skip
    assert paper.rounds == ()
    assert (paper.kl_weight, paper.prior_keep, paper.start_rate, paper.crop_optimizer) == (1.0, 0.5, 0.2, "adamw")
    schedule = segment.SegmentationSchedule(700, 1e-4, 1e-3, optimizer="rmsprop")
    factors = [schedule.factor(step, 700 * 367) for step in (0, 366, 367, 700 * 367 - 1)]
    assert factors == pytest.approx([1, 1, 0.995, 0.995**699])


def test_image_loss_is_the_mean_over_pixels_that_are_not_void() -> None:
    class Says(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return logits

    logits = torch.randn(2, 11, 4, 4)
    labels = torch.randint(0, 11, (2, 4, 4))
    labels[0, :2] = VOID
    labels[1] = VOID
    found = segment.image_losses(Says(), torch.rand(2, 3, 4, 4), labels)
    want = torch.nn.functional.cross_entropy(logits[:1, :, 2:], labels[:1, 2:])
    assert found.tolist() == pytest.approx([float(want), 0.0])


def test_re_estimated_statistics_are_those_of_the_state_that_predicts() -> None:
    torch.manual_seed(0)
    network = recipes.build(replace(SMALL, method="mc"))
    images = torch.rand(4, 3, 36, 44)
    segment.re_estimate(network, [images], sampled=False)
    assert network.training
    seen: list[Tensor] = []
    network.down[0].block.layers[0].norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    network.eval()(images)
    mean = network.down[0].block.layers[0].norm.running_mean
    assert torch.allclose(mean, seen[0].mean((0, 2, 3)), atol=1e-5)
    # By the images' own statistics a network of these statistics says the same.
    from experiments.networks.tiramisu import batch_statistics

    with batch_statistics(network), torch.no_grad():
        own = network(images)
    assert torch.allclose(own, network(images), atol=0.05 * float(own.abs().max()))


def test_command_goes_from_files_to_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import experiments.vision.camvid as reader

    monkeypatch.setattr(reader, "load", lambda path: data())
    fields = ("plan", "crop", "rounds", "epochs", "batch", "samples", "crop_scale")
    monkeypatch.setitem(recipes.RECIPES, "fast", {name: getattr(SMALL, name) for name in fields})
    monkeypatch.setattr(recipes, "TABLE", ("concrete", "mc"))
    call = ["reproduce", "camvid", "--method", "all", "--seeds", "1", "--epochs", "1", "--out", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    names = ["fast-concrete-seed0", "fast-mc-seed0", "fast-regular-seed0"]
    for suffix in (".json", ".npz"):
        assert sorted(file.stem for file in (tmp_path / "runs").glob(f"*{suffix}")) == names
    assert CliRunner().invoke(app, call).output.count("there already") == 2
    some = [
        "reproduce",
        "camvid",
        "--method",
        "mc, lbd",
        "--seed",
        "3",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "some"),
    ]
    done = CliRunner().invoke(app, some)
    assert done.exit_code == 0, done.output
    assert sorted(file.stem for file in (tmp_path / "some").glob("*.json")) == [
        f"fast-{row}-seed3" for row in ("lbd", "mc", "regular")
    ]
    wrong = CliRunner().invoke(app, ["reproduce", "camvid", "--method", "lbd,magic", "--out", str(tmp_path)])
    assert wrong.exit_code == 1
    assert "want one of lbd" in wrong.output


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    schedule = segment.SegmentationSchedule(1, 1e-3, 1e-3)
    with pytest.raises(DropoutError, match="processes: want 1 to train a segmentation network, got 2; start it alone"):
        segment.Segmenter(recipes.build(SMALL), None, schedule, 1, 0)


@pytest.mark.parametrize("method", recipes.METHODS)
def test_step_makes_no_tensor_from_host_numbers(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A CUDA graph cannot record the copy of such a tensor to the device.
    settings = replace(SMALL, method=method)
    network = recipes.build(settings)
    rule = Bound(network, 6, prior_keep=settings.prior_keep, weight=settings.kl_weight)
    objective = Objective(network, rule, check=False, **recipes.draws(settings, network))
    schedule = segment.SegmentationSchedule(1, 1e-3, 1e-3, optimizer="muon")
    module = segment.Segmenter(network, objective, schedule, 2, 0)
    optimizers = module.configure_optimizers()
    monkeypatch.setattr(module, "_optimizers", lambda: optimizers)
    x, y = next(iter(Crops(data().train, 3, generator=torch.Generator().manual_seed(0))))
    module._settle(x, y)
    module._step(x, y)  # the first one sets the optimiser up
    before = [value.detach().clone() for value in network.parameters()]

    def refused(*args: object, **kwargs: object) -> Tensor:
        raise AssertionError("a tensor was made from numbers of the host")

    for name in ("tensor", "as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, refused)
    module._step(x, y)
    assert any(not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))


def test_rounds_of_a_start_run_in_order_and_are_saved_one_by_one(tmp_path: Path) -> None:
    two = replace(SMALL, rounds=(recipes.Round(1, batch=3), recipes.Round(2, batch=2, jitter=0.1)))
    first = recipes.common_start(two, data(), progress=False)
    second = recipes.common_start(two, data(), first, progress=False)
    assert (first.rounds, second.rounds) == (1, 2)
    assert (len(first.history), len(second.history)) == (1, 3)
    kept = runs.Starts(data(), tmp_path)
    found = kept.of(two)
    assert found is not None
    assert {file.name for file in tmp_path.glob("*.pt")} == {"fast-start1-seed0.pt", "fast-start2-seed0.pt"}
    (tmp_path / "fast-start2-seed0.pt").unlink()
    again = runs.Starts(data(), tmp_path).of(two)
    assert again is not None
    assert all(torch.equal(again.state[name], value) for name, value in found.state.items())
    with pytest.raises(DropoutError, match="want a start with"):
        runs.Starts(data(), tmp_path).of(replace(two, crop_lr=0.5))
