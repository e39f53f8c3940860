"""CIFAR-10 on VGG19 with every dropout scheme: one run is one function, one record, one JSON.

``paper`` is the published recipe; ``fast`` reaches its accuracy in well under a minute on one H200 and is the same for
every method. Validation images choose, test images are used once.
"""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.cifar10.record import METHODS
from experiments.networks.vgg import VGG
from experiments.rival_rules.self_tuning import SelfTuning
from experiments.vision.batches import Batches, as_input
from experiments.vision.cifar10 import Images
from experiments.vision.corruptions import corrupt
from experiments.vision.train import Schedule, fit
from lbdrop import Objective, Predictive, predict
from lbdrop.dropout import NoiseLayer, learned_layers, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.io.records import provenance
from lbdrop.metrics import calibration, detection, pavpu

__all__ = ["GRID", "METHODS", "RECIPES", "Settings", "contestants", "run"]


GRID = sorted(METHODS["mc"].starts)
CORRUPTIONS = ("gaussian noise", "gaussian blur", "jpeg")
FOREIGN = "Tiny-ImageNet validation without overlapping classes"


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run's numbers."""

    method: str = "lbd-unit"
    seed: int = 0
    recipe: str = "fast"
    rate: float = 0.1
    """The fixed rate, or the one a learned rate starts from; self-tuned ones start where their rule finds it."""
    size: int = 96
    batch: int = 256
    epochs: int = 5
    lr: float = 1e-4
    rate_lr: float = 1e-2
    estimator: str = "double-cv-8"
    masks: int = 8
    """Through how many masks weights are trained, in rows that learn no rate by them: nearly free behind VGG's convolutions."""
    look_every: int = 4
    """Training steps from one measurement on validation images to the next, where rates follow them."""
    constant_lr: bool = False
    augment: bool = True
    pool: int = 3
    width: int = 4096
    depth: int = 19
    samples: int = 10
    validation: int = 5_000

    @property
    def name(self) -> str:
        """The file a run is kept in."""
        return f"{self.recipe}-{self.method}-{self.rate:g}-seed{self.seed}"

    def check(self) -> "Settings":
        if self.method not in METHODS:
            raise DropoutError(f"method: want one of {', '.join(METHODS)}, got {self.method!r}")
        if self.recipe not in RECIPES:
            raise DropoutError(f"recipe: want one of {', '.join(RECIPES)}, got {self.recipe!r}")
        return self


RECIPES: dict[str, dict[str, Any]] = {
    "fast": {},
    "paper": {
        "size": 224, "batch": 64, "epochs": 300, "lr": 1e-5, "rate_lr": 1e-3, "constant_lr": True, "augment": False,
        "pool": 7, "rate": 0.5,
    },
}  # fmt: skip


def contestants(base: Settings, seeds: int) -> Iterator[Settings]:
    """The whole table: every method from each of its rates, seed by seed."""
    for seed in range(seeds):
        for name, method in METHODS.items():
            yield from (replace(base, method=name, seed=seed, rate=rate) for rate in method.starts)


def run(
    settings: Settings,
    images: Images,
    *,
    weights: Path | None = None,
    foreign: Tensor | None = None,
    device: str | torch.device | None = None,
    checkpoints: Path | None = None,
    shifts: Mapping[str, Sequence[Tensor]] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train one network and measure everything.

    ``foreign`` are images of other classes and ``shifts`` corrupted test images (see :func:`corruptions`), as bytes.
    """
    settings.check()
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(settings.seed)
    split = images.split(settings.validation).to(device)
    network = build(settings, weights).to(device)
    if device.type == "cuda":
        network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    batches = Batches(
        split.train, split.train_labels, settings.batch, settings.size, train=True, augment=settings.augment,
        generator=torch.Generator().manual_seed(settings.seed),
    )  # fmt: skip
    objective = build_objective(settings, network, split, steps=settings.epochs * len(batches))
    rate_lr = settings.rate_lr * METHODS[settings.method].rate_speed
    schedule = Schedule(settings.epochs, settings.lr, rate_lr, constant=settings.constant_lr)
    start = time.perf_counter()
    history = fit(network, objective, batches, schedule, seed=settings.seed, checkpoints=checkpoints, progress=progress)
    trained = time.perf_counter()

    def predicted(pictures: Tensor) -> Predictive:
        return predictive_of(network, pictures, settings, device)

    validation = predicted(split.validation)
    start_test = time.perf_counter()
    test = predicted(split.test)
    test_seconds = time.perf_counter() - start_test
    assert validation.entropy is not None
    ends = float(validation.entropy.min()), float(validation.entropy.max())
    record: dict[str, Any] = {
        "experiment": "cifar10",
        "method": settings.method,
        "label": METHODS[settings.method].label,
        "seed": settings.seed,
        "recipe": settings.recipe,
        "settings": asdict(settings),
        "protocol": _protocol(settings, weights),
        "provenance": provenance(),
        "validation": measures(validation, split.validation_labels.cpu(), ends),
        "test": measures(test, split.test_labels.cpu(), ends),
        **curves(test, split.test_labels.cpu(), ends),
        "rates": {name: _rates(layer) for name, layer in noise_layers(network).items()},
        "seconds": {
            "train": trained - start,
            "per_epoch": [epoch["seconds"] for epoch in history],
            "predict": test_seconds,
        },
        "history": history,
        "ood": None,
        "corruptions": None,
    }
    if foreign is not None:
        record["ood"] = {"set": FOREIGN, "count": len(foreign), **out_of_distribution(test, predicted(foreign))}
    if shifts is not None:
        labels = split.test_labels.cpu()
        record["corruptions"] = {kind: [under(predicted(x), labels, i) for i, x in enumerate(levels, 1)]
                                 for kind, levels in shifts.items()}  # fmt: skip
    record["peak_bytes"] = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    return record


def build(settings: Settings, weights: Path | None) -> nn.Module:
    """The network with the method's dropout in both places; convolutions from ``weights`` if given."""
    method = METHODS[settings.method]
    shared: list[nn.Parameter] = []

    def dropout(units: int) -> NoiseLayer:
        start: dict[str, Any] = {"logit": shared[0]} if shared and method.per == "model" else {"rate": settings.rate}
        layer = method.layer(units if method.per == "unit" else None, **start)
        if isinstance(layer.logit, nn.Parameter):
            shared.append(layer.logit)
        return layer

    network = VGG(settings.depth, dropout=dropout, classes=10, width=settings.width, pool=settings.pool)
    if weights is not None:
        convolutions = _convolutions(settings.depth, weights)
        network.load_state_dict(copy.deepcopy(convolutions), strict=False)
    return network


def build_objective(settings: Settings, network: nn.Module, split: Any, steps: int) -> Objective:
    """The paper's bound, or rates that follow the validation images, which the grid is chosen on, in a run of ``steps``."""
    rule, examples = METHODS[settings.method].rule, len(split.train_labels)
    if rule == "self-tuning":
        held_out = Batches(
            split.validation, split.validation_labels, settings.batch, settings.size, train=True,
            generator=torch.Generator().manual_seed(settings.seed),
        )  # fmt: skip
        tuning = SelfTuning(
            network, held_out, steps=steps, examples=examples, every=settings.look_every, masks=settings.masks
        )
        return Objective(network, tuning)
    if learned_layers(network):
        return Objective(network, examples=examples, estimator=settings.estimator)
    return Objective(network, examples=examples, masks=settings.masks if rule == "masks" else 1)


@lru_cache(maxsize=1)
def _convolutions(depth: int, weights: Path) -> dict[str, Tensor]:
    """Read once for a whole table; a torchvision file's classifier has other shapes and starts fresh here."""
    fresh = () if weights.suffix == ".npz" else "classifier"
    network = VGG(depth, classes=10, width=8, pool=1).load(weights, fresh=fresh)
    return {name: value for name, value in network.state_dict().items() if not name.startswith("classifier")}


def predictive_of(network: nn.Module, pictures: Tensor, settings: Settings, device: torch.device) -> Predictive:
    """The predictive distribution of byte images, kept on the host."""
    loader = (as_input(part.to(device), settings.size) for part in pictures.split(1_000))
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
        return predict(network, loader, samples=settings.samples, keep_samples=False, progress=False)


# ---------------------------------------------------------------------------------------------------------- measuring


def measures(p: Predictive, labels: Tensor, ends: tuple[float, float]) -> dict[str, float]:
    """Every number of one set of images; ``ends`` are the smallest and largest entropy on validation images."""
    assert p.entropy is not None
    correct = p.mean.argmax(1) == labels
    values: dict[str, Tensor] = {
        "accuracy": calibration.accuracy(p.mean, labels),
        "nll": calibration.nll(p.mean, labels),
        "brier": calibration.brier(p.mean, labels),
        "ece": calibration.ece(p.mean, labels),
        "aurc": detection.aurc(p.entropy, correct),
        "pavpu_mean_entropy": pavpu.pavpu_at_mean_entropy(p.entropy, correct),
        "pavpu_sweep": pavpu.pavpu_over_sweep(p.entropy, correct, *ends),
    }
    if bool(correct.any()) and not bool(correct.all()):  # undefined where all are right or all wrong
        values["auroc_misclassification"] = detection.misclassification_auroc(p.entropy, correct)
    return {name: float(value) for name, value in values.items()}


def curves(p: Predictive, labels: Tensor, ends: tuple[float, float]) -> dict[str, Any]:
    """What the figures need: PAvPU over thresholds, reliability, and the images at both ends of certainty."""
    assert p.entropy is not None
    predicted = p.mean.argmax(1)
    thresholds = pavpu.sweep(*ends)
    swept = pavpu.pavpu_counts(p.entropy, predicted == labels, thresholds).pavpu
    bins = calibration.reliability_curve(p.mean, labels)
    order = p.entropy.argsort(stable=True).tolist()

    def shown(index: int) -> dict[str, Any]:
        entropy = float(p.entropy[index]) if p.entropy is not None else 0.0
        return {"index": index, "entropy": entropy, "predicted": int(predicted[index]), "truth": int(labels[index])}

    return {
        "pavpu_curve": {"t": torch.linspace(0, 1, len(swept)).tolist(), "pavpu": swept.tolist()},
        "reliability": {
            "confidence": _finite(bins.confidence),
            "accuracy": _finite(bins.accuracy),
            "count": bins.count.tolist(),
        },
        "certainty": {"least": [shown(i) for i in order[:-13:-1]], "most": [shown(i) for i in order[:12]]},
    }


def out_of_distribution(home: Predictive, away: Predictive) -> dict[str, float]:
    """How well two scores tell foreign images from test images."""
    result = {}
    for score in ("entropy", "mutual_information"):
        a, b = getattr(home, score), getattr(away, score)
        result[score] = float(detection.out_of_distribution_auroc(a, b))
    return result


def corruptions(images: Tensor) -> dict[str, list[Tensor]]:
    """Test images at the five severities of three corruptions: made once for all methods."""
    return {
        kind: [
            corrupt(images, kind.replace(" ", "_"), severity, torch.Generator(images.device).manual_seed(severity))
            for severity in range(1, 6)
        ]
        for kind in CORRUPTIONS
    }


def under(p: Predictive, labels: Tensor, severity: int) -> dict[str, float]:
    """Accuracy and calibration under a corruption."""
    accuracy, ece = calibration.accuracy(p.mean, labels), calibration.ece(p.mean, labels)
    return {"severity": severity, "accuracy": float(accuracy), "ece": float(ece)}


def _rates(layer: NoiseLayer) -> dict[str, Any]:
    rates = layer.rate.float().cpu()
    return {
        "mean": float(rates.mean()),
        "min": float(rates.min()),
        "max": float(rates.max()),
        "counts": torch.histc(rates, 20, 0, 1).int().tolist(),
    }


def _finite(values: Tensor) -> list[float | None]:
    return [float(v) if torch.isfinite(v) else None for v in values]


def _protocol(settings: Settings, weights: Path | None) -> str:
    """What every run of a table has in common; how a method learns its rates is in its label and settings."""
    start = "convolutions pretrained on ImageNet" if weights else "all weights fresh"
    rate_lr = settings.rate_lr * METHODS[settings.method].rate_speed
    return (
        f"VGG{settings.depth}, {start}, classifier fresh, {settings.size}×{settings.size} pixels, last map averaged to"
        f" {settings.pool}×{settings.pool}; {settings.epochs} epochs, batch {settings.batch}, Adam {settings.lr:g}"
        f" ({'constant' if settings.constant_lr else 'warm-up and cosine'}), rates {rate_lr:g},"
        f" {'shifts of 4 pixels and mirroring' if settings.augment else 'no augmentation'}; {settings.validation:,} train"
        f" images held out for validation; last epoch, {settings.samples} masks at test; {_objective(settings)}"
    )


def _objective(settings: Settings) -> str:
    rule = METHODS[settings.method].rule
    if rule == "self-tuning":
        return (
            f"weights minimise the mean loss through {settings.masks} masks a step; rates follow the loss of validation images,"
            f" looked at every {settings.look_every} steps, until two fifths of the steps, then stay, and these images are"
            " trained on as well, so that measures on them are of training images"
        )
    through = f" through {settings.masks} masks a step" if rule == "masks" else ""
    return f"every method minimises the mean loss{through} plus KL/N with s = 1"
