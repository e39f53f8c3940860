"""Panics of polars as its errors: a forged Parquet file can make its reader panic, and Rust then prints to stderr."""

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl

__all__ = ["interrupt_or_itself", "panics_as_errors"]

_STDERR_LOCK = threading.RLock()  # the process has one stderr


def interrupt_or_itself(error: BaseException) -> BaseException:
    """The error itself; but KeyboardInterrupt if polars turned Ctrl-C in a Python callback into a panic."""
    panic = isinstance(error, pl.exceptions.PanicException)
    return KeyboardInterrupt() if panic and "<class 'KeyboardInterrupt'>" in str(error) else error


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a panic in the block as ``ComputeError``; stderr is held back, and dropped if there was a panic."""
    with _STDERR_LOCK, tempfile.TemporaryFile() as captured:
        sys.stderr.flush()
        try:
            stderr = os.dup(2)
        except OSError:  # without a stderr
            stderr = None
        else:
            os.dup2(captured.fileno(), 2)
        panicked = False
        try:
            yield
        except pl.exceptions.PanicException as error:
            panicked = True
            if interrupt_or_itself(error) is not error:
                raise KeyboardInterrupt from None
            raise pl.exceptions.ComputeError(str(error).splitlines()[0] if str(error) else "a panic") from error
        finally:
            if stderr is not None:
                os.dup2(stderr, 2)
                os.close(stderr)
                if not panicked and captured.tell():
                    captured.seek(0)
                    with open(2, "wb", closefd=False) as out:
                        shutil.copyfileobj(captured, out)
