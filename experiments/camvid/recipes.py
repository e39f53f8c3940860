"""CamVid on FC-DenseNet103 with every dropout scheme in its middle block: one run is one function and one JSON a row.

``paper`` is the published recipe. ``fast`` is for GPU minutes and the same for every method: a common start of each seed,
trained on crops with a fixed rate of .2 everywhere, from which every method goes on with whole images. Methods differ in the
middle block's dropout alone; validation images choose, test images are used once.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from experiments.camvid.measure import Prediction, evaluate, predicting
from experiments.camvid.record import METHODS, TABLE
from experiments.networks.tiramisu import CommonDropout2d, FCDenseNet, Plan
from experiments.vision.camvid import CLASSES, CamVid
from experiments.vision.crops import Crops
from experiments.vision.segment import SegmentationSchedule, Segmenter, compact
from experiments.vision.train import train
from lbdrop import Bound, Objective
from lbdrop.dropout import learned_layers, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.io.records import provenance

__all__ = ["METHODS", "RECIPES", "Round", "Settings", "Start", "build", "common_start", "contestants", "run"]


STATISTICS = ("batch", "running", "re-estimated")


class Round(NamedTuple):
    """Some epochs of the common start."""

    epochs: int
    batch: int = 4
    jitter: float = 0.2
    """How much the light of its images varies; what follows the last round has its jitter too."""


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run's numbers; as they stand, the recipe ``fast``."""

    method: str = "lbd"
    seed: int = 0
    recipe: str = "fast"
    depth: int = 103
    plan: Plan | None = None
    """Another network than that of the depth: for tests."""
    rate: float = 0.2
    """The fixed rate, and that of all dropouts elsewhere."""
    start_rate: float = 0.05
    """What a learned rate starts from."""
    crop: int = 224
    """Side of the crops of the common start."""
    rounds: tuple[Round, ...] = (Round(390),)
    """Of the common start on crops, each with a warm-up and a cosine of its own; none for no start."""
    crop_lr: float = 1e-3
    crop_kernel_lr: float = 0.02
    """Muon's, as :attr:`kernel_lr` is on whole images."""
    crop_scale: tuple[float, float] = (0.75, 1.5)
    """Crops are enlarged by a random factor between these."""
    epochs: int = 4
    """Epochs on whole images."""
    batch: int = 4
    lr: float = 2.5e-4
    kernel_lr: float = 0.005
    rate_lr: float = 2e-2
    weight_decay: float = 1e-4
    kernel_decay: float = 0.01
    """Muon's weight decay."""
    optimizer: Literal["adamw", "muon", "rmsprop"] = "muon"
    estimator: str = "rloo-2"
    kl_weight: float = 1.0
    """What the KL is multiplied by; at 1 it is the bound of all pixels: an image's loss is their mean, so the KL is divided by
    the number of pixels too, void ones counted."""
    prior_keep: float = 0.8
    """Keep rate of the masks' prior: what feeds a concatenation has no weights of its own."""
    samples: int = 10
    """Masks at test."""
    statistics: str = "re-estimated"
    """What BatchNorm normalises by at test: "batch", each image's own; "running"; or "re-estimated"."""
    save_every: int = 20
    """Epochs from one checkpoint to the next, where they are kept."""

    @property
    def crop_optimizer(self) -> Literal["adamw", "muon"]:
        """Of the common start: RMSProp is for the published schedule, which has none."""
        return "adamw" if self.optimizer == "rmsprop" else self.optimizer

    @property
    def jitter(self) -> float:
        """Of whole images."""
        return self.rounds[-1].jitter if self.rounds else 0.0

    @property
    def name(self) -> str:
        return f"{self.recipe}-{self.method}-seed{self.seed}"

    def check(self) -> "Settings":
        for what, value, known in (("method", self.method, METHODS), ("recipe", self.recipe, RECIPES),
                                   ("statistics", self.statistics, STATISTICS)):  # fmt: skip
            if value not in known:
                raise DropoutError(f"{what}: want one of {', '.join(known)}, got {value!r}")
        return self


RECIPES: dict[str, dict[str, Any]] = {
    "fast": {},
    "paper": {
        "rounds": (), "epochs": 700, "batch": 1, "lr": 1e-4, "rate_lr": 1e-3, "weight_decay": 0.0, "optimizer": "rmsprop",
        "estimator": "arm", "start_rate": 0.2, "prior_keep": 0.5, "save_every": 1,
    },
}  # fmt: skip


class Start(NamedTuple):
    """Where all methods of a seed go on from: a network's state and how it came about."""

    state: dict[str, Any]
    history: list[dict[str, Any]]
    rounds: int = 1
    """How many rounds it has had."""


def contestants(base: Settings, seeds: int) -> Iterator[Settings]:
    """The whole table, seed by seed."""
    for seed in range(seeds):
        for method in TABLE:
            yield replace(base, method=method, seed=seed)


def build(settings: Settings) -> FCDenseNet:
    """The network with the method's dropout in the 15 layers of its middle block, a fixed rate elsewhere."""
    layer = METHODS[settings.method].layer

    def dropout(block: str, channels: int) -> nn.Module:
        if block == "middle":
            return layer(rate=settings.start_rate if layer.learns else settings.rate, channels=True)
        return CommonDropout2d(settings.rate)

    return FCDenseNet(settings.depth, classes=len(CLASSES), dropout=dropout, plan=settings.plan)


def common_start(
    settings: Settings,
    data: CamVid,
    before: Start | None = None,
    *,
    checkpoints: Path | None = None,
    recorded: bool | None = None,
    progress: bool = True,
) -> Start:
    """The first round of training with fixed rates on crops, or the next one, once for all methods of a seed.

    ``data`` is on the device to train on.
    """
    index = before.rounds if before else 0
    this, seed = settings.rounds[index], settings.seed + 1000 * index
    torch.manual_seed(seed)
    plain = FCDenseNet(
        settings.depth, classes=len(CLASSES), dropout=lambda *_: CommonDropout2d(settings.rate), plan=settings.plan
    )
    network = _placed(plain, data)
    if before is not None:
        network.load_state_dict(before.state)
    crops = Crops(
        data.train, this.batch, settings.crop, scale=settings.crop_scale, jitter=this.jitter,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    schedule = SegmentationSchedule(
        this.epochs, settings.crop_lr, settings.rate_lr, optimizer=settings.crop_optimizer,
        weight_decay=settings.weight_decay, kernel_lr=settings.crop_kernel_lr, kernel_decay=settings.kernel_decay,
    )  # fmt: skip
    # No rate is learned and nothing is compared, so there is nothing for an objective to do.
    module = Segmenter(network, None, schedule, len(crops) * schedule.epochs, seed, recorded)
    history = train(module, crops, checkpoints=checkpoints, save_every=settings.save_every, progress=progress)
    state = {name: value.cpu() for name, value in compact(network.state_dict()).items()}
    return Start(state, [*(before.history if before else []), *history], index + 1)


def run(
    settings: Settings,
    data: CamVid,
    start: Start | None = None,
    *,
    checkpoints: Path | None = None,
    recorded: bool | None = None,
    progress: bool = True,
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Tensor]]]:
    """Train one network and measure everything: the record of each row, and maps of the chosen test images.

    Args:
        settings: what to run.
        data: the three splits, on the device to train on.
        start: the seed's common start; made here if the recipe has one and it is not given.
        checkpoints: folder for the state after every few epochs, from which an interrupted run goes on.
        recorded: whether steps are replayed as a CUDA graph; by default on a GPU.
        progress: show a bar.
    """
    settings.check()
    while len(settings.rounds) > (start.rounds if start else 0):
        start = common_start(settings, data, start, recorded=recorded, progress=progress)
    device = data.train.images.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(settings.seed)
    network = _placed(build(settings), data)
    if start is not None:  # whose dropouts have no state: rates are the method's own
        logits = {name: value for name, value in network.state_dict().items() if name.endswith("dropout.logit")}
        network.load_state_dict(start.state | logits)
    # Both masks of a step go through BatchNorm, so that losses of a batch are coupled: batch totals are the exact form.
    pixels = data.train.labels[0].numel()
    rule = Bound(network, len(data.train), prior_keep=settings.prior_keep, weight=settings.kl_weight / pixels)
    objective = Objective(network, rule, check=False, **draws(settings, network))
    generator = torch.Generator().manual_seed(settings.seed)
    whole = Crops(data.train, settings.batch, jitter=settings.jitter, generator=generator)
    schedule = SegmentationSchedule(
        settings.epochs, settings.lr, settings.rate_lr, optimizer=settings.optimizer, weight_decay=settings.weight_decay,
        kernel_lr=settings.kernel_lr, kernel_decay=settings.kernel_decay,
    )  # fmt: skip
    module = Segmenter(network, objective, schedule, len(whole) * schedule.epochs, settings.seed, recorded)
    began = time.perf_counter()
    history = train(module, whole, checkpoints=checkpoints, save_every=settings.save_every, progress=progress)
    seconds = {"train": time.perf_counter() - began, "per_epoch": [epoch["seconds"] for epoch in history],
               "start": sum(epoch["seconds"] for epoch in start.history) if start else 0.0}  # fmt: skip
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    records, maps = [], {}
    for row in METHODS[settings.method].rows:
        how = Prediction.of(settings, row.sampled)
        with predicting(network, data, how) as predict_images:
            validation = evaluate(predict_images, data.validation, how.batch)
            began = time.perf_counter()
            test = evaluate(predict_images, data.test, how.batch, validation.ends)
        records.append(
            {
                "experiment": "camvid",
                "method": row.name,
                "label": row.label,
                "seed": settings.seed,
                "recipe": settings.recipe,
                "settings": asdict(settings),
                "protocol": protocol(settings, data),
                "provenance": provenance(),
                "validation": validation.measures,
                "test": test.measures,
                "class_iou": test.class_iou,
                "pavpu_curve": test.pavpu_curve,
                "reliability": test.reliability,
                "rates": {name: {"mean": layer.p} for name, layer in noise_layers(network).items()},
                "seconds": {**seconds, "predict": time.perf_counter() - began},
                "peak_bytes": peak,
                "history": history,
                "start": start and {"epochs": len(start.history), "losses": [epoch["loss"] for epoch in start.history]},
            }
        )
        maps[row.name] = test.maps
    return records, maps


def draws(settings: Settings, network: nn.Module) -> dict[str, Any]:
    """How masks are drawn in a step: by the estimator of learned rates, or so many where no rate learns by one."""
    if learned_layers(network):
        return {"estimator": settings.estimator, "coupled": True}
    return {"masks": METHODS[settings.method].masks}


def protocol(settings: Settings, data: CamVid) -> str:
    """What every run of a table has in common."""
    network = f"FC-DenseNet{settings.depth}" if settings.plan is None else f"FC-DenseNet of {settings.plan}"
    rounds = " and ".join(
        f"{each.epochs} epochs (batch {each.batch}, jitter {each.jitter:g})" for each in settings.rounds
    )
    start = (
        f"a common start of each seed with rate {settings.rate:g} everywhere: {rounds} of {settings.crop}×{settings.crop}"
        f" crops at scales {settings.crop_scale[0]:g} to {settings.crop_scale[1]:g},"
        f" {_described(settings.crop_optimizer, settings, settings.crop_lr, settings.crop_kernel_lr)}; then "
        if settings.rounds
        else ""
    )
    return (
        f"{network}, He-uniform, masks in the middle block, {settings.rate:g} fixed elsewhere and off at test; {start}"
        f"{settings.epochs} epochs of whole images, batch {settings.batch},"
        f" {_described(settings.optimizer, settings, settings.lr, settings.kernel_lr)}, rates {settings.rate_lr:g} from"
        f" {settings.start_rate:g};"
        f" mirroring, jitter {settings.jitter:g};"
        f" {len(data.train)} train, {len(data.validation)} validation, {len(data.test)} test images; mean loss of an"
        f" image's pixels that are not void plus {settings.kl_weight:g} KL/({len(data.train)} images × their pixels),"
        f" prior keep {settings.prior_keep:g}, estimator {settings.estimator}; last epoch, {settings.samples} masks at test,"
        f" {settings.statistics} statistics"
    )


def _described(optimizer: str, settings: Settings, lr: float, kernel_lr: float) -> str:
    decay, kernel_decay = f"weight decay {settings.weight_decay:g}", f"weight decay {settings.kernel_decay:g}"
    return {
        "adamw": f"AdamW {lr:g} ({decay})",
        "muon": f"Muon {kernel_lr:g} ({kernel_decay}) for the kernels of dense layers and AdamW {lr:g} ({decay}) for the rest",
        "rmsprop": f"RMSProp {lr:g} (×.995 an epoch, {decay})",
    }[optimizer]


def _placed(network: FCDenseNet, data: CamVid) -> FCDenseNet:
    device = data.train.images.device
    if device.type == "cuda":
        return network.to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return network.to(device)
