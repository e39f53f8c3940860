"""No command removes or replaces what it did not make, and links and ``.`` are the places they point to."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from helpers.checkerboard import checkerboard
from typer.testing import CliRunner

from lbdrop.cli import app
from lbdrop.io.files import MARK
from lbdrop.recommend import Recommender

POPULARITY = ("--method", "popularity")


def call(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr.strip()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with likes and a model of them, in which commands are run."""
    checkerboard().write_csv(tmp_path / "likes.csv")
    Recommender("popularity").fit(checkerboard()).save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(path: Path, text: str = "years of work") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "name", ["thesis.tex", "epoch-00001/state.pt", "epoch-notes.txt", "lock", "epoch-00001/record.json"]
)
def test_fit_keeps_a_foreign_folder_of_unfinished_work(place: Path, name: str) -> None:
    mine = put(place / "new.unfinished" / name)
    code, said = call("recommend", "fit", "likes.csv", "--out", "new", *POPULARITY)
    assert code == 1
    assert "new.unfinished: want unfinished work of lbdrop or a new folder, got" in said
    assert mine.read_text() == "years of work"
    assert not (place / "new").exists()


def test_fit_removes_what_a_killed_fit_left(place: Path) -> None:
    put(place / "new.unfinished" / "lock", MARK.decode())
    put(
        place / "new.unfinished" / "epoch-00002.machine-17.part" / ".tmpG3RF2d"
    )  # safetensors writes to such a file first
    assert call("recommend", "fit", "likes.csv", "--out", "new", *POPULARITY)[0] == 0
    assert not (place / "new.unfinished").exists()


def test_fit_keeps_what_is_put_beside_its_states(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(place / "new.unfinished" / "lock", MARK.decode())
    fit = Recommender.fit

    def and_a_note(self: Recommender, *given: object, **named: object) -> Recommender:
        put(place / "new.unfinished" / "notes.txt")
        return fit(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Recommender, "fit", and_a_note)
    assert call("recommend", "fit", "likes.csv", "--out", "new", *POPULARITY)[0] == 0
    assert os.listdir(place / "new.unfinished") == ["notes.txt"]


def test_states_beside_foreign_epochs_leave_them(place: Path) -> None:
    mine = put(place / "runs" / "epoch-notes.txt")
    small = {"hidden": 4, "latent": 2, "epochs": 2, "validation": 0, "progress": False}
    Recommender("vae-drop", **small).fit(checkerboard(), checkpoints=place / "runs")  # type: ignore[arg-type]
    assert sorted(os.listdir(place / "runs")) == ["epoch-00002", "epoch-notes.txt"]
    assert mine.read_text() == "years of work"


def test_score_replaces_only_scores(place: Path) -> None:
    foreign = put(place / "parts" / "part-00000.parquet"), put(place / "scores.parquet")
    pl.DataFrame({"user_id": [1], "item_id": [1], "score": [0.5], "rank": [1]}).write_parquet(
        place / "same-columns.parquet"
    )
    for out in ("parts", "scores.parquet", "same-columns.parquet"):
        code, said = call("recommend", "score", "model", "--out", out)
        assert code == 1
        assert "got something else; choose another" in said
    assert [each.read_text() for each in foreign] == ["years of work"] * 2
    for out in ("new", "new.parquet"):
        for k in (3, 2):
            assert call("recommend", "score", "model", "--k", k, "--out", out) == (0, "")
        assert set(pl.read_parquet(place / out)["rank"]) == {1, 2}


def test_score_keeps_a_foreign_folder_of_unfinished_work(place: Path) -> None:
    mine = put(place / "scores.unfinished" / "mine" / "notes.txt")
    assert call("recommend", "score", "model", "--out", "scores")[0] == 1
    assert mine.read_text() == "years of work"


def test_prepare_keeps_a_foreign_manifest(place: Path) -> None:
    mine = put(place / "data" / "own" / "manifest.json", '{"name": "an extension of a browser"}')
    code, said = call("data", "prepare", "own", "likes.csv", "--out", "data")
    assert (code, "want a place for a data set, got manifest.json there" in said) == (1, True)
    assert json.loads(mine.read_text())["name"] == "an extension of a browser"


@pytest.mark.parametrize("name", ["index.html", "summary.json"])
def test_report_keeps_a_foreign_page(place: Path, name: str) -> None:
    record = Path(__file__).parents[2] / "experiments" / "toy" / "results" / "toy.json"
    mine = put(place / "site" / name)
    code, said = call("report", record, "--out", "site")
    if name == "index.html":
        assert (code, "want a place for index.html, got one of another program" in said) == (1, True)
    assert mine.read_text() == "years of work"
    for _ in range(2):
        assert call("report", record, "--out", "page")[0] == 0


def test_demo_keeps_foreign_files_of_its_names(place: Path) -> None:
    mine = put(place / "shop" / "likes.csv")
    code, said = call("demo", "--quick", "--out", "shop")
    assert (code, "got one of another program" in said) == (1, True)
    assert mine.read_text() == "years of work"


def test_demo_keeps_likes_beside_a_report(place: Path) -> None:
    record = Path(__file__).parents[2] / "experiments" / "toy" / "results" / "toy.json"
    assert call("report", record, "--out", ".")[0] == 0
    before = (place / "likes.csv").read_text()
    code, said = call("demo", "--quick", "--out", ".")
    assert (code, "want a place for result.json, got one of another program" in said) == (1, True)
    assert (place / "likes.csv").read_text() == before


@pytest.mark.parametrize("name", ["likes.csv", "notes.json"])
def test_evaluate_replaces_only_measures(place: Path, name: str) -> None:
    put(place / "notes.json", '{"mean": "of the class"}')
    checkerboard().with_columns(user_id=pl.col("user_id") + 1000).write_csv(place / "later.csv")
    before = (place / name).read_text()
    code, said = call("recommend", "evaluate", "model", "later.csv", "--out", name)
    assert (code, f"want a place for {name}, got one of another program" in said) == (1, True)
    assert (place / name).read_text() == before
    for _ in range(2):
        assert call("recommend", "evaluate", "model", "later.csv", "--out", "measures.json") == (0, "")


@pytest.mark.parametrize("name", ["table.md", "summary.json", "rates.png"])
def test_reproduce_rates_keeps_foreign_files_of_its_names(place: Path, name: str) -> None:
    mine = put(place / "thesis" / name)
    code, said = call("reproduce", "rates", "--task", "digits", "--out", "thesis")
    assert (code, f"want a place for {name}, got one of another program" in said) == (1, True)
    assert mine.read_text() == "years of work"


def test_models_saved_by_several_threads_at_once_are_whole(place: Path) -> None:
    models = [Recommender("popularity").fit(checkerboard().head(rows)) for rows in (30, 60)]
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda n: models[n % 2].save(place / "shared"), range(24)):
            pass
    assert repr(Recommender.load(place / "shared")) in map(repr, models)
    assert sorted(os.listdir(place)) == ["likes.csv", "model", "shared"]


def test_dot_is_the_folder_one_is_in_and_stays_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "here").mkdir()
    monkeypatch.chdir(place / "here")
    number = os.stat(".").st_ino
    for method in ("popularity", "ease", "popularity"):
        assert call("recommend", "fit", "../likes.csv", "--out", ".", "--method", method)[0] == 0
        assert method in repr(Recommender.load("."))
        assert os.stat(".").st_ino == number
    assert sorted(os.listdir(place)) == ["here", "likes.csv", "model"]
    assert len(os.listdir(".")) == 5


def test_link_is_written_through(place: Path) -> None:
    (place / "disk").mkdir()
    (place / "link").symlink_to("disk")
    (place / "later.parquet").symlink_to("scores.parquet")
    for method in ("popularity", "ease"):
        assert call("recommend", "fit", "likes.csv", "--out", "link", "--method", method)[0] == 0
        assert (place / "link").is_symlink()
        assert method in repr(Recommender.load(place / "disk"))
    assert call("recommend", "score", "model", "--out", "later.parquet")[0] == 0
    assert (place / "later.parquet").is_symlink()
    assert len(pl.read_parquet(place / "scores.parquet"))


def test_device_is_not_replaced_by_a_file(place: Path) -> None:
    fifo = place / "fifo.json"
    os.mkfifo(fifo)
    checkerboard().with_columns(user_id=pl.col("user_id") + 1000).write_csv(place / "later.csv")
    code, said = call("recommend", "evaluate", "model", "later.csv", "--out", fifo)
    assert (code, "want a place for a file, got a FIFO" in said) == (1, True)
    assert fifo.is_fifo()
