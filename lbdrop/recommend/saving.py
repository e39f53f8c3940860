"""A fitted recommender as a folder: tensors in safetensors, ids in Parquet, the rest in JSON; nothing is ever unpickled.

    model.json             format, method, settings, seed, how training went
    weights.safetensors    what was learned
    items.parquet          item_id and likes, by column
    histories.safetensors  indptr and indices: what each user has; left out where histories shall not leave the house
    users.parquet          user_id by row; likewise

The folder is written beside its place and renamed, so that whoever looks finds the old model or the new one. What is read is
checked for names, types, shapes and ranges before anything is built from it.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save as pack_arrays
from safetensors.torch import load_file, save
from scipy.sparse import csr_array
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.recommend.choices import Choice
from lbdrop.recommend.interactions import Interactions
from lbdrop.recommend.linear import Linear
from lbdrop.recommend.vae import VAE

__all__ = ["Saved", "check_place", "read", "rebuild", "write"]

FORMAT = 1
HEADER, WEIGHTS, ITEMS, HISTORIES, USERS = (
    "model.json", "weights.safetensors", "items.parquet", "histories.safetensors", "users.parquet"
)  # fmt: skip

Shapes = dict[str, tuple[int, ...]]


class Saved(NamedTuple):
    """What a folder holds."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]
    items: pl.Series
    likes: np.ndarray
    interactions: Interactions | None


def check_place(folder: Path) -> None:
    """An error where a model cannot be written, told before the work of fitting one."""
    if folder.exists() and not (folder / HEADER).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise DropoutError(f"{folder}: want a new or empty folder or a saved model, got something else; choose another")


def write(folder: Path, saved: Saved) -> None:
    """Write the folder beside its place and rename it; a folder that holds something else is left alone."""
    check_place(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside, old = (folder.with_name(f"{folder.name}.{os.getpid()}.{kind}") for kind in ("part", "old"))
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        # As bytes: save_file would leave a file for its owner's eyes only.
        tensors = {
            name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in saved.tensors.items()
        }
        (beside / WEIGHTS).write_bytes(save(tensors))
        pl.DataFrame({"item_id": saved.items, "likes": saved.likes}).write_parquet(beside / ITEMS)
        if saved.interactions is not None:
            rows = saved.interactions.rows
            packed = {"indptr": rows.indptr.astype(np.int64), "indices": rows.indices.astype(np.int32)}
            (beside / HISTORIES).write_bytes(pack_arrays(packed))
            pl.DataFrame({"user_id": saved.interactions.users}).write_parquet(beside / USERS)
        header = {"format": FORMAT, **saved.header}
        (beside / HEADER).write_text(json.dumps(header, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if folder.exists():
            folder.rename(old)
        beside.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for left in (beside, old):
            shutil.rmtree(left, ignore_errors=True)


def read(folder: Path) -> Saved:
    """Read and check a folder, all but whether the tensors are those of its method: see :func:`rebuild`."""
    header = _header(folder)
    with _reading(folder, ITEMS):
        table = pl.read_parquet(folder / ITEMS)
        items, likes = table["item_id"], table["likes"].cast(pl.Float32).to_numpy(writable=True)
        _check_ids(items, folder / ITEMS)
        if len(items) != header["items"]:
            raise ValueError(f"{len(items):,} items where model.json says {header['items']:,}")
    interactions = None
    if header["users"] is not None:
        with _reading(folder, USERS):
            users = pl.read_parquet(folder / USERS)["user_id"]
            _check_ids(users, folder / USERS)
            if len(users) != header["users"]:
                raise ValueError(f"{len(users):,} users where model.json says {header['users']:,}")
        with _reading(folder, HISTORIES):
            interactions = Interactions(_rows(load_arrays(folder / HISTORIES), len(users), len(items)), users, items)
    with _reading(folder, WEIGHTS):
        tensors = load_file(folder / WEIGHTS)
    return Saved(header, tensors, items, likes, interactions)


def rebuild(folder: Path, saved: Saved, choice: Choice, device: torch.device | str | None) -> VAE | Linear:
    """The model of these settings with the saved tensors, if they are all there and fit."""
    items, found = len(saved.items), {name: tuple(tensor.shape) for name, tensor in saved.tensors.items()}
    if choice.settings is None:
        model = choice.linear(saved.header["seed"], device)
        _check_shapes(folder, found, _linear_shapes(model.name, items, found))
        return model.restore(saved.tensors)
    users = found.get("encoder.user", (0,))[0]
    with (
        _reading(folder, HEADER),
        torch.device("meta"),
    ):  # shapes first: a wrong number in the file must not cost memory
        wanted = VAE(items, choice.settings, users).state_dict()
    _check_shapes(folder, found, {name: tuple(tensor.shape) for name, tensor in wanted.items()})
    with torch.random.fork_rng(devices=[]):
        network = VAE(items, choice.settings, users)
    network.load_state_dict(saved.tensors)
    return network.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()


def _linear_shapes(name: str, items: int, found: Shapes) -> Shapes:
    if name == "popularity":
        return {"counts": (items,)}
    if name in ("ease", "slim"):
        return {"weights": (items, items)}
    return {"items": (items, *found.get("items", (items, 0))[1:2])}  # vectors of any length


def _check_shapes(folder: Path, found: Shapes, wanted: Shapes) -> None:
    """One line about the first tensor that is missing, too many, or of another shape."""
    where = folder / WEIGHTS
    for name in wanted.keys() - found.keys():
        raise DropoutError(f"{where}: want the tensor {name}, got none; save the model again")
    for name in found.keys() - wanted.keys():
        raise DropoutError(f"{where}: want no tensor {name}, got one; model.json belongs to another model")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise DropoutError(f"{where}: want {name} of shape {shape}, got {found[name]}; save the model again")


# --------------------------------------------------------------------------------------------------------------- parts


def _header(folder: Path) -> dict[str, Any]:
    kinds = {"method": str, "settings": dict, "seed": int, "library": str, "items": int, "users": (int, type(None)),
             "at_least": (int, float, type(None)), "history": (dict, type(None))}  # fmt: skip
    with _reading(folder, HEADER):
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            found = header.get("format") if isinstance(header, dict) else type(header).__name__
            raise DropoutError(f"{folder / HEADER}: want format {FORMAT}, got {found!r}; save the model again")
        for name, kind in kinds.items():
            if name not in header or not isinstance(header[name], kind) or isinstance(header[name], bool):
                raise DropoutError(f"{folder / HEADER}: want {name} as it was saved, got {header.get(name)!r}")
    return header


def _check_ids(ids: pl.Series, path: Path) -> None:
    if not (ids.dtype.is_integer() or ids.dtype == pl.String) or ids.null_count() or ids.n_unique() != len(ids):
        raise DropoutError(f"{path}: want each id once, whole numbers or text, got repeats, nulls or {ids.dtype}")


def _rows(arrays: dict[str, np.ndarray], users: int, items: int) -> csr_array:
    indptr, indices = arrays["indptr"], arrays["indices"]
    whole = len(indptr) == users + 1 and indptr[0] == 0 and indptr[-1] == len(indices) and (np.diff(indptr) >= 0).all()
    if not whole or (len(indices) and not (indices.min() >= 0 and indices.max() < items)):
        raise ValueError(f"histories that do not fit {users:,} users and {items:,} items")
    small = indptr.astype(np.int32) if len(indices) < 2**31 else indptr
    rows = csr_array((np.ones(len(indices), np.float32), indices, small), shape=(users, items))
    rows.sum_duplicates()
    rows.data[:] = 1.0
    return rows


@contextmanager
def _reading(folder: Path, name: str) -> Iterator[None]:
    """What goes wrong with a file is one line that names it."""
    try:
        yield
    except DropoutError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DropoutError(f"{folder}: want a saved recommender, got no {name} there; see Recommender.save") from error
    except (OSError, KeyError, TypeError, IndexError, AttributeError, ValueError, RuntimeError, SafetensorError,
            pl.exceptions.PolarsError) as error:  # fmt: skip
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DropoutError(f"{folder / name}: cannot be read ({reason}); save the model again") from error
