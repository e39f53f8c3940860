"""``lbdrop data prepare``: counts beside the published ones, and errors in one line."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from experiments.collaborative.data.protocols import PROTOCOLS
from lbdrop.cli.data import RESEARCH_SETS, app
from lbdrop.recommend.data.prepared import load_prepared


def ml_1m(at: Path) -> Path:
    random = np.random.default_rng(0)
    rows = [
        f"{u}::{m}::{random.integers(3, 6)}::978300760" for u in range(1, 41) for m in random.permutation(50)[:20] + 1
    ]
    at.mkdir()
    (at / "ratings.dat").write_text("\n".join(rows) + "\n")
    return at


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["prepare", *map(str, arguments)], env={"COLUMNS": "200"})


def test_official_files_become_a_prepared_data_set_with_a_table(tmp_path: Path) -> None:
    result = call("ml-1m", ml_1m(tmp_path / "in"), "--out", tmp_path / "out", "--allow-partial", "--held-out-users", 8)
    assert result.exit_code == 0, result.output
    prepared = load_prepared(tmp_path / "out" / "ml-1m")
    assert prepared.interactions.rows.nnz > 0
    for name, count in prepared.manifest["counts"].items():
        assert any(name in line and f"{count:,}" in line for line in result.output.splitlines()), name
    assert "MovieLens-1M" in result.output
    assert "written in" in result.output


def test_published_counts_stand_beside_what_was_found(tmp_path: Path) -> None:
    triplets = "".join(f"{user:040x}\tSO{song:016X}\t1\n" for user in range(210) for song in range(20))
    (tmp_path / "train_triplets.txt").write_text(triplets)
    result = call("msd", tmp_path, "--out", tmp_path / "out", "--allow-partial", "--held-out-users", 10)
    assert result.exit_code == 0, result.output
    line = next(line for line in result.output.splitlines() if "events" in line)
    assert "4,200" in line
    assert "33,633,450" in line
    assert "-33,629,250" in line


def test_prepare_refuses_wrong_arguments_in_one_line_and_writes_nothing(tmp_path: Path) -> None:
    source = ml_1m(tmp_path / "in")
    for arguments, words in (
        (("ml-1m", source), "want 1,000,209 ratings, as the complete data has, got 800"),
        (("ml-2m", source), "data set: want one of ml-20m"),
        (("netflix", tmp_path / "none"), "got nothing there"),
        (("ml-1m", source, "--allow-partial"), "held_out_users: want 1 to 19"),
    ):
        result = call(*arguments, "--out", tmp_path / "out")
        assert result.exit_code == 1
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert not list((tmp_path / "out").rglob("*.json"))


def test_unwritable_folder_is_an_error_before_reading(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    result = call("ml-1m", tmp_path / "none", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "cannot write to" in result.stderr


def test_research_sets_are_those_with_a_protocol() -> None:
    assert list(RESEARCH_SETS) == list(PROTOCOLS)


def test_research_set_in_an_installed_package_says_how_to_get_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("lbdrop.cli.laboratory"), "CHECKOUT", tmp_path)
    result = call("ml-1m", ml_1m(tmp_path / "in"), "--out", tmp_path / "out", "--allow-partial")
    assert result.exit_code == 1
    assert "want a checkout of lbdrop" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
