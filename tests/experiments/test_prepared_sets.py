"""What is prepared is read back the same, with its split, titles and counts; damage is noticed."""

import json
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import polars as pl
import pytest
from helpers.sealing import reseal

from experiments.collaborative.data.prepare import prepare
from lbdrop.errors import DropoutError
from lbdrop.recommend.data.prepared import Prepared, load_prepared


def ml_20m(at: Path, users: int = 60, movies: int = 30) -> Path:
    """ratings.csv and movies.csv of random ratings; every third movie has no title."""
    random = np.random.default_rng(0)
    rows = [
        f"{u},{m},{random.integers(1, 11) / 2},1112486027"
        for u in range(1, users + 1)
        for m in sorted(random.permutation(movies)[:20] + 1)
    ]
    at.mkdir(parents=True, exist_ok=True)
    (at / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *rows]) + "\n")
    (at / "movies.csv").write_text(
        "\n".join(["movieId,title,genres", *(f'{m},"Film, the {m}th",Drama' for m in range(1, movies + 1) if m % 3)])
        + "\n"
    )
    return at


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    return prepare("ml-20m", ml_20m(tmp_path / "in"), tmp_path / "out", allow_partial=True, held_out_users=10)


def test_prepared_set_is_read_back_as_written(prepared: Prepared, tmp_path: Path) -> None:
    back = load_prepared(tmp_path / "out" / "ml-20m")
    rows, again = prepared.interactions.rows, back.interactions.rows
    assert np.array_equal(rows.toarray(), again.toarray())
    assert (again.dtype, again.indptr.dtype) == (np.float32, rows.indptr.dtype)
    assert again.has_canonical_format
    assert back.interactions.users.equals(prepared.interactions.users)
    assert back.interactions.items.equals(prepared.interactions.items)
    assert back.titles.equals(prepared.titles)
    assert {**back.manifest, "seal": ANY} == json.loads((tmp_path / "out" / "ml-20m" / "manifest.json").read_text())
    for one, other in zip(prepared.split()[1:], back.split()[1:], strict=True):
        assert np.array_equal(one.held_out.toarray(), other.held_out.toarray())
    assert len(back.split(5).test.users) == 5


def test_likes_are_those_of_the_protocol(prepared: Prepared, tmp_path: Path) -> None:
    raw = pl.read_csv(tmp_path / "in" / "ratings.csv").filter(pl.col("rating") >= 4)
    raw = raw.filter(pl.len().over("userId") >= 5).sort("userId", "movieId")
    assert (
        prepared.interactions.to_frame().select("user_id", "item_id").rows() == raw.select("userId", "movieId").rows()
    )
    found = prepared.manifest["counts"]
    assert (found["rows read"], found["events"], found["users"]) == (1200, len(raw), raw["userId"].n_unique())
    split = prepared.split()
    assert found["test held-out"] == split.test.held_out.nnz > 0
    assert found["train users"] == len(split.train.users) == found["users"] - 20
    assert prepared.manifest["settings"]["held_out_users"] == 10
    assert prepared.manifest["published"]["events"] == 9_990_682
    assert (
        prepared.manifest["source"]["names and sizes"]["ratings.csv"]
        == (tmp_path / "in" / "ratings.csv").stat().st_size
    )


def test_titles_belong_to_their_items_and_default_to_ids(prepared: Prepared) -> None:
    for item, title in zip(prepared.interactions.items, prepared.titles, strict=True):
        assert title == (f"Film, the {item}th" if item % 3 else str(item))


def test_text_ids_survive(tmp_path: Path) -> None:
    rows = [f"{user:040x}\tSO{song:016X}\t1\n" for user in range(200) for song in range(25)]
    rows += [f"{999:040x}\tSO{song:016X}\t1\n" for song in range(100, 130)]  # songs of a single listener
    (tmp_path / "train_triplets.txt").write_text("".join(rows))
    made = prepare("msd", tmp_path, tmp_path / "out", allow_partial=True, held_out_users=50)
    assert (len(made.interactions.users), len(made.interactions.items)) == (200, 25)
    back = load_prepared(tmp_path / "out" / "msd")
    assert back.interactions.users[1] == f"{1:040x}"
    assert back.titles.to_list() == [f"SO{song:016X}" for song in range(25)]


def test_item_numbers_beyond_two_bytes_survive(tmp_path: Path) -> None:
    # 700 users of 100 movies each: together 70,000, more than 2¹⁶.
    rows = [f"{user},{100 * user + movie},5.0,1" for user in range(1, 701) for movie in range(100)]
    (tmp_path / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *rows]))
    made = prepare("ml-20m", tmp_path, tmp_path / "out", allow_partial=True, held_out_users=1)
    back = load_prepared(tmp_path / "out" / "ml-20m")
    assert np.array_equal(back.interactions.rows.indices, np.arange(70_000))
    assert back.interactions.items.equals(made.interactions.items)


@pytest.mark.parametrize("file", ["likes.safetensors", "users.parquet", "items.parquet"])
def test_damage_is_noticed(prepared: Prepared, tmp_path: Path, file: str) -> None:
    path = tmp_path / "out" / "ml-20m" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DropoutError, match=f"{file}: want what was saved, .* run lbdrop data prepare again"):
        load_prepared(path.parent)
    path.unlink()
    with pytest.raises(DropoutError, match=f"want a prepared data set, got no {file} there; run lbdrop data prepare"):
        load_prepared(path.parent)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": 2}', '{"format": 1, "sha256": {}, "name": 3}'])
def test_manifest_of_something_else_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DropoutError, match="want"):
        load_prepared(tmp_path)


def test_failed_preparation_leaves_the_old_set(prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(DropoutError, match="want 20,000,263 ratings"):
        prepare("ml-20m", tmp_path / "in", tmp_path / "out")
    with pytest.raises(DropoutError, match="held_out_users: want 1 to"):
        prepare("ml-20m", tmp_path / "in", tmp_path / "out", allow_partial=True)
    assert load_prepared(tmp_path / "out" / "ml-20m").manifest == prepared.manifest


def test_interrupted_write_leaves_the_old_set(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: pl.DataFrame, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(OSError, match="No space left"):
        prepare("ml-20m", tmp_path / "in", tmp_path / "out", allow_partial=True, held_out_users=10)
    assert load_prepared(tmp_path / "out" / "ml-20m").manifest == prepared.manifest
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["ml-20m"]


def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out" / "ml-20m").mkdir(parents=True)
    (tmp_path / "out" / "ml-20m" / "thesis.txt").write_text("years of work")
    with pytest.raises(DropoutError, match=r"want a place for a data set, got thesis\.txt there"):
        prepare("ml-20m", ml_20m(tmp_path / "in"), tmp_path / "out", allow_partial=True, held_out_users=10)
    assert (tmp_path / "out" / "ml-20m" / "thesis.txt").read_text() == "years of work"


def test_likes_that_do_not_fit_their_ids_are_refused(prepared: Prepared, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "ml-20m"
    pl.read_parquet(folder / "items.parquet").head(7).write_parquet(folder / "items.parquet")
    reseal(folder)
    with pytest.raises(DropoutError, match="likes that do not fit 49 users and 7 items"):
        load_prepared(folder)
