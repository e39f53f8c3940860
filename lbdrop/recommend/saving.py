"""A fitted recommender as a folder: tensors in safetensors, ids in Parquet, the rest in JSON; nothing is unpickled.

    model.json             method, settings, seed, how training went; and the seal of lbdrop.io.manifest
    weights.safetensors    what was learned
    items.parquet          item_id and likes, by column
    histories.safetensors  indptr and indices: what each user has; left out with histories=False
    users.parquet          user_id by row; likewise
    features.safetensors   of a model with item features: what was learned from them; how they are read is in model.json
    new_items.parquet      likewise: item_id of the items that nobody had

The folder is written under a temporary name and renamed, so a reader finds the old model or the new one. Names, types, shapes
and ranges are checked before anything is built from a file.
"""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save as pack_arrays
from safetensors.torch import load_file, save
from scipy.sparse import csr_array
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.io.files import PART, replacing
from lbdrop.io.manifest import Kind, is_ours, read_header, reading, write_header
from lbdrop.io.records import provenance
from lbdrop.recommend.answer.new_items import NewItems
from lbdrop.recommend.answer.tables import LIBRARIES
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.item_features import encode
from lbdrop.recommend.data.parquet_sizes import check_ids_fit
from lbdrop.recommend.data.polars_panics import panics_as_errors
from lbdrop.recommend.linear.methods import LINEAR, Blend, Linear
from lbdrop.recommend.method_args import MethodChoice, choose_method, settings_from_dict
from lbdrop.recommend.model.product import Product
from lbdrop.recommend.model.settings import Settings
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.fit import History

__all__ = ["Saved", "check_target", "read", "rebuild", "write"]

MAX_MASKS = 10_000
"""A file with more would keep the machine busy for days."""
HEADER, WEIGHTS, ITEMS, HISTORIES, USERS = (
    "model.json", "weights.safetensors", "items.parquet", "histories.safetensors", "users.parquet"
)  # fmt: skip
FEATURES, NEW_ITEMS = "features.safetensors", "new_items.parquet"
KIND = Kind(
    "lbdrop recommender", HEADER, r"(weights|histories|features)\.safetensors|(items|users|new_items)\.parquet",
    format=2, oldest=1, what="a saved recommender", again="save the model again, see Recommender.save",
    keys_without_kind=frozenset({"format", "method", "settings", "seed", "library", "items", "users"}),
)  # fmt: skip

BLANKS = {"number": pl.Float64(), "tags": pl.String(), "embedding": pl.List(pl.Float64)}
"""The types of columns of features."""
Shapes = dict[str, tuple[int, ...]]


class Saved(NamedTuple):
    """The content of a folder."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]
    items: pl.Series
    likes: np.ndarray
    interactions: Interactions | None
    new_items: NewItems | None = None


def check_target(folder: Path) -> None:
    """An error if a model cannot be written there; called before the work of fitting.

    A model replaces an empty folder, or a saved model without other files: no other file is ever removed.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir() or not is_ours(folder, KIND):
        raise DropoutError(f"{folder}: want a new or empty folder or a saved model, got something else; choose another")
    others = sorted(
        each.name for each in folder.iterdir() if not re.fullmatch(rf"{KIND.files}|{HEADER}|{PART}", each.name)
    )
    if others:
        raise DropoutError(
            f"{folder}: want a saved model alone, got {', '.join(others[:4])} beside it, which would be lost; move"
            f" {'it' if len(others) == 1 else 'them'} elsewhere, or choose another folder"
        )


def write(folder: Path, saved: Saved) -> None:
    """Write a temporary folder and rename it; a folder with other files is an error."""
    check_target(folder)
    with replacing(folder) as temporary:
        temporary.mkdir()
        # As bytes, because save_file makes a file that only its owner can read.
        tensors = {
            name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in saved.tensors.items()
        }
        (temporary / WEIGHTS).write_bytes(save(tensors))
        pl.DataFrame({"item_id": saved.items, "likes": saved.likes}).write_parquet(temporary / ITEMS)
        if saved.interactions is not None:
            rows = saved.interactions.rows
            packed = {"indptr": rows.indptr.astype(np.int64), "indices": rows.indices.astype(np.int32)}
            (temporary / HISTORIES).write_bytes(pack_arrays(packed))
            pl.DataFrame({"user_id": saved.interactions.users}).write_parquet(temporary / USERS)
        header = saved.header
        if (new := saved.new_items) is not None:
            learned = {"mean": torch.from_numpy(new.mean), "from_scores": new.from_scores, "features": new.features}
            (temporary / FEATURES).write_bytes(save({name: t.cpu().contiguous() for name, t in learned.items()}))
            pl.DataFrame({"item_id": new.ids}).write_parquet(temporary / NEW_ITEMS)
            header = {**header, "features": {"plan": new.plan, "ridge": new.ridge}}
        write_header(temporary, KIND, header)


def read(folder: Path) -> Saved:
    """Read and check a folder; :func:`rebuild` checks whether the tensors fit the method."""
    header = _header(folder)
    with reading(folder / ITEMS, KIND.again):
        _check_rows(header, "items", check_ids_fit(folder / ITEMS, folder / WEIGHTS, 4))
        with panics_as_errors():
            table = pl.read_parquet(folder / ITEMS)
        items, likes = table["item_id"], table["likes"].cast(pl.Float32).to_numpy(writable=True)
        _check_ids(items, folder / ITEMS)
        if not (np.isfinite(likes) & (likes >= 0)).all():
            raise ValueError("likes that are not counts")
    interactions = None
    if header["users"] is not None:
        with reading(folder / USERS, KIND.again):
            _check_rows(header, "users", check_ids_fit(folder / USERS, folder / HISTORIES, 8))
            with panics_as_errors():
                users = pl.read_parquet(folder / USERS)["user_id"]
            _check_ids(users, folder / USERS)
        with reading(folder / HISTORIES, KIND.again):
            interactions = Interactions(_rows(load_arrays(folder / HISTORIES), len(users), len(items)), users, items)
    with reading(folder / WEIGHTS, KIND.again):
        # Earlier versions had responses to other rates; they answered only while rates were learned.
        tensors = {name: tensor for name, tensor in load_file(folder / WEIGHTS).items() if ".response." not in name}
    return Saved(header, tensors, items, likes, interactions, _read_new_items(folder, header, items))


def _read_new_items(folder: Path, header: dict[str, Any], items: pl.Series) -> NewItems | None:
    if "features" not in header:
        return None
    with reading(folder / FEATURES, KIND.again):
        learned = load_file(folder / FEATURES)
        mean, weights, features = (learned[name] for name in ("mean", "from_scores", "features"))
        _check_numbers(folder, learned, len(items))
    with reading(folder / NEW_ITEMS, KIND.again):
        check_ids_fit(folder / NEW_ITEMS, folder / FEATURES, 4)
        with panics_as_errors():
            ids = pl.read_parquet(folder / NEW_ITEMS)["item_id"]
        _check_ids(ids, folder / NEW_ITEMS)
        if weights.shape != (len(items), len(mean) + 1) or features.shape != (len(ids), len(mean) + 1):
            raise ValueError(f"tensors that do not fit {len(items):,} items and {len(ids):,} new ones")
    with reading(folder / HEADER, KIND.again):
        plan = header["features"]["plan"]
        # A row without any value: a plan that is none is an error here, not in add_items.
        blank = pl.DataFrame({step["name"]: pl.Series([None], dtype=BLANKS[step["kind"]]) for step in plan})
        width = sum(step["size"] if step["kind"] == "embedding" else 0 for step in plan)
        if width + encode([s for s in plan if s["kind"] != "embedding"], blank).shape[1] != len(mean):
            raise ValueError("features that do not fit the tensors")
        return NewItems(plan, mean.double().numpy(), weights, ids, features, float(header["features"]["ridge"]))


def method_record(choice: MethodChoice, settings: Settings | None, history: History | None) -> dict[str, Any]:
    """What a header says of the method, and where it was fitted."""
    return {
        "method": choice.method, "settings": choice.options if settings is None else asdict(settings),
        "history": None if history is None else asdict(history), "provenance": provenance(),
    }  # fmt: skip


def method_of(folder: Path, header: dict[str, Any]) -> tuple[MethodChoice, History | None]:
    """The method of a saved model, and how its network was trained."""
    try:
        if header["method"] in LINEAR:
            return choose_method(header["method"], None, header["settings"]), None
        return choose_method(settings_from_dict(header["settings"]), None, {}), History(**header["history"])
    except (DropoutError, TypeError) as error:
        raise DropoutError(f"{folder / HEADER}: {error}") from error


def rebuild(
    folder: Path, saved: Saved, choice: MethodChoice, device: torch.device | str | None
) -> VAE | Linear | Product:
    """The model of these settings with the saved tensors; an error unless they fit."""
    items, found = len(saved.items), {name: tuple(tensor.shape) for name, tensor in saved.tensors.items()}
    if choice.settings is None:
        model = choice.linear(saved.header["seed"], device)
        _check_shapes(folder, found, _linear_shapes(model.name, items, found))
        _check_numbers(folder, saved.tensors, items)
        return model.restore(saved.tensors)
    prefix = "network." if choice.together else ""
    users = found.get(f"{prefix}encoder.user", (0,))[0]
    _check_work(folder, choice.settings, len(found))
    with (
        reading(folder / HEADER, KIND.again),
        torch.device("meta"),
    ):  # shapes first: a wrong number in the file must not take memory
        wanted = VAE(items, choice.settings, users).state_dict()
    shapes = {f"{prefix}{name}": tuple(tensor.shape) for name, tensor in wanted.items()}
    if choice.together:
        parts = {name.removeprefix("linear."): shape for name, shape in found.items() if name.startswith("linear.")}
        shapes |= {f"linear.{name}": shape for name, shape in _linear_shapes("blend", items, parts).items()}
        shapes["weights"] = (3,)
    _check_shapes(folder, found, shapes)
    _check_numbers(folder, saved.tensors, items)
    with torch.random.fork_rng(devices=[]):
        network = VAE(items, choice.settings, users)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if choice.together:
        return Product(network, Blend(device=place)).to(place).restore(saved.tensors).eval()
    network.load_state_dict(saved.tensors)
    return network.to(place).eval()


def _linear_shapes(name: str, items: int, found: Shapes) -> Shapes:
    if name == "popularity":
        return {"counts": (items,)}
    vectors = (items, *found.get("items", (items, 0))[1:2])  # of any length
    if name not in ("ease", "slim", "edlae", "blend"):
        return {"items": vectors}
    shapes: Shapes = {"weights": (items, items)}
    if "targets" in found and name in ("edlae", "blend"):  # of a large catalogue the matrix is sparse
        some = found["targets"][:1]
        shapes = {"starts": (items + 1,), "targets": some, "weights": some}
    if name in ("edlae", "blend"):
        shapes["rates"] = (items,)
    if name == "blend" and "factors" in found:
        shapes |= {"items": vectors, "factors": (2,)}
    return shapes


def _check_shapes(folder: Path, found: Shapes, wanted: Shapes) -> None:
    """An error about the first tensor that is missing, unknown, or of another shape."""
    where = folder / WEIGHTS
    for name in wanted.keys() - found.keys():
        raise DropoutError(f"{where}: want the tensor {name}, got none; save the model again")
    for name in found.keys() - wanted.keys():
        raise DropoutError(f"{where}: want no tensor {name}, got one; model.json belongs to another model")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise DropoutError(f"{where}: want {name} of shape {shape}, got {found[name]}; save the model again")


def _check_numbers(folder: Path, tensors: dict[str, Tensor], items: int) -> None:
    """An error about the first tensor of another type, with NaN or infinity, or of items that are not there."""
    for name, tensor in tensors.items():
        if name.endswith("targets"):
            if tensor.dtype != torch.int64 or not bool(((tensor >= 0) & (tensor < items)).all()):
                raise DropoutError(f"{folder / WEIGHTS}: want {name} of items, got others; save the model again")
        elif name.endswith("starts"):
            last = len(tensors[name.removesuffix("starts") + "targets"])
            whole = tensor.dtype == torch.int64 and int(tensor[0]) == 0 and int(tensor[-1]) == last
            if not whole or bool((tensor.diff() < 0).any()):
                raise DropoutError(f"{folder / WEIGHTS}: want {name} in order, got others; save the model again")
        elif tensor.dtype not in (torch.float32, torch.float64) or not torch.isfinite(tensor).all():
            raise DropoutError(
                f"{folder / WEIGHTS}: want {name} of finite float32 or float64, got {tensor.dtype}"
                f"{' with inf or nan' * tensor.is_floating_point()}; save the model again"
            )


def _check_work(folder: Path, settings: Settings, tensors: int) -> None:
    """An error about numbers that would take days: every layer has a tensor, and masks have a limit."""
    for name, most in (("layers", tensors), ("flows", tensors), ("samples", MAX_MASKS), ("extra_masks", MAX_MASKS)):
        if getattr(settings, name) > most:
            raise DropoutError(f"{folder / HEADER}: want {name} of at most {most:,}, got {getattr(settings, name):,}")


# --------------------------------------------------------------------------------------------------------------- parts


def _header(folder: Path) -> dict[str, Any]:
    kinds = {"method": str, "settings": dict, "seed": int, "library": str, "items": int, "users": (int, type(None)),
             "at_least": (int, float, type(None)), "history": (dict, type(None))}  # fmt: skip
    with reading(folder / HEADER, KIND.again):
        header = read_header(folder, KIND)
        for name, kind in kinds.items():
            if name not in header or not isinstance(header[name], kind) or isinstance(header[name], bool):
                raise DropoutError(f"{folder / HEADER}: want {name} as it was saved, got {header.get(name)!r:.60}")
        if header["library"] not in LIBRARIES:  # because it is imported
            raise DropoutError(f"{folder / HEADER}: want a library of dataframes, got {header['library']!r:.60}")
        _check_history(header["history"])
    return header


def _check_rows(header: dict[str, Any], name: str, rows: int) -> None:
    if rows != header[name]:
        raise ValueError(f"{rows:,} {name} where model.json says {header[name]:,}")


def _check_history(history: dict[str, Any] | None) -> None:
    if history is None:
        return
    epochs, best = history["epochs"], history["best"]
    if not isinstance(epochs, list) or not all(isinstance(epoch, dict) for epoch in epochs):
        raise ValueError("epochs that are not a list of records")
    if best is not None and (not isinstance(best, int) or not 1 <= best <= len(epochs)):
        raise ValueError(f"no best epoch {best!r:.60}")


def _check_ids(ids: pl.Series, path: Path) -> None:
    if not (ids.dtype.is_integer() or ids.dtype == pl.String) or ids.null_count() or ids.n_unique() != len(ids):
        raise DropoutError(f"{path}: want each id once, whole numbers or text, got repeats, nulls or {ids.dtype}")


def _rows(arrays: dict[str, np.ndarray], users: int, items: int) -> csr_array:
    indptr, indices = arrays["indptr"], arrays["indices"]
    if any(each.ndim != 1 or each.dtype.kind not in "iu" for each in (indptr, indices)):
        raise ValueError("histories that are not vectors of whole numbers")
    whole = len(indptr) == users + 1 and indptr[0] == 0 and indptr[-1] == len(indices) and (np.diff(indptr) >= 0).all()
    if not whole or (len(indices) and not (indices.min() >= 0 and indices.max() < items)):
        raise ValueError(f"histories that do not fit {users:,} users and {items:,} items")
    small = indptr.astype(np.int32) if len(indices) < 2**31 else indptr
    rows = csr_array((np.ones(len(indices), np.float32), indices, small), shape=(users, items))
    rows.sum_duplicates()
    rows.data[:] = 1.0
    return rows
