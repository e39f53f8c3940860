"""Remove the units that training has nearly switched off."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from lbdrop._torch import uncompiled
from lbdrop.dropout import noise_layers
from lbdrop.errors import DropoutError
from lbdrop.sites.bake import TRANSPOSED, copied, fold, tied, unwrap
from lbdrop.sites.convert import replace_modules
from lbdrop.sites.graph import Neighbours, neighbours
from lbdrop.sites.lora import RankGate, cut_ranks
from lbdrop.sites.skips import KEY
from lbdrop.sites.survey import NAME

__all__ = ["prune"]

BRANCH = f"{NAME}.{KEY}"
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def prune(model: nn.Module, threshold: float = 0.1) -> Any:
    """A smaller plain model without the units whose keep rate is below ``threshold``.

    Equal in output to the deterministic pass with those units at zero. A unit is taken out of the linear or convolutional
    layers on both sides of its dropout (and BatchNorm between them); where the sides are not such layers, or serve others
    too, it stays and is multiplied by zero. LoRA ranks whose gates are closed are cut out of their adapters. Residual branches
    of stochastic depth whose keep rate is below the threshold add zero from then on, and layers of LayerDrop are taken out.

    Example:
        >>> import lbdrop
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), lbdrop.LearnableDropout(8), nn.Linear(8, 2))
        >>> with torch.no_grad():
        ...     _ = net[2].logit[:5].fill_(-9)
        >>> prune(net, threshold=0.1)[0]
        Linear(in_features=4, out_features=3, bias=True)
    """
    if not 0 < threshold < 1:
        raise DropoutError(f"threshold: want a keep rate strictly between 0 and 1, got {threshold}")
    model = copied(uncompiled(model)).eval()
    layers = {name: layer for name, layer in noise_layers(model).items() if not isinstance(layer, RankGate)}
    branches = [name for name, layer in layers.items() if layer.examples and layer.p > 1 - threshold]
    layers = {name: layer for name, layer in layers.items() if name not in branches}
    kept = {name: layer.keep.detach() >= threshold for name, layer in layers.items()}
    empty = [name for name, units in kept.items() if not units.any()]
    if empty:
        raise DropoutError(
            f"threshold: want one that leaves each layer a unit, got {threshold}, which would remove every unit at {empty};"
            " pass a lower one"
        )
    cut_ranks(model, threshold)
    skipped = [name.removesuffix(f".{BRANCH}") for name in branches if name.endswith(f".{BRANCH}")]
    model = replace_modules(
        model, {name: nn.Threshold(math.inf, 0.0) for name in branches if not name.endswith(BRANCH)}
    )
    beside = neighbours(model) if layers else {}
    plain = fold(model, {name: layer.gain() * kept[name] for name, layer in layers.items()})
    for name, units in kept.items():
        if units.dim() and not units.all() and _can_remove(plain, beside[name], units.numel()):
            _remove(plain, beside[name], units)
    plain = unwrap(plain)
    for name in reversed(skipped):  # behind a layer that is taken out, the names of others change
        _take_out(plain, name)
    return plain


def _take_out(model: nn.Module, name: str) -> None:
    """Take a layer that passes its input on out of the list that the model goes through."""
    parent, _, place = name.rpartition(".")
    layers = model.get_submodule(parent)
    if not isinstance(layers, nn.ModuleList | nn.Sequential):
        raise DropoutError(
            f"{name}: want a layer in a ModuleList to take out, got one in {type(layers).__name__}; pass a lower threshold"
        )
    del layers[int(place)]


def _can_remove(model: nn.Module, beside: Neighbours, units: int) -> bool:
    """Whether the layers before and behind a dropout can be made smaller."""
    if not beside.producer or not beside.consumers or beside.reused:
        return False
    ends = [model.get_submodule(name) for name in (beside.producer, *beside.consumers)]
    if any(tied(model, module) for module in ends):
        return False
    between = [model.get_submodule(name) for name in beside.between]
    ungrouped = all(getattr(module, "groups", 1) == 1 for module in ends)
    one_slope = all(getattr(module, "num_parameters", 1) == 1 for module in between)  # PReLU may have one per channel
    return ungrouped and one_slope and ends[0].get_parameter("weight").shape[_output_axis(ends[0])] == units


def _output_axis(module: nn.Module) -> int:
    return 1 if isinstance(module, TRANSPOSED) else 0


@torch.no_grad()
def _remove(model: nn.Module, beside: Neighbours, kept: Tensor) -> None:
    units, count = kept.numel(), int(kept.sum())
    producer: Any = model.get_submodule(str(beside.producer))
    producer.weight = nn.Parameter(producer.weight.index_select(_output_axis(producer), kept.nonzero()[:, 0]))
    if producer.bias is not None:
        producer.bias = nn.Parameter(producer.bias[kept])
    _set_count(producer, "out", count)
    for name in beside.between:
        module: Any = model.get_submodule(name)
        if isinstance(module, NORMS):
            for key in ("weight", "bias"):
                if getattr(module, key) is not None:
                    setattr(module, key, nn.Parameter(getattr(module, key)[kept]))
            for key in ("running_mean", "running_var"):
                if getattr(module, key) is not None:
                    setattr(module, key, getattr(module, key)[kept])
            module.num_features = count
    for name in beside.consumers:
        consumer: Any = model.get_submodule(name)
        weight = consumer.weight
        if isinstance(consumer, TRANSPOSED):
            smaller = weight[kept]
        elif isinstance(consumer, nn.Linear):
            smaller = weight.reshape(weight.shape[0], units, -1)[:, kept].flatten(1)
        else:
            smaller = weight[:, kept]
        consumer.weight = nn.Parameter(smaller)
        _set_count(consumer, "in", consumer.weight.shape[1] if isinstance(consumer, nn.Linear) else count)


def _set_count(module: Any, side: str, count: int) -> None:
    setattr(module, f"{side}_features" if isinstance(module, nn.Linear) else f"{side}_channels", count)
