"""A panic of polars is an error like others, and stderr keeps what else was written to it."""

import os

import polars as pl
import pytest

from lbdrop.recommend.panics import no_panic


def test_a_panic_is_an_error_and_its_text_is_gone(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(pl.exceptions.ComputeError, match="^invalid num_bits 82$"), no_panic():
        os.write(2, b"thread 'x' panicked at crates/polars\nnote: run with RUST_BACKTRACE=1\n")
        raise pl.exceptions.PanicException("invalid num_bits 82\nmore")
    assert capfd.readouterr().err == ""


def test_what_others_write_comes_after(capfd: pytest.CaptureFixture[str]) -> None:
    with no_panic():
        os.write(2, b"one\n")
        with no_panic():
            os.write(2, b"two\n")
    with pytest.raises(KeyError), no_panic():
        os.write(2, b"three\n")
        raise KeyError
    os.write(2, b"four\n")
    assert capfd.readouterr().err == "one\ntwo\nthree\nfour\n"
