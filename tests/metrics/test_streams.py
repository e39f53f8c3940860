"""The torchmetrics classes equal their functions: batch by batch, merged, and over two processes."""

import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torchmetrics import Metric, MetricCollection

from experiments.camvid import streams as camvid
from lbdrop import metrics
from lbdrop.errors import DropoutError
from lbdrop.metrics import streams

VOID = 5
ROWS = [slice(0, 1), slice(1, 4), slice(4, 7)]  # batches of unequal size


def examples(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (7,), generator=generator)
    return torch.softmax(2 * torch.randn(7, 5, generator=generator), 1), labels


def images(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(6, (7, 6, 5), generator=generator)
    labels[0] = VOID  # a whole batch of void
    logits = torch.randn(7, 5, 6, 5, generator=generator)
    truth = torch.nn.functional.one_hot(labels.clamp(max=4), 5).movedim(-1, 1)
    return torch.softmax(2 * logits + 2 * truth, 1), labels


def calibration_of(probs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    rows = metrics.flatten(probs, labels, VOID)
    return {name: getattr(metrics, name)(*rows) for name in ("accuracy", "nll", "brier", "ece")}


def pavpu_of(entropy: torch.Tensor, correct: torch.Tensor) -> dict[str, torch.Tensor]:
    curve = metrics.pavpu_counts(entropy, correct, metrics.sweep(0.2, 1.2)).pavpu
    return {
        "pavpu_at_mean_entropy": metrics.pavpu_at_mean_entropy(entropy, correct),
        "pavpu_over_sweep": metrics.pavpu_over_sweep(entropy, correct, 0.2, 1.2),
        **{f"pavpu_t{k / 10:g}": curve[k] for k in range(11)},
    }


def example_pavpu_of(probs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    judged = metrics.judge(probs, labels)
    return pavpu_of(judged.entropy, judged.correct)


def patches_of(probs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    judged = metrics.judge(probs, labels, VOID)
    return metrics.patches(judged.entropy, judged.correct, 2, judged.valid)


def range_of(probs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    entropy, _ = patches_of(probs, labels)
    return {"lowest": entropy.min(), "highest": entropy.max()}


def misclassification_of(probs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    rows, truth = metrics.flatten(probs, labels, VOID)
    entropy, correct = metrics.predictive_entropy(rows), rows.argmax(1) == truth
    found = metrics.misclassification_auroc(entropy, correct)
    return {"misclassification_auroc": found, "aurc": metrics.aurc(entropy, correct)}


def iou_of(probs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    confusion = metrics.confusion_matrix(probs.argmax(1), labels, 5, VOID)
    whole = {"mean_iou": metrics.mean_iou(confusion), "pixel_accuracy": metrics.pixel_accuracy(confusion)}
    return whole | {f"iou_{name}": value for name, value in zip("abcde", metrics.class_iou(confusion), strict=True)}


Case = tuple[Callable[[], Metric], Callable[..., tuple[torch.Tensor, torch.Tensor]], Callable[..., dict[str, Any]]]
CASES: dict[str, Case] = {
    "Calibration": (camvid.Calibration, examples, calibration_of),
    "Calibration of pixels": (lambda: camvid.Calibration(void=VOID), images, calibration_of),
    "EntropyRange": (lambda: streams.EntropyRange(window=2, void=VOID), images, range_of),
    "PAvPU": (lambda: streams.PAvPU(0.2, 1.2), examples, example_pavpu_of),
    "PatchPAvPU": (lambda: streams.PatchPAvPU(0.2, 1.2, void=VOID), images, lambda *b: pavpu_of(*patches_of(*b))),
    "Misclassification": (lambda: streams.Misclassification(void=VOID), images, misclassification_of),
    "MeanIoU": (lambda: camvid.MeanIoU(5, VOID, names="abcde"), images, iou_of),
}


def assert_same(ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert {k: float(v) for k, v in ours.items()} == pytest.approx({k: float(v) for k, v in expected.items()})


def fed(metric: Any, data: tuple[torch.Tensor, torch.Tensor], rows: list[slice]) -> Any:
    for part in rows:
        metric.update(data[0][part], data[1][part])
    return metric


@pytest.mark.parametrize("name", CASES)
def test_stream_over_batches_equals_the_function_on_all_data(name: str):
    make, data, function = CASES[name]
    metric = make()
    assert_same(fed(metric, data(), ROWS).compute(), function(*data()))
    metric.reset()
    assert_same(fed(metric, data(1), ROWS).compute(), function(*data(1)))


@pytest.mark.parametrize("name", CASES)
def test_merged_streams_equal_the_whole_and_forward_gives_the_batch(name: str):
    make, data, function = CASES[name]
    one, other = fed(make(), data(), ROWS[:2]), fed(make(), data(), ROWS[2:])
    one.merge_state(other)
    assert_same(one.compute(), function(*data()))
    whole = make()
    assert_same(whole(*data()), function(*data()))
    assert_same(whole.compute(), function(*data()))


def _two(rank: int, folder: str) -> None:
    warnings.simplefilter("ignore")  # torchmetrics warns of the process that saw nothing, which is the point
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    results = {}
    for name, (make, data, _) in CASES.items():
        results[name] = fed(make(), data(), [ROWS[:2], ROWS[2:]][rank]).compute()
        results[f"{name}, all on one"] = fed(make(), data(), [[], ROWS][rank]).compute()
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.process
def test_streams_of_two_processes_equal_one_process(tmp_path: Path):
    mp.spawn(_two, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt")
        for name, (_, data, function) in CASES.items():
            assert_same(results[name], function(*data()))
            assert_same(results[f"{name}, all on one"], function(*data()))


def test_collection_holds_every_measure_of_a_classifier():
    both = MetricCollection([camvid.Calibration(), streams.PAvPU(0.2, 1.2), streams.Misclassification()])
    for part in ROWS:
        both.update(*(t[part] for t in examples()))
    expected = calibration_of(*examples()) | example_pavpu_of(*examples()) | misclassification_of(*examples())
    assert_same(both.compute(), expected)


def test_entropy_range_of_validation_sets_the_sweep():
    found = fed(streams.EntropyRange(), examples(), ROWS).compute()
    metric = fed(streams.PAvPU(**found), examples(), ROWS)
    accuracy = float(metrics.accuracy(*examples()))
    # At the largest entropy all are certain: PAvPU is the accuracy.
    assert float(metric.compute()["pavpu_t1"]) == pytest.approx(accuracy)


def test_score_replaces_the_entropy():
    probs, labels = examples()
    score = torch.arange(7).float()
    metric = streams.Misclassification()
    metric.update(probs, labels, score)
    expected = metrics.misclassification_auroc(score, probs.argmax(1) == labels)
    assert float(metric.compute()["misclassification_auroc"]) == pytest.approx(float(expected))


def test_half_precision_probabilities_are_summed_in_full_precision():
    probs, labels = images()
    metric = camvid.Calibration(void=VOID)
    metric.update(probs.bfloat16(), labels)
    expected = calibration_of(probs.bfloat16().float(), labels)
    assert_same(metric.compute(), expected)


@pytest.mark.usefixtures("without_type_checks")
def test_wrong_input_is_an_error_with_the_next_step():
    probs, labels = examples()
    refused = [
        (lambda: camvid.Calibration().update(2 * probs, labels), "softmax"),
        (lambda: streams.PAvPU(0.0, 1.0).update(probs, labels, probs[:, 0].mean()[None]), "one per batch"),
        (lambda: camvid.MeanIoU(4).update(probs, labels), "classes 0 to 3"),
        (lambda: camvid.MeanIoU(4, names=["road"]), "one for each of 4"),
        (lambda: streams.PAvPU(1.0, 0.0), "validation"),
        (lambda: streams.PAvPU(math.inf, -math.inf), "validation"),  # an EntropyRange that saw nothing
    ]
    for call, says in refused:
        with pytest.raises(DropoutError, match=says):
            call()
    with pytest.warns(UserWarning, match="before"), pytest.raises(DropoutError, match="call update first"):
        streams.Misclassification().compute()


@pytest.mark.process
def test_streams_without_torchmetrics_say_what_to_install():
    code = """
import sys
sys.modules["torchmetrics"] = None
import lbdrop.metrics
try:
    import lbdrop.metrics.streams
except ModuleNotFoundError as error:
    assert error.name == "torchmetrics" and "lbdrop[vision]" in str(error), error
else:
    raise SystemExit("imported")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
