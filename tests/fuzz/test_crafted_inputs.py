"""Inputs made to do harm, each by a way that was found: refused in one line that names the place, or shown as plain text."""

import io
import json
import os
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from typer.testing import CliRunner

from benchmarks.fuzz import READERS, check
from benchmarks.fuzz_changes import HOSTILE, Files
from experiments.archives import read_npz
from experiments.vision.batches import Batches
from experiments.vision.train import Schedule, fit
from lbdrop.cli import app
from lbdrop.errors import DropoutError
from lbdrop.io.manifest import sealed


def files(name: str) -> Files:
    return Files(READERS[name].files())


def edited(content: bytes, **changes: Any) -> bytes:
    return json.dumps(json.loads(content) | changes).encode()


# ---------------------------------------------------------------------------------------------------- a model's folder

EASE, SIVAE = "model folder: EASE", "model folder: SIVAE"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"library": "os.path"}, "model.json: want a library of dataframes, got 'os.path'"),  # it would be imported
        ({"library": "subprocess"}, "want a library of dataframes"),
        ({"seed": 10**19}, "seed: want"),
        ({"seed": True}, "want seed as it was saved, got True"),
        ({"items": 10**15}, "10 items where model.json says"),
        ({"at_least": float("nan")}, "at_least"),
        ({"settings": {"regularisation": -1}}, "regularisation: want more than 0"),
        ({"settings": {"dtype": "save"}}, "dtype: want float32 or float64"),
        ({"method": "__class__"}, "model.json: "),
    ],
)
def test_header_that_asks_for_more_than_a_model_is_refused(changes: dict[str, Any], said: str) -> None:
    found = files(EASE)
    assert said in check(EASE, found | {"model.json": edited(found["model.json"], **changes)})


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("layers", 10**9, "want layers of at most"),
        ("flows", 10**9, "flows"),
        ("samples", 10**12, "want samples of at most 10,000"),
        ("hidden", 10**15, "want"),
        ("latent", 10**9, "want encoder"),
        ("pseudo_inputs", 2.5, "pseudo_inputs: want a whole number"),
        ("encoder", "os", "encoder: want one of"),
        ("rate", float("inf"), "rate: want a finite number"),
    ],
)
def test_settings_that_would_cost_days_or_gigabytes_are_refused_at_once(setting: str, value: Any, said: str) -> None:
    found = files(SIVAE)
    settings = json.loads(found["model.json"])["settings"] | {setting: value}
    assert said in check(SIVAE, found | {"model.json": edited(found["model.json"], settings=settings)})


@pytest.mark.parametrize("history", [{}, {"epochs": [1], "best": None}, {"epochs": [], "best": 7, "stopped": False}])
def test_history_of_another_form_is_refused(history: dict[str, Any]) -> None:
    found = files(SIVAE)
    assert "model.json: cannot be read" in check(
        SIVAE, found | {"model.json": edited(found["model.json"], history=history)}
    )


@pytest.mark.parametrize("tensor", [torch.full((10, 10), float("nan")), torch.ones(10, 10, dtype=torch.int64),
                                    torch.ones(10, 10, dtype=torch.float8_e4m3fn)])  # fmt: skip
def test_weights_that_are_not_finite_floats_are_refused(tensor: torch.Tensor) -> None:
    said = check(EASE, files(EASE) | {"weights.safetensors": save({"weights": tensor})})
    assert "want weights of finite float32 or float64, got torch." in said


def test_safetensors_header_that_lies_is_refused() -> None:
    found = files(EASE)
    for size in (2**63, 2**40, len(found["weights.safetensors"])):
        said = check(EASE, found | {"weights.safetensors": struct.pack("<Q", size) + found["weights.safetensors"][8:]})
        assert "weights.safetensors: cannot be read" in said
    header = {"weights": {"dtype": "F32", "shape": [10, 10], "data_offsets": [0, 400]},
              "other": {"dtype": "F32", "shape": [10, 10], "data_offsets": [200, 600]}}  # fmt: skip
    text = json.dumps(header).encode()
    overlapping = struct.pack("<Q", len(text)) + text + bytes(600)
    assert "weights.safetensors: cannot be read" in check(EASE, found | {"weights.safetensors": overlapping})


def test_histories_and_likes_that_are_not_numbers_of_items_are_refused() -> None:
    found = files(EASE)
    histories = load(found["histories.safetensors"])
    for name, wrong in (("indices", histories["indices"].float()), ("indptr", histories["indptr"].flip(0)),
                        ("indices", histories["indices"] + 5), ("indptr", histories["indptr"][None])):  # fmt: skip
        said = check(EASE, found | {"histories.safetensors": save(histories | {name: wrong.contiguous()})})
        assert "histories.safetensors: cannot be read" in said
    made = io.BytesIO()
    pl.read_parquet(io.BytesIO(found["items.parquet"])).with_columns(likes=pl.lit(-1.0)).write_parquet(made)
    assert "items.parquet: cannot be read (likes that are not counts)" in check(
        EASE, found | {"items.parquet": made.getvalue()}
    )


# ------------------------------------------------------------------------------------------------------ prepared folders


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 7}, "want format 2, got 7"),
        ({"settings": {"held_out_users": -1, "seed": 0}}, "held_out_users -1"),
        ({"settings": {"held_out_users": 1, "seed": 2**40}}, "seed 1099511627776"),
        ({"settings": []}, "where a dict should be"),
        ({"name": {}}, "where a str should be"),
        (
            {"files": {"/dev/zero": {"bytes": 1, "sha256": "0"}}},
            "want names of its files",
        ),  # which would be read for ever
        ({"files": {"../likes.safetensors": {}}}, "want names of its files"),
        ({"files": 3}, "want names of its files"),
        ({"format": 1, "sha256": {"/dev/zero": "0"}}, "want names of its files"),
    ],
)
def test_forged_manifest_is_refused(changes: dict[str, Any], said: str) -> None:
    found = files("prepared folder")
    forged = found | {"manifest.json": sealed(json.loads(found["manifest.json"]) | changes)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the format
        assert said in check("prepared folder", forged, signed=False)


def test_changed_part_is_refused_by_its_checksum() -> None:
    found = files("prepared folder")
    forged = found | {"likes.safetensors": found["likes.safetensors"][:-1] + b"\x01"}
    assert "likes.safetensors: want what was saved, got another content" in check(
        "prepared folder", forged, signed=False
    )


# ------------------------------------------------------------------------------------------------------------- pickles


@pytest.mark.parametrize("name", ["VGG: .pth", "rates: .pth"])
@pytest.mark.parametrize("content", [HOSTILE, b"Q.", b"\x80\x02", b"PK\x03\x04"])
def test_pickle_in_the_place_of_weights_is_refused_and_does_not_run(name: str, content: bytes) -> None:
    (file,) = files(name)
    assert f"{file}: want" in check(name, Files({file: content}))


def test_pickle_among_cifar10_batches_is_refused_and_does_not_run() -> None:
    said = check("CIFAR-10: pickles", files("CIFAR-10: pickles") | {"data_batch_3": HOSTILE})
    assert "data_batch_3: want nothing but arrays in the pickle, got os.makedirs; do not open this file" in said


class Hostile:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.mark),))


def test_state_of_a_run_is_resumed_as_numbers_or_not_at_all(tmp_path: Path) -> None:
    images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    batches = Batches(images, torch.zeros(4, dtype=torch.int64), batch=4, train=True)

    def run(units: int = 2) -> list[dict[str, Any]]:
        network = nn.Sequential(nn.Flatten(), nn.Linear(3072, units))
        return fit(network, None, batches, Schedule(1, 0.1, 0.1), checkpoints=tmp_path / "s", progress=False)

    run()
    last = tmp_path / "s" / "last.ckpt"
    whole = last.read_bytes()
    with pytest.raises(
        DropoutError, match=r"last.ckpt: want the state of this run, got network.1.bias of shape \(2,\); delete it"
    ):
        run(units=3)
    torch.save({"state_dict": {}, "evil": Hostile(tmp_path / "was here")}, last)
    with pytest.raises(DropoutError, match="last.ckpt: want the state of a run, got .*; delete it to start anew"):
        run()
    for damaged in (whole[: len(whole) // 2], b"", HOSTILE):
        last.write_bytes(damaged)
        with pytest.raises(DropoutError, match="last.ckpt: want the state of a run"):
            run()
    assert sorted(os.listdir(tmp_path)) == ["s"]


# --------------------------------------------------------------------------------------------- what reaches a page or a screen

SCRIPT = "<script>alert('x')</script><img src=x onerror=alert(1)>"


def forged_strings(tree: Any, kept: set[str]) -> Any:
    """Every text that is not a word the reader looks for is a script; names of things, too."""
    if isinstance(tree, dict):
        return {key: value if key in kept else forged_strings(value, kept) for key, value in tree.items()}
    if isinstance(tree, list):
        return [forged_strings(each, kept) for each in tree]
    return SCRIPT if isinstance(tree, str) else tree


@pytest.mark.parametrize(
    "name", ["report: CIFAR-10", "report: recommenders", "report: rates", "report: toy", "report: benchmarks"]
)
def test_text_in_a_record_is_text_on_the_page(name: str, tmp_path: Path) -> None:
    kept = {"experiment", "method", "recipe", "dataset", "contestant", "task", "goal", "metric", "kind"}
    for file, content in files(name).items():
        (tmp_path / file).write_text(json.dumps(forged_strings(json.loads(content), kept)))
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.stderr
    page = (tmp_path / "out" / "index.html").read_text()
    assert "&lt;script&gt;alert" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_name_in_a_file_sends_no_escape_codes_to_the_terminal(tmp_path: Path) -> None:
    pl.DataFrame({"\x1b[2J\nuser": [1], "item_id": [2]}).write_parquet(tmp_path / "a.parquet")
    result = CliRunner().invoke(app, ["recommend", "fit", str(tmp_path / "a.parquet"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "\x1b" not in result.stderr


# ---------------------------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("value", [10**18, 1e300, -1, "1", None, [], {}, True])
@pytest.mark.parametrize("place", [("test", "nll"), ("seed",), ("rates", "classifier.2", "counts"), ("pavpu_curve", "t"),
                                   ("corruptions", "jpeg"), ("certainty", "least"), ("seconds", "per_epoch")])  # fmt: skip
def test_record_with_one_wrong_value_is_shown_or_refused_by_its_place(place: tuple[str, ...], value: Any) -> None:
    name, file = "report: CIFAR-10", "fast-lbd-unit-0.5-seed0.json"
    record = json.loads(files(name)[file])
    below = record
    for key in place[:-1]:
        below = below[key]
    below[place[-1]] = value
    said = check(name, Files({file: json.dumps(record).encode()}))
    assert said == "accepted" or ".".join(place) in said


def test_zip_bomb_in_the_place_of_titles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.collaborative.data import official_files

    monkeypatch.setattr(official_files, "SMALL", 50)
    assert "movies.csv: want at most 50 bytes of titles" in check("prepare: ml-20m.zip", files("prepare: ml-20m.zip"))
    monkeypatch.setattr(official_files, "TEXT", 500)
    assert "ratings.csv: want at most 500 bytes of ratings" in check(
        "prepare: ml-20m.zip", files("prepare: ml-20m.zip")
    )


def test_cifar10_parts_are_read_only_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.vision import cifar10

    read: list[Path] = []
    original = cifar10._npz
    monkeypatch.setattr(cifar10, "_npz", lambda path: (read.append(path), original(path))[1])
    found = files("CIFAR-10: .npz")
    many = Files({f"cifar10-{i}.npz": found["cifar10-1.npz"] for i in range(30)})
    assert "want 13 images, got 14; a part is missing or twice there" in check("CIFAR-10: .npz", many)
    assert len(read) == 2


def test_array_of_a_wrong_kind_is_refused_by_its_name() -> None:
    made = io.BytesIO()
    np.savez(made, user=np.zeros(3), item=np.zeros(3, int), rating=np.zeros(3), titles=np.array(["a"]))
    said = check("prepare: ml-1m.npz", Files({"ml-1m.npz": made.getvalue()}))
    assert "ml-1m.npz: want user as a vector of kind 'iu', got float64 of shape (3,)" in said


@pytest.mark.process
def test_demo_contestant_of_an_unhashable_kind_is_refused() -> None:
    record = json.loads(files("report: demo")["result.json"])
    record["contestants"][0]["kind"] = [1]
    assert "contestants[0].kind, got [1]" in check("report: demo", {"result.json": json.dumps(record).encode()})


@pytest.mark.parametrize(
    "maps",
    [
        {"entropy": np.float16(1)},
        {"entropy": np.full((2, 8, 10), np.nan, np.float16)},
        {"predicted": np.full((2, 8, 10), 99, np.uint8)},
        {"index": np.array([[0, 5]])},
        {"index": np.array([-1, 5])},
    ],
)
def test_maps_of_scenes_that_cannot_be_drawn_are_refused(maps: dict[str, Any]) -> None:
    found, made = files("report: CamVid"), io.BytesIO()
    arrays: dict[str, Any] = {**read_npz(io.BytesIO(found["fast-lbd-seed0.npz"])), **maps}
    np.savez(made, **arrays)
    assert "fast-lbd-seed0.npz: want maps of test images with" in check(
        "report: CamVid", found | {"fast-lbd-seed0.npz": made.getvalue()}
    )
