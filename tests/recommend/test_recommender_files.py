"""Files of a recommender are never half written, load to the same model, and damage is an error of one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from helpers.checkerboard import checkerboard
from helpers.sealing import reseal
from safetensors.torch import load_file, save_file

from lbdrop.errors import DropoutError
from lbdrop.recommend import Recommender


def test_scores_of_all_users_in_one_file_do_not_depend_on_batches(
    learned: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbdrop.recommend.answer.score_files.ROWS_IN_MEMORY", 100)  # six parts
    path = tmp_path / "new" / "scores.parquet"
    assert learned.score_to(path, k=5, batch=7) == 600
    found, expected = pl.read_parquet(path), learned.recommend(k=5)
    assert found.select("user_id", "item_id", "rank").equals(expected.select("user_id", "item_id", "rank"))
    assert np.allclose(found["score"], expected["score"], atol=1e-5)
    assert [each.name for each in path.parent.iterdir()] == ["scores.parquet"]


def test_failed_write_leaves_the_old_file(
    learned: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scores.parquet"
    learned.score_to(path, [0], k=2)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(OSError, match="no space"):
        learned.score_to(path, k=5)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["scores.parquet"]


def test_model_without_histories_takes_only_histories(learned: Recommender, tmp_path: Path) -> None:
    learned.save(tmp_path / "model", histories=False)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "items.parquet",
        "model.json",
        "weights.safetensors",
    ]
    loaded = Recommender.load(tmp_path / "model")
    with pytest.raises(DropoutError, match="saved without"):
        loaded.recommend([0])
    history = checkerboard().head(9)
    assert loaded.recommend(history, k=3).equals(learned.recommend(history, k=3))


def test_every_method_can_be_saved_and_loaded_after_an_epoch(tmp_path: Path) -> None:
    small: dict[str, Any] = {"hidden": 8, "latent": 4, "epochs": 1, "validation": 0, "progress": False}
    for name, more in {"vae-iaf": {"flow_hidden": 8}, "vae-vamp-drop": {}, "cdae": {}, "dae": {}, "sivae-gaussian": {},
                       "h-vamp": {}}.items():  # fmt: skip
        model = Recommender(name, **small, **more).fit(checkerboard())
        model.save(tmp_path / name)
        assert Recommender.load(tmp_path / name).recommend([0, 1], k=3).equals(model.recommend([0, 1], k=3)), name


def test_model_with_self_tuned_rates_of_an_earlier_version_answers_as_before(
    learned: Recommender, tmp_path: Path
) -> None:
    learned.save(tmp_path / "old")
    header, weights = tmp_path / "old" / "model.json", tmp_path / "old" / "weights.safetensors"
    content = json.loads(header.read_text())
    content["settings"] |= {"rule": "self-tuning", "offset_scale": 1.0, "settle": 1.0}
    header.write_text(json.dumps(content))
    save_file(load_file(weights) | {"encoder.head.response.stretch": torch.ones(1, 4)}, weights)
    as_format_1(tmp_path / "old")
    with pytest.warns(UserWarning, match="saved by an earlier version"):
        old = Recommender.load(tmp_path / "old")
    assert old.recommend(k=3).equals(learned.recommend(k=3))


@pytest.mark.parametrize("header", ['{"format": "layers-model", "modelTopology": {}}', "{}", "[1]", "not JSON", ""])
def test_folder_with_a_foreign_model_json_is_never_replaced(
    models: dict[str, Recommender], tmp_path: Path, header: str
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "model.json").write_text(header)  # TensorFlow.js names its models so
    (site / "app.ts").write_text("years of work")
    with pytest.raises(DropoutError, match="got something else"):
        models["ease"].save(site)
    assert (site / "model.json").read_text() == header
    assert (site / "app.ts").read_text() == "years of work"


def as_format_1(folder: Path) -> None:
    """As earlier versions wrote it."""
    header = json.loads((folder / "model.json").read_text())
    for name in ("kind", "versions", "files", "seal"):
        del header[name]
    (folder / "model.json").write_text(json.dumps(header | {"format": 1}))


def test_model_of_an_earlier_version_is_read_with_a_notice_and_replaced(
    models: dict[str, Recommender], tmp_path: Path
) -> None:
    models["ease"].save(tmp_path / "model")
    as_format_1(tmp_path / "model")
    with pytest.warns(UserWarning, match="saved by an earlier version of lbdrop, format 1, without all checksums"):
        assert "ease" in repr(Recommender.load(tmp_path / "model"))
    models["popularity"].save(tmp_path / "model")
    assert "popularity" in repr(Recommender.load(tmp_path / "model"))


def test_save_replaces_a_model_but_no_other_folder(
    models: dict[str, Recommender], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models["ease"].save(tmp_path / "model")
    models["popularity"].save(tmp_path / "model")
    assert "popularity" in repr(Recommender.load(tmp_path / "model"))
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(DropoutError, match="got notes.txt beside it"):
        models["ease"].save(tmp_path / "model")
    assert (tmp_path / "model" / "notes.txt").read_text() == "mine"
    (tmp_path / "model" / "notes.txt").unlink()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(DropoutError, match="got something else"):
        models["ease"].save(tmp_path / "mine")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(OSError, match="no space"):
        models["ease"].save(tmp_path / "model")
    assert "popularity" in repr(Recommender.load(tmp_path / "model"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "model"]


def edit(folder: Path, change: Any) -> None:
    header = json.loads((folder / "model.json").read_text())
    change(header)
    (folder / "model.json").write_text(json.dumps(header))


def reshaped(folder: Path) -> None:
    tensors = load_file(folder / "weights.safetensors")
    tensors["decoder.out.bias"] = tensors["decoder.out.bias"][:-1].clone()
    save_file(tensors, folder / "weights.safetensors")


def renamed(folder: Path) -> None:
    tensors = load_file(folder / "weights.safetensors")
    tensors["stranger"] = tensors.pop("decoder.out.bias")
    save_file(tensors, folder / "weights.safetensors")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda f: shutil.rmtree(f), "got no model.json there"),
        (lambda f: (f / "weights.safetensors").unlink(), "got no weights.safetensors there"),
        (lambda f: (f / "items.parquet").unlink(), "got no items.parquet there"),
        (lambda f: (f / "users.parquet").unlink(), "got no users.parquet there"),
        (lambda f: (f / "histories.safetensors").write_bytes(b"half"), "want ids of what is in histories.safetensors, got 120"),
        (lambda f: (f / "weights.safetensors").write_bytes(b"half"), "want ids of what is in weights.safetensors, got 36 for"),
        (lambda f: (f / "items.parquet").write_bytes(b"half"), "items.parquet: cannot be read"),
        (lambda f: (f / "model.json").write_text("{"), "model.json: want JSON"),
        (lambda f: (f / "model.json").write_text("[]"), "want a saved recommender, got something else"),
        (lambda f: edit(f, lambda h: h.update(format=3)), "want format 2, got 3, saved by lbdrop '0.1.0'; use that version"),
        (lambda f: edit(f, lambda h: h.pop("seed")), "want seed as it was saved"),
        (lambda f: edit(f, lambda h: h.update(items=7)), "36 items where model.json says 7"),
        (lambda f: edit(f, lambda h: h["settings"].update(hidden="x")), "model.json: hidden: want a whole number"),
        (lambda f: edit(f, lambda h: h["settings"].update(hidden=48)), "want .* of shape .*48"),
        (lambda f: edit(f, lambda h: h["settings"].update(hidden=10**12)), "want .* of shape .*1000000000000|overflowed"),
        (lambda f: edit(f, lambda h: h["settings"].update(dropout="all")), "dropout: want one of none"),
        (lambda f: edit(f, lambda h: h["settings"].update(magic=1)), "model.json: settings: no magic"),
        (lambda f: edit(f, lambda h: h["history"].update(magic=1)), "model.json: .*magic"),
        (lambda f: edit(f, lambda h: h.update(method="ease")), "model.json: ease: no"),
        (reshaped, "want decoder.out.bias of shape \\(36,\\), got \\(35,\\)"),
        (renamed, "want the tensor decoder.out.bias, got none"),
    ],
)  # fmt: skip
def test_damaged_folder_is_an_error_of_one_line(harm: Any, words: str, learned: Recommender, tmp_path: Path) -> None:
    learned.save(tmp_path / "model")
    harm(tmp_path / "model")
    reseal(tmp_path / "model")  # else its checksums say so
    with pytest.raises(DropoutError, match=words) as error:
        Recommender.load(tmp_path / "model")
    assert "\n" not in str(error.value)
