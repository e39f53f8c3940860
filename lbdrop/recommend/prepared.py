"""A data set prepared once and read back in a second: likes as CSR in safetensors, ids and titles in Parquet, a manifest.

    netflix/likes.safetensors   indptr (users + 1,) and indices (likes,), in the smallest type that holds them
    netflix/users.parquet       user_id by row
    netflix/items.parquet       item_id and title by column
    netflix/manifest.json       settings, counts, source files with their sizes, SHA-256 of the three others

The split is not stored: it follows from the seed in a second or two.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from scipy.sparse import csr_array

from lbdrop.errors import DropoutError
from lbdrop.recommend.interactions import Interactions
from lbdrop.recommend.protocol import Split, split_users
from lbdrop.recommend.ratings import Ratings
from lbdrop.recommend.readers import Protocol, get_protocol, read
from lbdrop.recommend.sources import Progress
from lbdrop.records import provenance, write_json

__all__ = ["Prepared", "counts", "load_prepared", "prepare"]

LIKES, USERS, ITEMS, MANIFEST = "likes.safetensors", "users.parquet", "items.parquet", "manifest.json"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Prepared:
    """Likes with titles, as a protocol wants them."""

    name: str
    interactions: Interactions
    titles: pl.Series
    """Of each item, in order of the columns; its id as text where no title is known."""
    manifest: dict[str, Any]

    def split(self, held_out_users: int | None = None, seed: int | None = None) -> Split:
        """Train, validation and test users, as the protocol has them unless told."""
        settings = self.manifest["settings"]
        users = settings["held_out_users"] if held_out_users is None else held_out_users
        return split_users(self.interactions, users, settings["seed"] if seed is None else seed)


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
        name: a key of :data:`~lbdrop.recommend.readers.PROTOCOLS`.
        source: where the files are, see :func:`~lbdrop.recommend.readers.read`.
        out: a folder, made if need be.
        allow_partial: accept another number of ratings than the complete data has.
        held_out_users: for validation and for test each; the protocol's unless told.
        progress: called with the bytes read so far and those to read.
    """
    protocol = get_protocol(name)
    ratings = read(name, source, allow_partial=allow_partial, progress=progress)
    interactions = protocol.interactions(ratings)
    settings = protocol.settings() | ({} if held_out_users is None else {"held_out_users": held_out_users})
    split = split_users(interactions, int(settings["held_out_users"]), protocol.seed)
    manifest = _manifest(protocol, ratings, interactions, split, settings)
    prepared = Prepared(name, interactions, _titles(ratings.titles, interactions.items), manifest)
    _write(Path(out) / name, prepared)
    return prepared


def load_prepared(folder: str | Path) -> Prepared:
    """Read back what :func:`prepare` wrote, checked against its manifest."""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            raise DropoutError(f"{folder}: want format {FORMAT}, got {manifest['format']}; prepare it again")
        for file, digest in manifest["sha256"].items():
            if (found := _digest(folder / file)) != digest:
                raise DropoutError(f"{folder / file}: want SHA-256 {digest[:12]}…, got {found[:12]}…; prepare it again")
        arrays, items = load_file(folder / LIKES), pl.read_parquet(folder / ITEMS)
        users, ids = pl.read_parquet(folder / USERS)["user_id"], items["item_id"]
        indptr, indices = arrays["indptr"].astype(np.int64), arrays["indices"].astype(np.int32)
        data = np.ones(len(indices), np.float32)
        rows = csr_array(
            (data, indices, indptr.astype(np.int32) if len(data) < 2**31 else indptr), (len(users), len(ids))
        )
        rows.has_canonical_format = True
        return Prepared(manifest["name"], Interactions(rows, users, ids), items["title"], manifest)
    except FileNotFoundError as error:
        raise DropoutError(
            f"{folder}: want a prepared data set, got no {Path(str(error.filename)).name} there; run lbdrop data prepare"
        ) from error
    except (
        OSError,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        SafetensorError,
        pl.exceptions.PolarsError,
    ) as error:
        if isinstance(error, DropoutError):
            raise
        raise DropoutError(
            f"{folder}: want a prepared data set, got {type(error).__name__} ({error}); prepare it again"
        ) from error


def counts(interactions: Interactions, split: Split) -> dict[str, int]:
    """How much there is of everything."""
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
    sizes = "\n".join(f"{name} {size}" for name, size in sorted(ratings.files))
    return {
        "format": FORMAT,
        "name": protocol.name,
        "title": protocol.title,
        "settings": settings,
        "counts": {"rows read": len(ratings.frame), **counts(interactions, split)},
        "published": protocol.published,
        "source": {
            "files": len(ratings.files),
            "bytes": sum(size for _, size in ratings.files),
            "names and sizes": dict(ratings.files[:10]),
            "sha256 of names and sizes": hashlib.sha256(sizes.encode()).hexdigest(),
            "note": ratings.note,
        },
        **provenance(),
    }


def _titles(titles: pl.DataFrame | None, items: pl.Series) -> pl.Series:
    wanted = pl.DataFrame({"item_id": items})
    plain = items.cast(pl.String).alias("title")
    if titles is None:
        return plain
    known = titles.with_columns(pl.col("item_id").cast(items.dtype)).unique("item_id", keep="first")
    return wanted.join(known, on="item_id", how="left", maintain_order="left")["title"].fill_null(plain)


def _write(folder: Path, prepared: Prepared) -> None:
    """The manifest goes first and comes last: without it, what is there is not a data set."""
    rows, items = prepared.interactions.rows, prepared.interactions.items
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    small = np.uint16 if len(items) <= 2**16 else np.int32
    arrays = {"indptr": rows.indptr.astype(np.int64), "indices": rows.indices.astype(small)}
    (folder / LIKES).write_bytes(save(arrays))  # save_file would leave a file for its owner's eyes only
    pl.DataFrame({"user_id": prepared.interactions.users}).write_parquet(folder / USERS)
    pl.DataFrame({"item_id": items, "title": prepared.titles}).write_parquet(folder / ITEMS)
    prepared.manifest["sha256"] = {file: _digest(folder / file) for file in (LIKES, USERS, ITEMS)}
    write_json(folder / MANIFEST, prepared.manifest)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
