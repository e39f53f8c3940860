r"""The learned rates of a saved model, without the model: a logit :math:`\alpha` is a drop rate :math:`1 - \sigma(\alpha)`.

Reads safetensors, what ``torch.save`` wrote of a state (never unpickled as objects), checkpoints of Lightning, and folders
of a recommender. Weights stay on the disk where the format allows it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.errors import DropoutError, needs_extra
from lbdrop.io.files import check_plain

__all__ = ["Item", "Layer", "Rates", "read_rates"]

SUFFIX = "logit"
RECOMMENDER = "model.json"


class Layer(NamedTuple):
    """One dropout: its name in the model, what its rates are of, and the rates."""

    name: str
    kind: str
    rates: Float[Tensor, "units"]


class Item(NamedTuple):
    """An item of a recommender, with the rate at which its likes are dropped."""

    name: str
    rate: float
    likes: float


class Rates(NamedTuple):
    """All rates of a model; of a recommender with a rate per item, the items by rate, least dropped first."""

    layers: tuple[Layer, ...]
    items: tuple[Item, ...] = ()


def read_rates(path: Path) -> Rates:
    """The rates in this file or folder; an error that says what was wanted if there are none."""
    if not path.exists():
        raise DropoutError(f"{path}: want a saved model, got nothing there")
    if path.is_dir() and (path / RECOMMENDER).is_file():
        return _recommender(path)
    layers = _layers(_folder(path) if path.is_dir() else _file(path))
    if not layers:
        raise DropoutError(
            f"{path}: want learned rates (tensors named …{SUFFIX}), got none; save the state of a model after lbdrop.convert,"
            " before bake or prune"
        )
    return Rates(layers)


def _recommender(path: Path) -> Rates:
    with needs_extra("recommend"):
        from lbdrop.recommend.recommender import Recommender
    model = Recommender.load(path, device="cpu")
    table = model.rates()
    layers, items = [], []
    for column in (name for name in table.columns if name.startswith("rate")):
        name = " ".join(["histories", *column.split("_")[1:]])
        rates = torch.tensor(table[column].to_list(), dtype=torch.float64)
        if len(rates) < 2 or bool((rates == rates[0]).all()):
            layers.append(Layer(name, "one rate", rates[:1]))
            continue
        layers.append(Layer(name, "per item", rates))
        rows = zip(table["item_id"].to_list(), rates.tolist(), table["likes"].to_list(), strict=True)
        items = sorted((Item(str(item), rate, float(likes)) for item, rate, likes in rows), key=lambda item: item.rate)
    return Rates(tuple(layers), tuple(items))


def _folder(path: Path) -> dict[str, Tensor]:
    """The tensors of every safetensors file of a folder, as large models are saved in pieces."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise DropoutError(
            f"{path}: want a saved recommender or *.safetensors in this folder, got neither; name the file"
        )
    return {name: tensor for file in files for name, tensor in _file(file).items()}


def _file(path: Path) -> dict[str, Tensor]:
    check_plain(path)
    try:
        if path.suffix == ".safetensors":
            return _safetensors(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except DropoutError:
        raise
    except Exception as error:  # damaged files fail in many ways
        whole = type(error).__name__ == "UnpicklingError"  # torch's own words are of what to do to run it
        got = "objects, which might run code" if whole else "a file that is damaged, or of another kind"
        raise DropoutError(
            f"{path}: want safetensors, or a state written by torch.save(model.state_dict(), …) or by Lightning, got {got};"
            " save the state alone"
        ) from error
    return _state(content)


def _safetensors(path: Path) -> dict[str, Tensor]:
    with needs_extra("vision"):
        from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) if _is_logit(name) else torch.empty(0) for name in file.keys()}  # noqa: SIM118


def _state(content: Any) -> dict[str, Tensor]:
    """The tensors of a state: as it is, or where a checkpoint keeps it."""
    if not isinstance(content, Mapping):
        return {}
    found = {str(name): each for name, each in content.items() if isinstance(each, Tensor)}
    for each in content.values():
        if isinstance(each, Mapping) and not any(map(_is_logit, found)):
            found |= {str(name): tensor for name, tensor in each.items() if isinstance(tensor, Tensor)}
    return found


def _is_logit(name: str) -> bool:
    return name.rpartition(".")[2] == SUFFIX


def _layers(tensors: Mapping[str, Tensor]) -> tuple[Layer, ...]:
    found: list[Layer] = []
    first: dict[tuple[int, int], str] = {}
    for name, logit in tensors.items():
        if not _is_logit(name) or logit.dim() > 1 or not logit.is_floating_point():
            continue
        place = name.removesuffix(SUFFIX).removesuffix(".") or "model"
        owner = first.setdefault((logit.data_ptr(), logit.numel()), place)
        what = "per rank" if place.endswith(".gate") else "per unit" if logit.dim() else "one rate"
        kind = what + f", shared with {owner}" * (owner != place)
        found.append(Layer(place, kind, torch.sigmoid(-logit.detach().double()).reshape(-1)))
    return tuple(found)
