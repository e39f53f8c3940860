"""What every reader gives."""

from typing import NamedTuple

import polars as pl

__all__ = ["Ratings"]


class Ratings(NamedTuple):
    """A data set as its files have it, before any filter."""

    frame: pl.DataFrame
    """``user_id``, ``item_id`` and, unless the source has likes alone, ``weight``: the rating or the number of plays."""
    titles: pl.DataFrame | None
    """``item_id``, ``title``; None without a file of titles."""
    files: tuple[tuple[str, int], ...]
    """Name and bytes of each file read."""
    note: str = ""
    """What a reader of results should know about this source."""
