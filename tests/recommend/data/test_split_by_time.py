"""A split by time: rows before a moment and from then on, in every form of time; and reports that count users by kind."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from helpers.checkerboard import checkerboard
from typer.testing import CliRunner

from lbdrop.cli import app
from lbdrop.errors import DropoutError
from lbdrop.recommend import Interactions, Recommender, split_by_time
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.data.splits import fold_in_by_time

DAYS = pl.date_range(date(2020, 1, 1), date(2020, 1, 10), eager=True)
ROWS = pl.DataFrame({"user_id": range(10), "item_id": list("abcdefghij"), "day": DAYS})


@pytest.mark.parametrize(
    ("column", "at"),
    [
        (DAYS, date(2020, 1, 8)),
        (DAYS, "2020-01-08"),
        (DAYS.cast(pl.Datetime), datetime(2020, 1, 8)),
        (DAYS.cast(pl.Datetime), "2020-01-08 00:00"),
        (DAYS.cast(pl.Datetime("us", "UTC")), "2020-01-08"),
        (DAYS.cast(pl.Datetime("us", "UTC")), datetime(2020, 1, 8, tzinfo=UTC)),
        (DAYS.cast(pl.String), "2020-01-08"),
        (pl.Series(range(10)), 7),
        (pl.Series(range(10)), 7.0),
        (pl.Series(range(10)).cast(pl.Float64), 6.5),
        (pl.Series(range(10)), 0.7),
        (DAYS, 0.7),
    ],
)
def test_rows_are_split_at_a_moment_of_any_type(column: pl.Series, at: Any) -> None:
    before, later = split_by_time(ROWS.with_columns(day=column).reverse(), at, time="day")
    assert before["item_id"].to_list() == list("gfedcba")
    assert later["item_id"].to_list() == list("jih")


def test_rows_of_one_moment_stay_together() -> None:
    before, later = split_by_time(ROWS.with_columns(day=pl.Series([0] * 4 + [1] * 6)), 0.6, time="day")
    assert (len(before), len(later)) == (4, 6)


def test_halves_are_dataframes_of_the_callers_library() -> None:
    panda = pd.DataFrame(
        {"user_id": [1, 2, 3], "item_id": [1, 2, 3], "datetime": pd.to_datetime(["2020", "2021", "2022"])}
    )
    before, later = split_by_time(panda, "2021-06-01")
    assert isinstance(before, pd.DataFrame)
    assert later["user_id"].tolist() == [3]
    assert isinstance(split_by_time(ROWS.lazy(), 0.5, time="day")[0], pl.DataFrame)


@pytest.mark.parametrize(
    ("rows", "at", "words"),
    [
        (ROWS, "2031-01-01", "want a moment between 2020-01-01 and 2020-01-10"),
        (ROWS, "soon", "at: want a moment of 'day', which is Date"),
        (ROWS.drop("day"), 0.5, "want the column 'day'"),
        (ROWS.with_columns(day=pl.lit("later")), 0.5, "day: want dates, times or numbers"),
        (ROWS.with_columns(day=pl.lit(None)), 0.5, "day: want no null"),
    ],
)
def test_wrong_moments_are_errors_of_one_line(rows: pl.DataFrame, at: Any, words: str) -> None:
    with pytest.raises(DropoutError, match=words) as error:
        split_by_time(rows, at, time="day")
    assert "\n" not in str(error.value)


def later_rows() -> pl.DataFrame:
    """Two users of fit, one with what they had already, two new ones, one with too few items, and an unknown item."""
    likes = checkerboard()
    had = likes.filter(user_id=1)["item_id"][0]
    more = ["a10", "a11", "b00", "b01"]
    return pl.DataFrame(
        {
            "user_id": [0] * 4 + [1] + [900] * 5 + [901] * 2,
            "item_id": [*more, had, "c00", "c01", "c02", "c03", "c04", "c00", "never seen"],
        }
    )


def test_report_counts_users_by_kind() -> None:
    model = Recommender("ease").fit(checkerboard())
    report = model.evaluate(later_rows())
    assert report.kinds == {"of fit": 1, "new": 1, "nothing to find": 2, "unknown items": 1}
    assert report.users == 2
    assert report.record()["kinds"] == report.kinds


def test_command_fits_before_a_moment_and_evaluates_after(tmp_path: Path) -> None:
    rows = pl.concat([checkerboard().with_columns(year=2000), later_rows().with_columns(year=2001)])
    rows.write_csv(tmp_path / "likes.csv")

    def call(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["recommend", *map(str, arguments)], env={"COLUMNS": "200"})

    path, model = tmp_path / "likes.csv", tmp_path / "model"
    assert call("fit", path, "--method", "ease", "--before", 2001, "--time", "year", "--out", model).exit_code == 0
    expected = Recommender("ease").fit(checkerboard())
    assert Recommender.load(model).recommend([3], k=4).equals(expected.recommend([3], k=4))
    done = call("evaluate", model, path, "--after", 2001, "--time", "year", "--out", tmp_path / "report.json")
    assert done.exit_code == 0, done.output
    assert "of fit: 1, new: 1, nothing to find: 2, unknown items: 1" in done.output
    assert json.loads((tmp_path / "report.json").read_text())["mean"] == expected.evaluate(later_rows()).mean
    for wrong, words in (
        (("--time", "year"), "--time: want it with --after"),
        (("--after", 1), "want the column 'datetime'"),
    ):
        assert words in call("evaluate", model, path, *wrong).stderr


def test_newest_fifth_of_new_users_is_hidden_and_ratings_below_a_like_are_not_counted() -> None:
    rows = pl.DataFrame(
        {
            "user_id": ["new"] * 8,
            "item_id": list("dbcaefgd"),
            "weight": [5, 5, 5, 5, 5, 5, 1, 5],
            "datetime": [5, 2, 9, 1, 4, 3, 99, 100],  # d comes again at the end, and counts from when it came first
        }
    )
    known = Interactions.from_frame(rows, at_least=4)
    held = fold_in_by_time(known, rows, "datetime")
    assert known.items.gather(held.held_out.indices).to_list() == ["c"]
    assert known.items.gather(held.fold_in.indices).to_list() == list("abdef")


def test_evaluation_of_new_users_hides_by_time() -> None:
    likes = generate_shop(users=200, items=30, groups=3).interactions
    model = Recommender("popularity").fit(likes)
    order = pl.Series(range(len(likes))).shuffle(seed=3)
    later = likes.with_columns(pl.col("user_id") + 1_000, datetime=order)
    held, _ = model.fitted_ids().held_out(later, 0)
    for row, user in enumerate(held.users.to_list()):
        hidden = set(model.items_.gather(held.held_out[[row]].indices))
        mine = later.filter(pl.col("user_id") == user).sort("datetime")["item_id"].to_list()
        assert hidden == set(mine[len(mine) - len(mine) // 5 :] if len(mine) >= 5 else [])
