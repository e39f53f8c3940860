"""Tables too long for memory, one after the other into a single Parquet file that is there whole or not at all."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import polars as pl

__all__ = ["to_parquet"]

ROWS = 1_000_000
"""Rows held before they are written: a few dozen megabytes, and parts that are worth a file."""


def to_parquet(path: Path, tables: Iterable[pl.DataFrame]) -> int:
    """Write the tables in order and return the number of rows; memory is that of a part, however many there are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts, beside = (path.with_name(f"{path.name}.{os.getpid()}.{kind}") for kind in ("parts", "part"))
    parts.mkdir()
    try:
        waiting: list[pl.DataFrame] = []
        files, rows, held = [], 0, 0
        for table in tables:
            waiting.append(table)
            held += len(table)
            if held >= ROWS:
                files.append(_write(parts, len(files), waiting))
                rows, held, waiting = rows + held, 0, []
        files.append(_write(parts, len(files), waiting))
        # Polars writes row groups as it reads them, so the parts are never together in memory.
        pl.scan_parquet(files).sink_parquet(beside)
        beside.replace(path)
        return rows + held
    finally:
        beside.unlink(missing_ok=True)
        shutil.rmtree(parts, ignore_errors=True)


def _write(folder: Path, number: int, tables: list[pl.DataFrame]) -> Path:
    path = folder / f"{number:06d}.parquet"
    (pl.concat(tables) if tables else pl.DataFrame()).write_parquet(path)
    return path
