"""Interactions streamed through the disk give the same bits, and the same errors, as in memory."""

import gzip
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import big_data
from lbdrop.errors import DropoutError
from lbdrop.recommend import Interactions, Recommender
from lbdrop.recommend.data import streaming_csr
from lbdrop.recommend.data.prepare_own import prepare_files
from lbdrop.recommend.data.prepared import load_prepared


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that every table is in many pieces; and no time for the disk and git, of which others are the test."""
    monkeypatch.setattr(streaming_csr, "ROWS_PER_BATCH", 3)
    monkeypatch.setattr(streaming_csr, "ROWS_PER_PART", 5)
    monkeypatch.setattr("lbdrop.io.files._sync", lambda path: None)
    monkeypatch.setattr("lbdrop.recommend.data.prepare_own.provenance", dict)


def streamed(frame: pl.DataFrame, cuts: list[int] | None = None, **rules: Any) -> Interactions:
    """The frame through Parquet files, cut where told, and back from the prepared folder."""
    with TemporaryDirectory() as place:
        parts = Path(place) / "parts"
        parts.mkdir()
        bounds = [0, *sorted(min(cut, len(frame)) for cut in cuts or []), len(frame)]
        for number, (first, last) in enumerate(pairwise(bounds)):
            frame[first:last].write_parquet(parts / f"{number:03d}.parquet")
        manifest = prepare_files(parts, place, **rules)
        prepared = load_prepared(Path(place) / "own")
    assert manifest["counts"]["rows read"] == len(frame)
    assert manifest["counts"]["events"] == prepared.interactions.rows.nnz
    return prepared.interactions


def assert_same(one: Interactions, other: Interactions) -> None:
    assert one.users.equals(other.users, check_dtypes=True)
    assert one.items.equals(other.items, check_dtypes=True)
    assert one.rows.shape == other.rows.shape
    for name in ("indptr", "indices", "data"):
        a, b = getattr(one.rows, name), getattr(other.rows, name)
        assert np.array_equal(a, b), name
        assert a.dtype == b.dtype, name


IDS = {
    "numbers": (pl.Int32, st.integers(-3, 6)),
    "text": (pl.String, st.sampled_from(["", "7", "07", "tea", "salt", "Ä", "ä", " tea"])),
    "categories": (pl.Categorical, st.sampled_from(["tea", "salt", "gold", "7"])),
}


@st.composite
def frames(draw: st.DrawFn) -> tuple[pl.DataFrame, dict[str, Any], list[int]]:
    n = draw(st.integers(1, 30))
    columns = {}
    for name in ("user_id", "item_id"):
        kind, values = IDS[draw(st.sampled_from(sorted(IDS)))]
        columns[name] = pl.Series(draw(st.lists(values, min_size=n, max_size=n)), dtype=kind)
    rules: dict[str, Any] = {"min_user_items": draw(st.integers(0, 3)), "min_item_users": draw(st.integers(0, 3))}
    kind = draw(st.sampled_from(["none", "floats", "whole", "flags", "at_least"]))
    if kind == "at_least":
        rules["at_least"] = draw(st.sampled_from([-1.0, 2.0, 3.5]))
        columns["weight"] = pl.Series(draw(st.lists(st.floats(-5, 5), min_size=n, max_size=n)), dtype=pl.Float64)
    elif kind != "none":
        values, stored = {
            "floats": (st.floats(0, 5, width=32), pl.Float32),
            "whole": (st.integers(0, 3), pl.Int16),
            "flags": (st.booleans(), pl.Boolean),
        }[kind]
        columns["weight"] = pl.Series(draw(st.lists(values, min_size=n, max_size=n)), dtype=stored)
    return pl.DataFrame(columns), rules, draw(st.lists(st.integers(0, 30), max_size=3))


@given(frames())
@settings(max_examples=100, deadline=None)
def test_any_frame_streams_to_the_same_matrix_or_error_as_in_memory(
    drawn: tuple[pl.DataFrame, dict[str, Any], list[int]],
) -> None:
    frame, rules, cuts = drawn
    whole = outcome(Interactions.from_frame, frame, **rules)
    other = outcome(streamed, frame, cuts, **rules)
    if isinstance(whole, Interactions) and isinstance(other, Interactions):
        assert_same(other, whole)
    else:
        assert other == whole


def outcome(make: Callable[..., Interactions], *given: Any, **rules: Any) -> Interactions | str:
    """What is made, or what is said instead."""
    try:
        return make(*given, **rules)
    except DropoutError as error:
        return str(error)


@pytest.mark.parametrize(
    "columns",
    [
        {"user_id": [1, None], "item_id": [1, 2]},
        {"user_id": [1, 2], "item_id": ["a", None]},
        {"user_id": [1.5, 2.5], "item_id": [1, 2]},
        {"user_id": [1, 2], "item_id": [1, 2], "weight": [1.0, float("nan")]},
        {"user_id": [1, 2], "item_id": [1, 2], "weight": [None, 1.0]},
        {"user_id": [1, 2], "item_id": [1, 2], "weight": [1.0, float("inf")]},
        {"user_id": [1, 2], "item_id": [1, 2], "weight": [1.0, -2.0]},
        {"user_id": [1, 2], "item_id": [1, 2], "weight": [1.0, 1e39]},
        {"user_id": [1, 2], "item_id": [1, 2], "weight": ["5", "4"]},
        {"user_id": [1, 2], "item_id": [1, 2], "weight": [0, 0]},
        {"user_id": [1, 2], "thing": [1, 2]},
        {"user_id": [], "item_id": []},
    ],
)
def test_errors_equal_those_in_memory(columns: dict[str, list[Any]]) -> None:
    frame = pl.DataFrame(columns, strict=False)
    said = outcome(Interactions.from_frame, frame)
    assert isinstance(said, str)
    assert outcome(streamed, frame, [1]) == said


def test_user_with_more_rows_than_a_part_gets_a_part() -> None:
    frame = pl.DataFrame({"user_id": [7] * 40 + [1, 9], "item_id": [*range(20), *range(20), 3, 4]})
    assert_same(streamed(frame, [13, 29]), Interactions.from_frame(frame))


def test_columns_of_other_names_are_read() -> None:
    frame = pl.DataFrame({"who": [2, 1], "what": ["a", "b"], "stars": [5, 2], "user_id": [None, None]})
    rules: dict[str, Any] = {"user": "who", "item": "what", "weight": "stars", "at_least": 4}
    assert_same(streamed(frame, **rules), Interactions.from_frame(frame, **rules))
    with pytest.raises(DropoutError, match="weight: want the column 'plays'"):
        streamed(frame, user="who", item="what", weight="plays")


# ---------------------------------------------------------------------------------------------------------------- files


@pytest.fixture
def frame() -> pl.DataFrame:
    random = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "user_id": random.integers(0, 30, 400),
            "item_id": random.integers(0, 20, 400),
            "weight": random.integers(0, 6, 400),
        }
    )


def written(frame: pl.DataFrame, place: Path, kind: str) -> Iterator[Path]:
    for number, first in enumerate(range(0, len(frame), 150)):
        path = place / f"events-{number}.{kind}"
        part = frame[first : first + 150]
        if kind == "parquet":
            part.write_parquet(path)
        elif kind == "csv.gz":
            path.write_bytes(gzip.compress(part.write_csv().encode()))
        else:
            part.write_csv(path, separator="\t" if kind == "tsv" else ",")
        yield path


@pytest.mark.parametrize("kind", ["parquet", "csv", "tsv", "csv.gz"])
def test_folder_pattern_and_list_of_files_are_the_same_table(
    kind: str, frame: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming_csr, "ROWS_PER_BATCH", 70)
    monkeypatch.setattr(streaming_csr, "ROWS_PER_PART", 90)
    place = tmp_path / "in"
    place.mkdir()
    files = list(written(frame, place, kind))
    (place / "_SUCCESS").touch()
    whole = Interactions.from_frame(frame, min_user_items=5)
    for source in (place, str(place / f"events-*.{kind}"), files):
        prepare_files(source, tmp_path / "out", min_user_items=5)
        assert_same(load_prepared(tmp_path / "out" / "own").interactions, whole)


@pytest.mark.parametrize(("ids", "kind"), [(["1", "2"], pl.Int64), (["1", "02"], pl.String), (["1", "x"], pl.String)])
def test_ids_of_text_files_are_integers_only_if_all_are(ids: list[str], kind: pl.DataType, tmp_path: Path) -> None:
    for number, one in enumerate(ids):  # the one that decides is in another file
        (tmp_path / f"{number}.csv").write_text(f"user_id,item_id\n{one},{one}\n")
    prepare_files(tmp_path, tmp_path / "out")
    data = load_prepared(tmp_path / "out" / "own").interactions
    assert (data.users.dtype, data.items.dtype) == (kind, kind)
    assert data.users.cast(pl.String).to_list() == sorted(ids)


def test_files_that_are_not_tables_are_errors_of_one_line(frame: pl.DataFrame, tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    (path,) = list(written(frame[:100], place, "parquet"))
    frame.write_csv(place / "events.csv")
    (tmp_path / "empty").mkdir()
    (tmp_path / "half.parquet").write_bytes(path.read_bytes()[:300])
    (tmp_path / "text.csv").write_text("user_id,item_id,weight\n1,2,good\n")
    wrong = {
        place: r"want files of one kind, got \.csv, \.parquet",
        tmp_path / "empty": r"want a folder of files that end in .*, got none there",
        tmp_path / "no*.parquet": "want files of these names, got none",
        tmp_path / "none.parquet": "want a file, got nothing there",
        tmp_path / "notes.txt": "want a file that ends in",
        tmp_path / "half.parquet": "cannot be read as a table",
        tmp_path / "text.csv": "cannot be read as a table",
    }
    for source, message in wrong.items():
        with pytest.raises(DropoutError, match=message) as error:
            prepare_files(source, tmp_path / "out")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "own").exists()


def test_files_may_have_more_columns_but_not_ids_of_another_type(tmp_path: Path) -> None:
    pl.DataFrame({"user_id": [1], "item_id": [1]}).write_parquet(tmp_path / "0.parquet")
    pl.DataFrame({"user_id": [2], "item_id": [1], "city": ["Rome"]}).write_parquet(tmp_path / "1.parquet")
    assert prepare_files(tmp_path, tmp_path / "out")["counts"]["users"] == 2
    pl.DataFrame({"user_id": ["x"], "item_id": [1]}).write_parquet(tmp_path / "2.parquet")
    with pytest.raises(DropoutError, match="cannot be read as a table: .*user_id"):
        prepare_files(sorted(tmp_path.glob("*.parquet")), tmp_path / "other")


def test_full_disk_leaves_the_old_data_set_and_no_temporary_files(
    frame: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame.write_parquet(tmp_path / "events.parquet")
    before = prepare_files(tmp_path / "events.parquet", tmp_path / "out")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(streaming_csr, "_write_arrays", full)
    with pytest.raises(OSError, match="No space left"):
        prepare_files(tmp_path / "events.parquet", tmp_path / "out", min_user_items=3)
    assert load_prepared(tmp_path / "out" / "own").manifest == before
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == [
        "items.parquet", "likes.safetensors", "manifest.json", "own", "users.parquet",
    ]  # fmt: skip


def test_progress_counts_every_row(frame: pl.DataFrame, tmp_path: Path) -> None:
    frame.write_parquet(tmp_path / "events.parquet")
    seen: list[tuple[int, int]] = []
    prepare_files(tmp_path / "events.parquet", tmp_path / "out", progress=lambda *at: seen.append(at))
    assert seen[-1] == (400, 400)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_own_data_can_be_split_and_fitted(frame: pl.DataFrame, tmp_path: Path) -> None:
    frame.write_parquet(tmp_path / "events.parquet")
    prepare_files(tmp_path / "events.parquet", tmp_path / "out", at_least=2)
    prepared = load_prepared(tmp_path / "out" / "own")
    assert len(prepared.split(5).test.users) == 5
    with pytest.raises(DropoutError, match="held_out_users: want a number, got none"):
        prepared.split()
    model = Recommender("popularity").fit(prepared.interactions)
    other = Recommender("popularity", at_least=2).fit(frame)
    assert model.recommend(k=3).equals(other.recommend(k=3))


# ------------------------------------------------------------------------------------------------------------ benchmark


@pytest.mark.parametrize("text", [False, True])
def test_generated_rows_are_prepared_with_the_expected_counts(
    text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming_csr, "ROWS_PER_BATCH", 700)
    monkeypatch.setattr(streaming_csr, "ROWS_PER_PART", 2_000)
    monkeypatch.setattr(big_data, "STEP", 70)
    big_data.write_parts(tmp_path / "events", users=300, each=40, items=500, text=text)
    big_data.prepare(str(tmp_path / "events"), str(tmp_path), min_item_users=9)
    wanted = big_data.expected(300, 40, 500, 9)
    assert big_data.summary(tmp_path / "own") == wanted
    assert wanted["items"] < 500
    assert wanted["entries"] < 300 * 40 * 4 / 5  # some likes came twice
