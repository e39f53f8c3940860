"""Polars' panics as its errors: a forged Parquet file can make its reader give up, which Rust tells on stderr at length."""

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl

__all__ = ["as_interrupt", "no_panic"]

_ALONE = threading.RLock()  # the process has one stderr


def as_interrupt(error: BaseException) -> BaseException:
    """The error itself; but Ctrl-C while polars is in Python, which is a panic to it, is Ctrl-C again."""
    panic = isinstance(error, pl.exceptions.PanicException)
    return KeyboardInterrupt() if panic and "<class 'KeyboardInterrupt'>" in str(error) else error


@contextmanager
def no_panic() -> Iterator[None]:
    """A panic within is a ``ComputeError``. What is written to stderr meanwhile comes after it, or with a panic not at all."""
    with _ALONE, tempfile.TemporaryFile() as held:
        sys.stderr.flush()
        try:
            kept = os.dup(2)
        except OSError:  # without a stderr
            kept = None
        else:
            os.dup2(held.fileno(), 2)
        panicked = False
        try:
            yield
        except pl.exceptions.PanicException as error:
            panicked = True
            if as_interrupt(error) is not error:
                raise KeyboardInterrupt from None
            raise pl.exceptions.ComputeError(str(error).splitlines()[0] if str(error) else "a panic") from error
        finally:
            if kept is not None:
                os.dup2(kept, 2)
                os.close(kept)
                if not panicked and held.tell():
                    held.seek(0)
                    with open(2, "wb", closefd=False) as stderr:
                        shutil.copyfileobj(held, stderr)
