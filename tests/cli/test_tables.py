"""Ids of files stay what they are, from the file that a model is fitted to through every file that follows."""

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from lbdrop.cli import app
from lbdrop.recommend import Recommender

PAIRS = [(user, item) for user in range(12) for item in range(10) if (user + item) % 3]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["recommend", *map(str, arguments)], env={"COLUMNS": "200"})


def write(path: Path, rows: list[tuple[object, object]]) -> Path:
    path.write_text("user_id,item_id\n" + "".join(f"{user},{item}\n" for user, item in rows))
    return path


def fit(folder: Path, rows: list[tuple[object, object]]) -> Path:
    done = call("fit", write(folder / "likes.csv", rows), "--method", "ease", "--out", folder / "model")
    assert done.exit_code == 0, done.output
    return folder / "model"


def scored(model: Path, file: Path) -> pl.DataFrame:
    out = file.with_name("scores.parquet")
    done = call("score", model, file, "--k", 3, "--include-viewed", "--out", out)
    assert done.exit_code == 0, done.output
    return pl.read_parquet(out)


def test_leading_zeros_make_a_column_text(tmp_path: Path) -> None:
    loaded = Recommender.load(fit(tmp_path, [(f"{user:03d}", f"{item:02d}") for user, item in PAIRS]))
    assert loaded.items_.to_list() == [f"{item:02d}" for item in range(10)]
    assert loaded.interactions_ is not None
    assert loaded.interactions_.users[0] == "000"


def test_ids_become_numbers_column_by_column_where_nothing_is_lost(tmp_path: Path) -> None:
    loaded = Recommender.load(fit(tmp_path, [(user - 3, f"{item:02d}") for user, item in PAIRS]))
    assert loaded.items_.dtype == pl.String
    assert loaded.interactions_ is not None
    assert loaded.interactions_.users.to_list() == list(range(-3, 9))
    one = Recommender.load(fit(tmp_path, [(user, "07" if item == 7 else item) for user, item in PAIRS]))
    assert one.items_.dtype == pl.String  # a single id decides
    long = Recommender.load(fit(tmp_path, [(user, f"{item}{'9' * 25}") for user, item in PAIRS]))
    assert long.items_.dtype == pl.String


def test_later_file_of_numbers_is_read_as_text_by_a_model_of_text(tmp_path: Path) -> None:
    rows = [(f"u{user}" if user == 11 else user, f"{item:02d}" if item == 5 else item) for user, item in PAIRS]
    model = fit(tmp_path, rows)
    history = [(3, 1), (3, 2), (3, 3), (3, 7)]
    found = scored(model, write(tmp_path / "later.csv", history))
    expected = Recommender.load(model).recommend(
        pl.DataFrame({"user_id": ["3"] * 4, "item_id": ["1", "2", "3", "7"]}), k=3, filter_viewed=False
    )
    assert found.drop("score").equals(expected.drop("score"))
    typed = pl.DataFrame(history, schema=["user_id", "item_id"], orient="row")
    typed.write_parquet(tmp_path / "later.parquet")
    assert scored(model, tmp_path / "later.parquet").drop("score").equals(expected.drop("score"))
    done = call("evaluate", model, tmp_path / "later.csv", "--out", tmp_path / "report.json")
    assert done.exit_code == 0, done.output
    # User 3 is known, and lacked one of these; a mean over one user has no error.
    report = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert report["users"] == 1
    assert report["standard_error"]["ndcg@100"] is None
    assert "nan" not in done.output


def test_later_file_of_text_has_new_users_for_a_model_of_numbers(tmp_path: Path) -> None:
    model = fit(tmp_path, list(PAIRS))
    new = [(f"n{user}", item) for user, item in PAIRS]
    assert scored(model, write(tmp_path / "later.csv", new))["user_id"].n_unique() == 12
    done = call("evaluate", model, tmp_path / "later.csv")
    assert done.exit_code == 0, done.output
    assert "12 users" in done.output
    zeros = scored(model, write(tmp_path / "zeros.csv", [("03", item) for item in range(4)]))
    assert zeros["user_id"].unique().to_list() == ["03"]


def test_mixed_ids_are_refused_where_histories_may_match(tmp_path: Path) -> None:
    model = fit(tmp_path, list(PAIRS))
    for rows, words in (
        (
            [(3, 1), ("x", 2)],
            "user_id: want whole numbers, as the model's ids are, got 1 others among 2, the first 'x'",
        ),
        (
            [(3, 1), (3, "02")],
            "item_id: want whole numbers, as the model's ids are, got 1 others among 2, the first '02'",
        ),
        ([(3, "a"), (3, "b")], "item_id: want ids of type Int64"),
    ):
        done = call("evaluate", model, write(tmp_path / "mixed.csv", rows))
        assert done.exit_code == 1
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    done = call("similar", model, "03")
    assert done.exit_code == 1
    assert "item_id: want ids of type Int64" in done.stderr
    assert call("similar", model, "3").exit_code == 0


def test_later_file_may_have_any_users_without_histories(tmp_path: Path) -> None:
    file = write(tmp_path / "likes.csv", list(PAIRS))
    assert call("fit", file, "--method", "ease", "--no-histories", "--out", tmp_path / "model").exit_code == 0
    assert scored(tmp_path / "model", write(tmp_path / "a.csv", [(3, 1), ("x", 2)]))["user_id"].n_unique() == 2


def test_named_weight_column_must_exist(tmp_path: Path) -> None:
    file = write(tmp_path / "likes.csv", list(PAIRS))
    model = fit(tmp_path, list(PAIRS))
    for arguments in (("fit", file, "--out", tmp_path / "new"), ("evaluate", model, file), ("score", model, file)):
        done = call(*arguments, "--weight", "ratng")
        assert done.exit_code == 1, done.output
        assert "want the column 'ratng', got ['user_id', 'item_id'] without it; see --weight" in done.stderr


def test_wrong_option_values_are_one_line(tmp_path: Path) -> None:
    file = write(tmp_path / "likes.csv", list(PAIRS))
    for options, words in (
        (("--method", "slim", "--set", "alpha=-1"), "alpha: want at least 0, got -1"),
        (("--method", "wmf", "--set", "factors=2.5"), "factors: want a whole number, got 2.5"),
        (("--set", "lr=-1"), "lr: want at least 0, got -1"),
        (("--set", "dropout=none"), "--set: want a setting of the method, got dropout; see --dropout"),
        (("--set", "at_least=3"), "see --at-least"),
        (("--validation", "inf"), "validation: want a finite number"),
        (("--validation", "30.5"), "validation: want a share below 1 or a number of users, got 30.5"),
    ):
        done = call("fit", file, *options, "--out", tmp_path / "new")
        assert done.exit_code == 1, (options, done.output, done.exception)
        assert words in done.stderr, (options, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1
