"""A data set of the literature as a folder: read its official files, keep what the protocol keeps, count, and write."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.numpy import save

from experiments.collaborative.data.official_files import Progress, Ratings
from experiments.collaborative.data.protocols import Protocol, get_protocol, read
from lbdrop.io.records import provenance
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.prepared import LIKES, Prepared, in_place_of, source_record, write_ids
from lbdrop.recommend.data.splits import Split, split_users

__all__ = ["counts", "prepare", "titles_of"]


def prepare(
    name: str,
    source: str | Path,
    out: str | Path,
    *,
    allow_partial: bool = False,
    held_out_users: int | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Read official files, keep the likes of the protocol, and write them to the folder ``out``/``name``.

    Args:
        name: a key of :data:`~experiments.collaborative.data.protocols.PROTOCOLS`.
        source: where the files are, see :func:`~experiments.collaborative.data.protocols.read`.
        out: a folder, made if necessary.
        allow_partial: accept another number of ratings than the complete data has.
        held_out_users: for validation and for test each; the default is the protocol's.
        progress: called with the bytes read so far and those to read.
    """
    protocol = get_protocol(name)
    ratings = read(name, source, allow_partial=allow_partial, progress=progress)
    interactions = protocol.interactions(ratings)
    settings = protocol.settings() | ({} if held_out_users is None else {"held_out_users": held_out_users})
    split = split_users(interactions, int(settings["held_out_users"]), protocol.seed)
    manifest = _manifest(protocol, ratings, interactions, split, settings)
    prepared = Prepared(name, interactions, titles_of(ratings.titles, interactions.items), manifest)
    _write(Path(out) / name, prepared)
    return prepared


def counts(interactions: Interactions, split: Split) -> dict[str, int]:
    """Counts of the data and of each part of its split."""
    held = {"validation": split.validation, "test": split.test}
    return {
        "events": interactions.rows.nnz,
        "users": len(interactions.users),
        "items": len(interactions.items),
        "train items": len(split.train.items),
        "train users": len(split.train.users),
        "train events": split.train.rows.nnz,
        **{f"{name} users": len(part.users) for name, part in held.items()},
        **{f"{name} users scored": part.scored for name, part in held.items()},
        **{f"{name} fold-in": part.fold_in.nnz for name, part in held.items()},
        **{f"{name} held-out": part.held_out.nnz for name, part in held.items()},
    }


def _manifest(
    protocol: Protocol, ratings: Ratings, interactions: Interactions, split: Split, settings: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": protocol.name,
        "title": protocol.title,
        "settings": settings,
        "counts": {"rows read": len(ratings.frame), **counts(interactions, split)},
        "published": protocol.published,
        "source": source_record(ratings.files, ratings.note),
        **provenance(),
    }


def titles_of(titles: pl.DataFrame | None, items: pl.Series) -> pl.Series:
    """The title of each item; its id as text where there is none."""
    wanted = pl.DataFrame({"item_id": items})
    plain = items.cast(pl.String).alias("title")
    if titles is None:
        return plain
    known = titles.with_columns(pl.col("item_id").cast(items.dtype)).unique("item_id", keep="first")
    return wanted.join(known, on="item_id", how="left", maintain_order="left")["title"].fill_null(plain)


def _write(folder: Path, prepared: Prepared) -> None:
    rows, items = prepared.interactions.rows, prepared.interactions.items
    small = np.uint16 if len(items) <= 2**16 else np.int32
    arrays = {"indptr": rows.indptr.astype(np.int64), "indices": rows.indices.astype(small)}
    with in_place_of(folder) as beside:
        (beside / LIKES).write_bytes(save(arrays))  # save_file would leave a file for its owner's eyes only
        write_ids(beside, prepared.interactions.users, items, prepared.titles, prepared.manifest)
