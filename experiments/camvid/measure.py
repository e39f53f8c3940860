"""What a trained segmentation network is worth: every measure of one split, in one pass over its images."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from experiments.camvid.streams import Calibration, MeanIoU
from experiments.networks.tiramisu import batch_statistics
from experiments.vision.batches import as_input
from experiments.vision.camvid import CLASSES, VOID, CamVid, Scenes
from experiments.vision.segment import re_estimate
from lbdrop import Predictive, predict
from lbdrop.dropout import noise_layers
from lbdrop.metrics.streams import EntropyRange, PatchPAvPU

__all__ = ["Found", "Prediction", "chosen", "evaluate", "predicting"]

WINDOW = 2
PICTURES = 4
Predict = Callable[[Tensor], Predictive]


class Prediction(NamedTuple):
    """How to predict."""

    samples: int
    """Masks; 1, the deterministic pass, where a row predicts without them."""
    sampled: bool
    statistics: str
    batch: int
    seed: int

    @classmethod
    def of(cls, settings: Any, sampled: bool) -> "Prediction":
        # A batch's own statistics are those of one image: what an image is said to be must not depend on its neighbours.
        return cls(
            settings.samples if sampled else 1,
            sampled,
            settings.statistics,
            1 if settings.statistics == "batch" else settings.batch,
            settings.seed,
        )


class Found(NamedTuple):
    """Everything about one split."""

    measures: dict[str, float]
    class_iou: dict[str, float | None]
    ends: tuple[float, float]
    """The smallest and largest mean entropy of a window."""
    pavpu_curve: dict[str, list[float]]
    reliability: dict[str, list[float | None]]
    maps: dict[str, Tensor]


def chosen(count: int) -> list[int]:
    """The test images that pictures show: evenly spread over the split, so that nobody's eye picked them."""
    return sorted({round(i * (count - 1) / (PICTURES - 1)) for i in range(PICTURES)})


def evaluate(predict_images: Predict, scenes: Scenes, batch: int, ends: tuple[float, float] | None = None) -> Found:
    """Measure one split; ``ends`` are the validation split's, and its own where they are not given."""
    device = scenes.images.device
    calibration, overlap = Calibration(void=VOID).to(device), MeanIoU(len(CLASSES), VOID, CLASSES).to(device)
    # The sweep's ends may be known only after the last image; what it sweeps over is kept until then.
    reach, patches = EntropyRange(WINDOW, VOID).to(device), PatchPAvPU(0.0, 1.0, window=WINDOW, void=VOID).to(device)
    shown, kept = set(chosen(len(scenes))), []
    for first in range(0, len(scenes), batch):
        rows = slice(first, first + batch)
        p, labels = predict_images(scenes.images[rows]), scenes.labels[rows].long()
        for measure in (calibration, overlap, reach, patches):
            measure.update(p.mean, labels)
        kept += [_maps(p, i - first) | {"index": torch.tensor(i)} for i in shown & {*range(first, first + len(labels))}]
    found = {name: float(value) for name, value in (calibration.compute() | overlap.compute()).items()}
    span = {name: float(value) for name, value in reach.compute().items()}
    ends = ends or (span["lowest"], span["highest"])
    patches.thresholds = PatchPAvPU(*ends, window=WINDOW).thresholds
    swept = {name: float(value) for name, value in patches.compute().items()}
    curve = [value for name, value in swept.items() if name.startswith("pavpu_t")]
    return Found(
        {
            "accuracy": found["pixel_accuracy"],
            "mean_iou": found["mean_iou"],
            **{name: found[name] for name in ("nll", "brier", "ece")},
            "pavpu_mean_entropy": swept["pavpu_at_mean_entropy"],
            "pavpu_sweep": swept["pavpu_over_sweep"],
        },
        {name: value if (value := found[f"iou_{name}"]) == value else None for name in CLASSES},
        ends,
        {"t": [i / (len(curve) - 1) for i in range(len(curve))], "pavpu": curve},
        _reliability(calibration),
        {name: torch.stack([maps[name] for maps in kept]).cpu() for name in kept[0]},
    )


@contextmanager
def predicting(network: nn.Module, data: CamVid, how: Prediction) -> Iterator[Predict]:
    """A function from byte images to their predictive distribution; afterwards the network is as it was."""
    device = data.train.images.device
    layers = noise_layers(network).values()
    before = {name: value.clone() for name, value in network.named_buffers()}
    generator = torch.Generator(device).manual_seed(how.seed)

    def autocast() -> Any:
        return torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda")

    def placed(images: Tensor) -> Tensor:
        form = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        return as_input(images).contiguous(memory_format=form)

    def predict_images(images: Tensor) -> Predictive:
        with autocast():
            return predict(
                network, placed(images), samples=how.samples, keep_samples=False, progress=False, generator=generator
            )

    try:
        for layer in layers:
            layer.samples_at_test = how.sampled
        if how.statistics == "re-estimated":
            batches = (placed(part) for part in data.train.images.split(how.batch))
            with autocast():
                re_estimate(network, batches, sampled=how.sampled, generator=generator)
        with batch_statistics(network) if how.statistics == "batch" else nullcontext():
            yield predict_images
    finally:
        for layer in layers:
            del layer.samples_at_test
        for name, value in network.named_buffers():
            value.copy_(before[name])


def _maps(p: Predictive, i: int) -> dict[str, Tensor]:
    assert p.entropy is not None
    assert p.mutual_information is not None
    return {
        "predicted": p.mean[i].argmax(0).to(torch.uint8),
        "entropy": p.entropy[i].half(),
        "mutual_information": p.mutual_information[i].half(),
    }


def _reliability(calibration: Calibration) -> dict[str, list[float | None]]:
    count = calibration.bin_count
    means = {"confidence": calibration.bin_confidence / count, "accuracy": calibration.bin_right / count}
    finite = {name: [v if v == v else None for v in value.tolist()] for name, value in means.items()}
    return finite | {"count": count.long().tolist()}
