"""One's own files, however long, as a prepared data set: streamed, checked and compressed within a bounded memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from lbdrop.io.records import provenance
from lbdrop.recommend.polars_panics import no_panic
from lbdrop.recommend.prepared import FORMAT, LIKES, in_place_of, source_record, write_ids
from lbdrop.recommend.splits import SEED
from lbdrop.recommend.streaming_csr import Progress, compress_rows, survey
from lbdrop.recommend.table_files import find_parts, reading, scan_parts, whole_numbers

__all__ = ["OWN", "prepare_files"]

OWN = "own"
"""The name of one's own data."""


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
    """Stream one's own files to the folder ``out``/own, within memory for ids and one part of the rows; the manifest.

    What becomes of rows, ids and weights is told in :mod:`lbdrop.recommend.interactions`; :func:`load_prepared` and
    :func:`load_rows` read the result.

    Args:
        source: CSV, TSV or Parquet: a file, a folder of parts, a pattern such as ``events/*.parquet``, or several of these.
        out: a folder, made if need be.
        at_least: keep weights of at least this, as likes.
        min_user_items: leave out users with fewer distinct items, after the items' filter.
        min_item_users: leave out items with fewer distinct users.
        held_out_users: how many :meth:`Prepared.split` holds out unless told.
        user: name of the column of users; ``item`` and ``weight`` likewise.
        progress: called with the rows sorted in so far and those to sort in.
    """
    files = find_parts(source)
    shown = files[0] if len(files) == 1 else f"{files[0]} … {files[-1]}"
    with reading(shown), no_panic():
        frame = scan_parts(files, (user, item), weight)
        if files[0].suffix != ".parquet" and {user, item} <= set(frame.collect_schema().names()):
            frame = whole_numbers(frame, (user, item))
        surveyed = survey(frame, at_least, user, item, weight)
    with in_place_of(Path(out) / OWN) as folder:
        with reading(shown, writing=True):
            found = compress_rows(surveyed, folder / LIKES, min_user_items, min_item_users, progress)
        manifest = {
            "format": FORMAT,
            "name": OWN,
            "title": "own files",
            "settings": {"at_least": at_least, "min_user_items": min_user_items, "min_item_users": min_item_users,
                         "held_out_users": held_out_users, "seed": SEED},
            "counts": {"rows read": surveyed.rows, "events": found.entries, "users": len(found.users),
                       "items": len(found.items)},
            "published": {},
            "source": source_record([(part.name, part.stat().st_size) for part in files]),
            **provenance(),
        }  # fmt: skip
        write_ids(folder, found.users, found.items, found.items.cast(pl.String), manifest)
    return manifest
