"""``lbdrop doctor``: what is there, what is missing and how to get it; ill only where something essential is broken."""

import json
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lbdrop.cli import app, doctor


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "120"})
    return result.exit_code, result.output


def findings() -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(command("--json")[1])["findings"]}


def test_doctor_finds_everything_essential_here():
    code, output = command()
    assert code == 0, output
    assert "healthy" in output
    found = findings()
    assert found["torch"]["found"] == torch.__version__
    assert found["Python"]["found"].startswith(platform.python_version())
    assert f"{torch.get_num_threads()} threads" in found["CPU"]["found"]
    assert found["a training step"]["status"] == "ok"
    assert tempfile.gettempdir() in found["temporary files"]["found"]
    assert found["commit"]["found"]
    assert {"extra demo", "extra recommend", "extra vision"} <= found.keys()


def test_json_is_complete_and_says_whether_it_is_healthy():
    code, output = command("--json")
    assert code == 0
    record = json.loads(output)
    assert record["healthy"] is True
    assert {tuple(each) for each in record["findings"]} == {("name", "status", "found", "advice")}


def test_missing_package_names_its_extras_and_the_command(monkeypatch: pytest.MonkeyPatch):
    lines = [
        "torch>=2.6",
        'no-such-package>=1.32; extra == "recommend"',
        "lbdrop[recommend]; extra == 'demo'",
        'rich ; extra == "vision"',
    ]
    monkeypatch.setattr(doctor, "requires", lambda package: lines)
    code, output = command()
    assert code == 0, output
    assert "no-such-package>=1.32 (not installed)" in output
    assert "pip install 'lbdrop[recommend]'" in output
    assert "1 optional part missing" in output
    assert findings()["extra vision"]["status"] == "ok"


def test_outdated_package_counts_as_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "requires", lambda package: ["polars>=1.32; extra == 'recommend'"])
    monkeypatch.setattr(doctor, "version_of", lambda package: "1.9.0")
    assert findings()["extra recommend"]["found"] == "polars>=1.32 (1.9.0)"
    monkeypatch.setattr(doctor, "version_of", lambda package: "1.32.1+cpu")
    assert findings()["extra recommend"]["status"] == "ok"


def test_missing_browser_is_healthy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    code, output = command()
    assert code == 0
    assert "only the browser tests need it" in output


def no_temp(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)


def no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    import lbdrop

    monkeypatch.setattr(lbdrop, "Objective", lambda *a, **k: lambda loss: torch.zeros((), requires_grad=True))


def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = doctor.version_of
    monkeypatch.setattr(doctor, "version_of", lambda package: "2.0.1" if package == "torch" else installed(package))


@pytest.mark.parametrize(
    ("harm", "name", "said"),
    [
        (no_temp, "temporary files", "No space"),
        (no_gradient, "a training step", "no gradient"),
        (no_torch, "torch", "2.0.1"),
    ],
)
def test_broken_essential_package_exits_with_one(harm: Any, name: str, said: str, monkeypatch: pytest.MonkeyPatch):
    harm(monkeypatch)
    code, output = command()
    assert code == 1
    assert "1 broken" in output
    assert said in findings()[name]["found"]
    assert json.loads(command("--json")[1])["healthy"] is False


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from helpers.checkerboard import checkerboard

    from lbdrop.recommend import Recommender

    folder = tmp_path_factory.mktemp("saved") / "model"
    Recommender("ease").fit(checkerboard()).save(folder)
    return folder


def test_doctor_says_that_a_model_is_as_it_was_saved(model: Path) -> None:
    code, output = command(str(model))
    assert code == 0, output
    assert "a saved recommender, format 2, by lbdrop 0.1.0, torch" in output
    assert "all as they were saved" in output
    assert "Recommender('ease'" in output


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda f: (f / "weights.safetensors").unlink(), "got no weights.safetensors there"),
        (lambda f: (f / "items.parquet").write_bytes(b""), "got 0: cut off, or of another folder"),
        (lambda f: (f / "model.json").write_text((f / "model.json").read_text().replace("ease", "slim")), "its seal differs"),
        (lambda f: (f / "model.json").unlink(), "got no model.json, manifest.json or epoch-… there"),
    ],
)  # fmt: skip
def test_doctor_says_what_is_wrong_with_a_model(model: Path, tmp_path: Path, harm: Any, said: str) -> None:
    shutil.copytree(model, tmp_path / "model")
    harm(tmp_path / "model")
    result = CliRunner().invoke(app, ["doctor", str(tmp_path / "model")], env={"COLUMNS": "300"})
    assert result.exit_code == 1
    assert said in " ".join((result.stdout + result.stderr).split())


def test_doctor_names_files_that_are_not_of_the_model(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / "notes\x1b[31m.txt").write_text("mine")
    code, output = command(str(tmp_path / "model"))
    assert code == 0
    assert "\x1b" not in output
    assert "notes [31m.txt" in output


def test_doctor_examines_prepared_data_and_unfinished_training(tmp_path: Path) -> None:
    from helpers.checkerboard import checkerboard

    from lbdrop.recommend import Recommender
    from lbdrop.recommend.data.prepare_own import prepare_files

    checkerboard().write_csv(tmp_path / "likes.csv")
    prepare_files(tmp_path / "likes.csv", tmp_path)
    code, output = command(str(tmp_path / "own"))
    assert (code, "a prepared data set, format 2" in output) == (0, True), output
    small: dict[str, Any] = {"hidden": 4, "latent": 2, "epochs": 1, "validation": 0, "progress": False}
    Recommender("vae-drop", **small).fit(checkerboard(), checkpoints=tmp_path / "state")
    code, output = command(str(tmp_path / "state"))
    assert (code, "a training state, format 2" in output) == (0, True), output
    state = tmp_path / "state" / "epoch-00001" / "state.safetensors"
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    code, output = command(str(tmp_path / "state"))
    assert code == 1
    assert "its SHA-256" in output
