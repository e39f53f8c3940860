"""A user's own files as a prepared data set: streamed, checked and compressed within a bounded memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from lbdrop.io.records import provenance
from lbdrop.recommend.data.polars_panics import panics_as_errors
from lbdrop.recommend.data.prepared import LIKES, in_place_of, source_record, write_ids
from lbdrop.recommend.data.splits import SEED
from lbdrop.recommend.data.streaming_csr import Progress, compress_rows, survey
from lbdrop.recommend.data.table_files import find_table_files, ids_as_integers, reading, scan_table_files

__all__ = ["OWN", "prepare_files"]

OWN = "own"
"""The name of a data set of the user's own files."""


def prepare_files(
    source: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    at_least: float | None = None,
    min_user_items: int = 0,
    min_item_users: int = 0,
    held_out_users: int | None = None,
    user: str = "user_id",
    item: str = "item_id",
    weight: str | None = "weight",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Stream the user's files to the folder ``out``/own, within memory for ids and one part of the rows; return the manifest.

    :mod:`lbdrop.recommend.data.interactions` says how rows, ids and weights are treated; :func:`load_prepared` and
    :func:`load_rows` read the result.

    Args:
        source: CSV, TSV or Parquet: a file, a folder of files, a pattern such as ``events/*.parquet``, or several of these.
        out: a folder, made if necessary.
        at_least: keep weights of at least this, as likes.
        min_user_items: leave out users with fewer distinct items, after the items' filter.
        min_item_users: leave out items with fewer distinct users.
        held_out_users: the default of :meth:`Prepared.split`.
        user: name of the column of users; ``item`` and ``weight`` likewise.
        progress: called with the rows read so far and the rows in all.
    """
    files = find_table_files(source)
    shown = files[0] if len(files) == 1 else f"{files[0]} … {files[-1]}"
    with reading(shown), panics_as_errors():
        frame = scan_table_files(files, (user, item), weight)
        if files[0].suffix != ".parquet" and {user, item} <= set(frame.collect_schema().names()):
            frame = ids_as_integers(frame, (user, item))
        surveyed = survey(frame, at_least, user, item, weight)
    with in_place_of(Path(out) / OWN) as folder:
        with reading(shown, writing=True):
            found = compress_rows(surveyed, folder / LIKES, min_user_items, min_item_users, progress)
        manifest = {
            "name": OWN,
            "title": "own files",
            "settings": {"at_least": at_least, "min_user_items": min_user_items, "min_item_users": min_item_users,
                         "held_out_users": held_out_users, "seed": SEED},
            "counts": {"rows read": surveyed.rows, "events": found.entries, "users": len(found.users),
                       "items": len(found.items)},
            "published": {},
            "source": source_record([(file.name, file.stat().st_size) for file in files]),
            **provenance(),
        }  # fmt: skip
        write_ids(folder, found.users, found.items, found.items.cast(pl.String), manifest)
    return manifest
