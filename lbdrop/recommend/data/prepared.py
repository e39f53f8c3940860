"""A prepared data set, read back in a second: likes as CSR in safetensors, ids and titles in Parquet, a manifest.

    netflix/likes.safetensors   indptr (users + 1,) and indices (likes,), in the smallest type that holds them; values,
                                if they are not all 1
    netflix/users.parquet       user_id by row
    netflix/items.parquet       item_id and title by column
    netflix/manifest.json       settings, counts, source files with their sizes; and the seal of lbdrop.io.manifest

The split is not stored: it follows from the seed in a second or two. The folder is written under a temporary name and renamed.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors import safe_open
from scipy.sparse import csr_array

from lbdrop.errors import DropoutError
from lbdrop.io.files import PART, replacing
from lbdrop.io.manifest import Kind, is_ours, read_header, reading, write_header
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.parquet_sizes import check_ids_fit
from lbdrop.recommend.data.polars_panics import panics_as_errors
from lbdrop.recommend.data.rows import Resident, Rows
from lbdrop.recommend.data.splits import Split, split_users

__all__ = [
    "KIND",
    "LIKES",
    "Prepared",
    "in_place_of",
    "is_prepared",
    "load_prepared",
    "load_rows",
    "source_record",
    "write_ids",
]

LIKES, USERS, ITEMS, MANIFEST = "likes.safetensors", "users.parquet", "items.parquet", "manifest.json"
KIND = Kind(
    "lbdrop prepared data", MANIFEST, r"likes\.safetensors|(users|items)\.parquet", format=2, oldest=1,
    what="a prepared data set", again="run lbdrop data prepare again",
    keys_without_kind=frozenset({"format", "name", "settings", "counts", "sha256"}),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Prepared:
    """Likes and titles of a data set."""

    name: str
    interactions: Interactions
    titles: pl.Series
    """Of each item, in order of the columns; its id as text where no title is known."""
    manifest: dict[str, Any]

    def split(self, held_out_users: int | None = None, seed: int | None = None) -> Split:
        """Train, validation and test users, by default as the manifest says."""
        settings = self.manifest["settings"]
        users = settings["held_out_users"] if held_out_users is None else held_out_users
        if users is None:
            raise DropoutError("held_out_users: want a number, got none; the manifest has none, so pass one")
        return split_users(self.interactions, users, settings["seed"] if seed is None else seed)


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds a prepared data set."""
    return (folder / MANIFEST).is_file() and ((folder / LIKES).exists() or is_ours(folder, KIND))


def load_prepared(folder: str | Path) -> Prepared:
    """Read a prepared data set, checked against its manifest."""
    with _checked(Path(folder)) as (manifest, indptr, indices, values, users, items):
        data = np.ones(len(indices), np.float32) if values is None else values
        small = indptr.astype(np.int32) if len(indices) < 2**31 else indptr
        rows = csr_array((data, indices, small), (len(users), len(items)))
        rows.has_canonical_format = True
        return Prepared(manifest["name"], Interactions(rows, users, items["item_id"]), items["title"], manifest)


def load_rows(folder: str | Path, device: torch.device | str | None = None, resident: Resident = "host") -> Rows:
    """Training rows straight from a folder, for :func:`lbdrop.recommend.fit`; the file may be larger than the memory.

    On the host the rows are a memory map of the file, which the system reads when they are needed. The weights of
    interactions are ignored.
    """
    with _checked(Path(folder)) as (_, indptr, indices, _, _, items):
        return Rows(indptr, torch.from_numpy(indices), len(items), device=device, resident=resident)


@contextmanager
def _checked(folder: Path) -> Iterator[tuple[Any, ...]]:
    """Manifest, indptr, indices, values, users and items of a folder; an error unless they match the manifest."""
    with reading(folder, KIND.again):
        manifest = read_header(folder, KIND)
        _check_manifest(manifest)
        for file in (USERS, ITEMS):
            check_ids_fit(folder / file, folder / LIKES, 1)
        with safe_open(
            folder / LIKES, "pt"
        ) as file:  # tensors of torch are maps of the file, arrays of numpy would be copies
            arrays = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118
        with panics_as_errors():
            users, items = pl.read_parquet(folder / USERS)["user_id"], pl.read_parquet(folder / ITEMS)
        _check_parts(arrays, users, items)
        indptr, indices = arrays["indptr"].astype(np.int64), arrays["indices"].astype(np.int32, copy=False)
        whole = len(indptr) == len(users) + 1 and indptr[0] == 0 and indptr[-1] == len(indices)
        if not whole or (np.diff(indptr) < 0).any() or not _within(indices, len(items["item_id"])):
            raise ValueError(f"likes that do not fit {len(users):,} users and {len(items):,} items")
        yield manifest, indptr, indices, arrays.get("values"), users, items


def _check_manifest(manifest: Any) -> None:
    """An error unless the entries that are used have their types."""
    settings = manifest["settings"]
    for value, kind in ((manifest["name"], str), (settings, dict)):
        if not isinstance(value, kind):
            raise TypeError(f"{value!r:.60} where a {kind.__name__} should be")
    for name in ("held_out_users", "seed"):
        value = settings.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32):
            raise ValueError(f"{name} {value!r:.60} in its settings")


def _check_parts(arrays: dict[str, np.ndarray], users: pl.Series, items: pl.DataFrame) -> None:
    for ids in (users, items["item_id"]):
        if not (ids.dtype.is_integer() or ids.dtype == pl.String) or ids.null_count() or ids.n_unique() != len(ids):
            raise ValueError(f"ids of {ids.dtype} with repeats or nulls, or of another kind")
    if items["title"].dtype != pl.String or items["title"].null_count():
        raise ValueError(f"titles of {items['title'].dtype}, or missing ones")
    for name, kinds in (("indptr", "iu"), ("indices", "iu"), ("values", "f")):
        if name in arrays and (arrays[name].ndim != 1 or arrays[name].dtype.kind not in kinds):
            raise ValueError(f"{name} of {arrays[name].dtype} and shape {arrays[name].shape}")
    values = arrays.get("values")
    if values is not None and (len(values) != len(arrays["indices"]) or not (np.isfinite(values) & (values > 0)).all()):
        raise ValueError(f"{len(values):,} values for {len(arrays['indices']):,} likes, or some that are not above 0")


def _within(indices: np.ndarray, items: int) -> bool:
    return not len(indices) or bool(indices.min() >= 0 and indices.max() < items)


def source_record(files: Sequence[tuple[str, int]], note: str = "") -> dict[str, Any]:
    """The entry of a manifest about the files that were read."""
    sizes = "\n".join(f"{name} {size}" for name, size in sorted(files))
    return {
        "files": len(files),
        "bytes": sum(size for _, size in files),
        "names and sizes": dict(files[:10]),
        "sha256 of names and sizes": hashlib.sha256(sizes.encode()).hexdigest(),
        "note": note,
    }


def write_ids(folder: Path, users: pl.Series, items: pl.Series, titles: pl.Series, manifest: dict[str, Any]) -> None:
    """Write ids, titles and, last, the sealed manifest beside the likes."""
    pl.DataFrame({"user_id": users}).write_parquet(folder / USERS)
    pl.DataFrame({"item_id": items, "title": titles}).write_parquet(folder / ITEMS)
    manifest |= write_header(folder, KIND, manifest)


@contextmanager
def in_place_of(folder: Path) -> Iterator[Path]:
    """A temporary folder that replaces ``folder`` at the end; an error if ``folder`` has other files."""
    found = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
    ours = rf"{KIND.files}|{PART}" + rf"|{MANIFEST}" * is_ours(folder, KIND)
    if others := [name for name in found if not re.fullmatch(ours, name)]:
        raise DropoutError(f"{folder}: want a place for a data set, got {others[0]} there; choose another")
    with replacing(folder) as beside:
        beside.mkdir()
        yield beside
