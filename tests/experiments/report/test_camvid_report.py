"""CamVid records become a chapter, tables beside the paper's numbers and pictures; what does not fit is told with its file."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.camvid import chapter as camvid
from experiments.report import compose
from experiments.vision.camvid import CLASSES, PALETTE, Scenes
from lbdrop import DropoutError

LABELS = {"lbd": "LBD, a rate per layer", "mc": "MC dropout", "regular": "regular dropout"}


def record(method: str, seed: int, iou: float) -> dict[str, Any]:
    scores = {"accuracy": 0.9, "mean_iou": iou, "nll": 0.3, "brier": 0.1, "ece": 0.02, "pavpu_mean_entropy": 0.8, "pavpu_sweep": 0.85}  # fmt: skip
    return {
        "experiment": "camvid", "method": method, "label": LABELS[method], "seed": seed, "recipe": "fast",
        "protocol": "as ever", "settings": {"method": method, "seed": seed}, "provenance": {"commit": "abc"},
        "validation": scores, "test": scores, "class_iou": {name: None if name == "fence" else 0.5 for name in CLASSES},
        "pavpu_curve": {"t": [0.0, 0.5, 1.0], "pavpu": [0.2, 0.8, iou]},
        "reliability": {"confidence": [None, 0.75], "accuracy": [None, 0.7], "count": [0, 100]},
        "rates": {"middle.layers.0.dropout": {"mean": 0.25}, "middle.layers.1.dropout": {"mean": 0.15 + seed / 10}},
        "seconds": {"train": 60.0, "per_epoch": [4.0]}, "peak_bytes": 2**31,
    }  # fmt: skip


def scenes() -> Scenes:
    images = torch.zeros(6, 3, 8, 10, dtype=torch.uint8)
    images[:, 0] = 200
    return Scenes(images, torch.full((6, 8, 10), 11, dtype=torch.uint8), tuple("abcdef"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for method, seed, iou in (
        ("lbd", 0, 0.62),
        ("lbd", 1, 0.64),
        ("mc", 0, 0.6),
        ("mc", 1, 0.61),
        ("regular", 0, 0.58),
    ):
        path = tmp_path / f"fast-{method}-seed{seed}.json"
        path.write_text(json.dumps(record(method, seed, iou)))
    entropy = np.linspace(0, 2.4, 2 * 80).reshape(2, 8, 10).astype(np.float16)
    np.savez_compressed(
        tmp_path / "fast-lbd-seed0.npz", index=np.array([0, 5]), predicted=np.full((2, 8, 10), 3, np.uint8), entropy=entropy,
        mutual_information=entropy / 10,
    )  # fmt: skip
    return tmp_path


def test_rows_are_means_over_seeds_beside_the_papers_numbers(folder: Path) -> None:
    report = compose.compose([folder])
    found = report.parts["camvid"].files["table.md"].decode()
    line = next(line for line in found.splitlines() if line.startswith("| LBD"))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[:4] == ["LBD, a rate per layer", "2", "90.00 ± 0.00", "63.00 ± 1.00"]
    assert cells[-3:] == ["89.18", "60.42", "85.16"]
    assert "| LBD, a rate per layer | 0.200 to 0.250 | 60 ± 0 | 2.0 ± 0.0 |" in found
    assert (
        "Mean IoU, %, best first: LBD, a rate per layer 63.00 ± 1.00, MC dropout 60.50 ± 0.50, regular dropout 58.00."
        in found
    )
    assert "Mean IoU of LBD minus that of MC dropout, paired by seed: +2.50 ± 0.50 points (too few seeds)." in found
    summary = json.loads(report.parts["camvid"].files["summary.json"])
    assert summary["rows"]["lbd"]["class_iou"]["fence"] is None
    assert summary["rows"]["lbd"]["reliability"]["count"] == [0, 200]
    assert summary["caveats"] == ["A method has 1 seed: too few for an interval."]
    page = report.page()
    assert all(name in page for name in CLASSES)
    assert page.count("data:image/png;base64,") == 2


def test_pictures_show_input_truth_prediction_and_both_maps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Data:
        test = scenes()

    monkeypatch.setattr(camvid, "load", lambda path: Data)
    part = compose.compose([folder], folder).parts["camvid"]
    pixels = np.asarray(Image.open(io.BytesIO(part.files["scenes.png"])))
    assert pixels.shape == (2 * 4 + 6, (5 * 10 + 4 * 6) // 2, 3)  # at half size
    assert tuple(pixels[0, 0]) == (200, 0, 0)
    assert tuple(pixels[0, 8]) == PALETTE[11]
    assert tuple(pixels[0, 16]) == PALETTE[3]
    assert pixels[-1, 24 + 4].sum() > pixels[0, 24].sum()  # more entropy, more light
    assert "input, truth, prediction, entropy, mutual information" in "".join(s.html for s in part.chapter.sections)


def test_page_without_maps_says_so(folder: Path) -> None:
    (folder / "fast-lbd-seed0.npz").unlink()
    part = compose.compose([folder]).parts["camvid"]
    assert "scenes.png" not in part.files
    assert "No maps lie beside the records" in "".join(each.html for each in part.chapter.sections)


def test_wrong_record_or_map_is_an_error_with_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Data:
        test = Scenes(scenes().images[:3], scenes().labels[:3], tuple("abc"))

    monkeypatch.setattr(camvid, "load", lambda path: Data)
    with pytest.raises(DropoutError, match=r"fast-lbd-seed0.npz: want test images \[0, 5\] of \(8, 10\) pixels, got 3"):
        compose.compose([folder], folder)
    (folder / "fast-lbd-seed0.npz").write_bytes(b"broken")
    with pytest.raises(DropoutError, match="fast-lbd-seed0.npz: want maps of test images"):
        compose.compose([folder])
    wrong = record("mc", 0, 0.5)
    wrong["test"] = wrong["test"] | {"mean_iou": "high"}
    (folder / "fast-mc-seed0.json").write_text(json.dumps(wrong))
    with pytest.raises(DropoutError, match="fast-mc-seed0.json: want the record of a CamVid run with .*test.mean_iou"):
        compose.compose([folder])
    (folder / "fast-mc-seed0.json").write_text(json.dumps(record("mc", 0, 0.5) | {"recipe": "paper"}))
    with pytest.raises(DropoutError, match="recipes fast, paper are mixed"):
        compose.compose([folder])
