"""Scores in parts: the same rows for any parts, memory and engine, and work that resumes."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lbdrop.errors import DropoutError
from lbdrop.recommend import Recommender
from lbdrop.recommend.answer import history_parts, score_files
from lbdrop.recommend.data.shop import generate_shop


@pytest.fixture(scope="module")
def likes() -> pl.DataFrame:
    return generate_shop(users=200, items=40, groups=4).interactions


@pytest.fixture(scope="module")
def model(likes: pl.DataFrame) -> Recommender:
    return Recommender("vae-drop", epochs=1, validation=0, progress=False).fit(likes)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_files, "ROWS_IN_MEMORY", 200)  # 40 users a part with k = 5
    monkeypatch.setattr(history_parts, "ROWS_PER_PART", 500)
    monkeypatch.setattr(history_parts, "ROWS_PER_BATCH", 300)


def same(found: pl.DataFrame, expected: pl.DataFrame) -> bool:
    ids = ["user_id", "item_id", "rank"]
    return found.select(ids).equals(expected.select(ids)) and np.allclose(found["score"], expected["score"], atol=1e-5)


@pytest.mark.usefixtures("small_parts")
def test_folder_of_parts_is_one_table(model: Recommender, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    assert model.score_to(out, k=5) == 1000
    assert sorted(each.name for each in out.iterdir()) == [f"part-0000{n}.parquet" for n in range(5)]
    assert same(pl.read_parquet(out), model.recommend(k=5))
    assert model.score_to(out, [3, 1], k=5) == 10  # fewer parts replace all of the old ones
    assert len(list(out.iterdir())) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["scores"]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("kind", ["int", "text", "category"])
def test_lazy_frame_larger_than_a_part_gives_every_user_once(
    kind: str, model: Recommender, likes: pl.DataFrame, tmp_path: Path
) -> None:
    users = pl.col("user_id") + 1000
    if kind != "int":
        users = ("user " + users.cast(pl.String)).cast(pl.String if kind == "text" else pl.Categorical)
    frame = likes.with_columns(users).sample(fraction=1.0, shuffle=True, seed=0)
    out = tmp_path / "scores.parquet"
    rows = model.score_to(out, frame.lazy(), k=5)
    found, expected = pl.read_parquet(out), model.recommend(frame, k=5)
    assert rows == len(expected) == 1000
    assert found["user_id"].to_list() != expected["user_id"].to_list()  # by hash: it went through the disk
    assert same(found.sort("user_id", "rank"), expected.with_columns(pl.col("user_id").cast(found["user_id"].dtype)))
    assert [each.name for each in tmp_path.iterdir()] == ["scores.parquet"]


def test_parts_without_users_have_the_columns_of_the_others(
    model: Recommender, likes: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_parts, "ROWS_PER_PART", 10)
    few = likes.filter(pl.col("user_id") < 4)
    assert model.score_to(tmp_path / "scores", few.lazy(), k=2) == 8
    parts = [pl.read_parquet(each) for each in (tmp_path / "scores").iterdir()]
    assert 0 in map(len, parts)
    assert len({str(part.schema) for part in parts}) == 1


@pytest.mark.usefixtures("small_parts")
def test_stopped_work_resumes_with_the_missing_parts(
    model: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole, scored = tmp_path / "scores", score_files.score_part, []

    def third_fails(*arguments: object) -> None:
        if len(scored) == 2:
            raise KeyboardInterrupt
        scored.append(arguments[3])
        whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(score_files, "score_part", third_fails)
    with pytest.raises(KeyboardInterrupt, match="stopped after 2 of 5 parts, which are in .*: the same call goes on"):
        model.score_to(out, k=5)
    assert not out.exists()
    scored.clear()
    monkeypatch.setattr(score_files, "score_part", lambda *a: (scored.append(a[3]), whole(*a)))
    model.score_to(out, k=5)
    assert [Path(each).name for each in scored] == [f"part-0000{n}.parquet" for n in (2, 3, 4)]
    assert same(pl.read_parquet(out), model.recommend(k=5))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "change",
    [
        {"k": 4},
        {"filter_viewed": False},
        {"items_to_recommend": ["chess-00006"]},
        {"users": list(range(100))},
        {"weights": 1},
    ],
)
def test_another_query_uses_no_part_of_the_old_one(
    change: dict[str, object], model: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = {"k": 5, "users": None, "filter_viewed": True, "items_to_recommend": None}
    monkeypatch.setattr(score_files, "_finish", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        model.score_to(tmp_path / "scores", **question)  # type: ignore[arg-type]
    monkeypatch.undo()
    monkeypatch.setattr(score_files, "ROWS_IN_MEMORY", 200)
    asked = model
    if change.pop("weights", None):
        model.save(tmp_path / "other")
        asked = Recommender.load(tmp_path / "other")
        next(asked.model_.parameters()).data.mul_(-1)  # type: ignore[union-attr]
    asked.progress = False
    calls, whole = [], score_files.score_part
    monkeypatch.setattr(score_files, "score_part", lambda *a: (calls.append(a), whole(*a)))
    asked.score_to(tmp_path / "scores", **(question | change))  # type: ignore[arg-type]
    assert len(calls) == len(list((tmp_path / "scores").iterdir()))
    assert not (tmp_path / "scores.unfinished").exists()


@pytest.mark.usefixtures("small_parts")
def test_unreadable_rows_are_an_error_of_one_line(model: Recommender, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("user_id,item_id\n" + "1,2\n" * 600 + "1,two\n")
    frame = pl.scan_csv(tmp_path / "bad.csv", schema_overrides={"user_id": pl.Int64, "item_id": pl.Int64})
    with pytest.raises(DropoutError, match="users: cannot be read as a table"):
        model.score_to(tmp_path / "scores", frame)
    nulls = pl.LazyFrame({"user_id": [1] * 600, "item_id": [*range(599), None]})
    with pytest.raises(DropoutError, match="item_id: want no null"):
        model.score_to(tmp_path / "scores", nulls)
    with pytest.raises(DropoutError, match="want the columns 'user_id' and 'item_id', got .'who'. without"):
        model.score_to(tmp_path / "scores", pl.LazyFrame({"who": [1]}))
    with pytest.raises(DropoutError, match="k: want at least 1, got 0"):
        model.score_to(tmp_path / "scores", k=0)
    assert [each.name for each in tmp_path.iterdir()] == ["bad.csv"]


def test_only_scores_are_replaced(model: Recommender, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(DropoutError, match="mine: want a new or empty folder, or one of scores alone"):
        model.score_to(tmp_path / "mine")
    (tmp_path / "theirs").mkdir()  # of another program, which calls its parts almost as we do
    (tmp_path / "theirs" / "part-00000-7c1d.snappy.parquet").write_text("years of events")
    with pytest.raises(DropoutError, match="theirs: want a new or empty folder, or one of scores alone"):
        model.score_to(tmp_path / "theirs")
    (tmp_path / "scores.parquet").mkdir()
    with pytest.raises(DropoutError, match="want a file, got a folder"):
        model.score_to(tmp_path / "scores.parquet")
