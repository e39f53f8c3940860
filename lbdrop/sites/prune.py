"""Remove the units that training has all but switched off."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lbdrop._torch import uncompiled
from lbdrop.dropout import noise_layers
from lbdrop.errors import DropoutError
from lbdrop.sites.bake import TRANSPOSED, fold, tied, unwrap
from lbdrop.sites.graph import Neighbours, neighbours
from lbdrop.sites.lora import RankGate, cut_ranks

__all__ = ["prune"]

SLICEABLE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def prune(model: nn.Module, threshold: float = 0.1) -> Any:
    """A smaller plain model without the units whose keep rate is below ``threshold``.

    Equal in output to the deterministic pass with those units at zero. A unit is taken out of the linear or convolutional
    layers on both sides of its dropout (and BatchNorm between them); where the sides are not such layers, or serve others
    too, it stays and is multiplied by zero. LoRA ranks whose gates are closed are cut out of their adapters.

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
    model = copy.deepcopy(uncompiled(model)).eval()
    layers = {name: layer for name, layer in noise_layers(model).items() if not isinstance(layer, RankGate)}
    alive = {name: layer.keep.detach() >= threshold for name, layer in layers.items()}
    empty = [name for name, mask in alive.items() if not mask.any()]
    if empty:
        raise DropoutError(f"threshold {threshold} would remove every unit at {empty}; want a lower one")
    cut_ranks(model, threshold)
    around = neighbours(model) if layers else {}
    plain = fold(model, {name: layer.gain() * alive[name] for name, layer in layers.items()})
    for name, mask in alive.items():
        if mask.dim() and not mask.all() and _removable(plain, around[name], mask.numel()):
            _remove(plain, around[name], mask)
    return unwrap(plain)


def _removable(model: nn.Module, around: Neighbours, units: int) -> bool:
    if not around.producer or not around.consumers or around.reused:
        return False
    ends = [model.get_submodule(name) for name in (around.producer, *around.consumers)]
    if any(tied(model, module) for module in ends):
        return False
    between = [model.get_submodule(name) for name in around.between]
    no_groups = all(getattr(module, "groups", 1) == 1 for module in ends)
    one_slope = all(getattr(module, "num_parameters", 1) == 1 for module in between)  # PReLU may have one per channel
    return no_groups and one_slope and ends[0].get_parameter("weight").shape[_output_axis(ends[0])] == units


def _output_axis(module: nn.Module) -> int:
    return 1 if isinstance(module, TRANSPOSED) else 0


@torch.no_grad()
def _remove(model: nn.Module, around: Neighbours, alive: Tensor) -> None:
    units, count = alive.numel(), int(alive.sum())
    producer: Any = model.get_submodule(str(around.producer))
    producer.weight = nn.Parameter(producer.weight.index_select(_output_axis(producer), alive.nonzero()[:, 0]))
    if producer.bias is not None:
        producer.bias = nn.Parameter(producer.bias[alive])
    _set_count(producer, "out", count)
    for name in around.between:
        module: Any = model.get_submodule(name)
        if isinstance(module, SLICEABLE):
            for key in ("weight", "bias"):
                if getattr(module, key) is not None:
                    setattr(module, key, nn.Parameter(getattr(module, key)[alive]))
            for key in ("running_mean", "running_var"):
                if getattr(module, key) is not None:
                    setattr(module, key, getattr(module, key)[alive])
            module.num_features = count
    for name in around.consumers:
        consumer: Any = model.get_submodule(name)
        weight = consumer.weight
        if isinstance(consumer, TRANSPOSED):
            kept = weight[alive]
        elif isinstance(consumer, nn.Linear):
            kept = weight.reshape(weight.shape[0], units, -1)[:, alive].flatten(1)
        else:
            kept = weight[:, alive]
        consumer.weight = nn.Parameter(kept)
        _set_count(consumer, "in", consumer.weight.shape[1] if isinstance(consumer, nn.Linear) else count)


def _set_count(module: Any, side: str, count: int) -> None:
    setattr(module, f"{side}_features" if isinstance(module, nn.Linear) else f"{side}_channels", count)
