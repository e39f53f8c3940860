"""A panic of polars is an ordinary error, and other output to stderr is kept."""

import os
from pathlib import Path

import polars as pl
import pytest

from lbdrop.recommend import Recommender
from lbdrop.recommend.answer.queries import Query
from lbdrop.recommend.answer.score_files import score_to
from lbdrop.recommend.data.polars_panics import panics_as_errors
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.data.table_files import reading


def test_panic_is_an_error_without_text_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(pl.exceptions.ComputeError, match="^invalid num_bits 82$"), panics_as_errors():
        os.write(2, b"thread 'x' panicked at crates/polars\nnote: run with RUST_BACKTRACE=1\n")
        raise pl.exceptions.PanicException("invalid num_bits 82\nmore")
    assert capfd.readouterr().err == ""


def test_ctrl_c_within_polars_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    panic = pl.exceptions.PanicException(
        "called `Result::unwrap()` on an `Err` value: PyErr { type: <class 'KeyboardInterrupt'>, value: … }"
    )
    with pytest.raises(KeyboardInterrupt), panics_as_errors():
        raise panic
    with pytest.raises(KeyboardInterrupt), reading(tmp_path):
        raise panic

    def stopped(*_: object) -> None:
        raise panic

    model = Recommender("popularity", progress=False).fit(generate_shop(users=20, items=10, groups=2).interactions)
    with pytest.raises(KeyboardInterrupt):
        score_to(model, tmp_path / "scores", None, Query(3), engine=stopped)
    assert not list(tmp_path.iterdir())


def test_stderr_of_others_is_written_after_the_block(capfd: pytest.CaptureFixture[str]) -> None:
    with panics_as_errors():
        os.write(2, b"one\n")
        with panics_as_errors():
            os.write(2, b"two\n")
    with pytest.raises(KeyError), panics_as_errors():
        os.write(2, b"three\n")
        raise KeyError
    os.write(2, b"four\n")
    assert capfd.readouterr().err == "one\ntwo\nthree\nfour\n"
