"""``lbdrop data prepare own``: one's own files, however many, become a folder that ``lbdrop recommend fit`` takes."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from lbdrop.cli import app
from lbdrop.recommend import Interactions, Recommender
from lbdrop.recommend.data.prepared import load_prepared


@pytest.fixture
def frame() -> pl.DataFrame:
    random = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "buyer": [f"b{number:02d}" for number in random.integers(0, 40, 600)],
            "product": random.integers(0, 25, 600),
            "stars": random.integers(1, 6, 600),
        }
    )


@pytest.fixture
def events(frame: pl.DataFrame, tmp_path: Path) -> Path:
    place = tmp_path / "events"
    place.mkdir()
    for number in range(3):
        frame[200 * number : 200 * number + 200].write_parquet(place / f"{number}.parquet")
    return place


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})


NAMES = ("--user", "buyer", "--item", "product", "--weight", "stars")
RULES = ("--at-least", 3, "--min-user-items", 4, "--min-item-users", 2)


@pytest.mark.parametrize("given", ["folder", "pattern", "files"])
def test_own_files_are_prepared_by_the_options_and_counted(
    given: str, frame: pl.DataFrame, events: Path, tmp_path: Path
) -> None:
    source = {"folder": [events], "pattern": [events / "*.parquet"], "files": sorted(events.iterdir())}[given]
    result = call("data", "prepare", "own", *source, "--out", tmp_path / "out", *NAMES, *RULES)
    assert result.exit_code == 0, result.output
    data = load_prepared(tmp_path / "out" / "own").interactions
    wanted = Interactions.from_frame(
        frame, at_least=3, min_user_items=4, min_item_users=2, user="buyer", item="product", weight="stars"
    )
    assert data.to_frame().equals(wanted.to_frame())
    for name, count in {"rows read": 600, "events": wanted.rows.nnz, "users": len(wanted.users)}.items():
        assert any(name in line and f"{count:,}" in line for line in result.output.splitlines()), name
    assert "published" not in result.output  # nobody has


def test_prepared_folder_fits_the_same_model_as_its_files(frame: pl.DataFrame, events: Path, tmp_path: Path) -> None:
    assert call("data", "prepare", "own", events, "--out", tmp_path, *NAMES, "--at-least", 3).exit_code == 0
    result = call("recommend", "fit", tmp_path / "own", "--method", "ease", "--out", tmp_path / "model")
    assert result.exit_code == 0, result.output
    usual = frame.rename({"buyer": "user_id", "product": "item_id", "stars": "weight"})
    direct = Recommender("ease", at_least=3).fit(usual).recommend(k=5)
    assert Recommender.load(tmp_path / "model").recommend(k=5).equals(direct)


def test_wrong_own_files_are_one_line(events: Path, tmp_path: Path) -> None:
    call("data", "prepare", "own", events, "--out", tmp_path, *NAMES)
    for arguments, words in (
        (("data", "prepare", "own", tmp_path / "none.csv"), "want a file, got nothing there"),
        (("data", "prepare", "own", events), "want the columns 'user_id' and 'item_id'"),
        (("data", "prepare", "own", events, "--allow-partial"), "--allow-partial: want an official data set"),
        (("data", "prepare", "own", events, *NAMES, "--min-user-items", 99), "filters: want users with 99 items"),
        (("data", "prepare", "ml-1m", events, "--min-item-users", 2), "--min-item-users: want your own files"),
        (("data", "prepare", "ml-1m", events, events), "source: want one folder, archive or file of ml-1m, got 2"),
        (("recommend", "fit", tmp_path / "own", "--at-least", 4), "which is prepared"),
        (("recommend", "fit", tmp_path / "own", "--weight", "stars"), "--weight: want a file of interactions"),
    ):
        result = call(*arguments, "--out", tmp_path / "other" / arguments[0])
        assert result.exit_code == 1, arguments
        assert words in result.stderr, result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert not list((tmp_path / "other").rglob("*.json"))


def test_full_disk_is_one_line_and_leaves_old_files(
    events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("data", "prepare", "own", events, "--out", tmp_path, *NAMES).exit_code == 0
    before = load_prepared(tmp_path / "own").manifest

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lbdrop.recommend.data.streaming_csr._write_arrays", full)
    result = call("data", "prepare", "own", events, "--out", tmp_path, *NAMES, "--at-least", 3)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"cannot write to {tmp_path / 'own'}: No space left on device")
    assert load_prepared(tmp_path / "own").manifest == before
