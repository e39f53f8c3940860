r"""Back to plain torch: the deterministic pass $z \to \sigma(\alpha)$ goes into the weights, and our layers are removed."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lbdrop._torch import children_of, has_forward_pre_hooks, parameters_of, tree_flatten, uncompiled
from lbdrop.dropout import NoiseLayer, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.sites.attention import LearnableAttention
from lbdrop.sites.convert import replace_modules
from lbdrop.sites.draws import forget_draws
from lbdrop.sites.graph import HOMOGENEOUS, Neighbours, neighbours
from lbdrop.sites.lora import GatedRanks
from lbdrop.sites.modules import Inserted
from lbdrop.sites.recurrent import LearnableRecurrent
from lbdrop.sites.skips import forget_skips
from lbdrop.sites.survey import NAME

__all__ = ["bake", "copied"]

WRAPPERS = (LearnableAttention, LearnableRecurrent, GatedRanks)
"""Each folds its own dropout, by ``plain()``."""
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def bake(model: nn.Module) -> Any:
    """A copy of ``model`` in eval mode that computes its deterministic pass with plain torch modules alone.

    Inverted masks need nothing: their mean is the identity. The gain of other masks goes into the weights behind the
    dropout, or into those before it; where there are neither, into a diagonal linear layer in its place.

    Example:
        >>> import lbdrop
        >>> net = nn.Sequential(nn.Linear(4, 8), lbdrop.LearnableDropout(8, scale="none"), nn.Linear(8, 2))
        >>> bake(net)
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): Identity()
          (2): Linear(in_features=8, out_features=2, bias=True)
        )
    """
    model = copied(uncompiled(model)).eval()
    gains = {name: layer.gain() for name, layer in noise_layers(model).items()}
    return unwrap(fold(model, gains))


def copied(model: nn.Module) -> Any:
    """A copy, also of a model that keeps results of its last pass, which have a history and cannot be copied with it."""
    kept = tree_flatten([vars(module) for module in model.modules()])[0]
    passed = [value for value in kept if isinstance(value, Tensor) and not value.is_leaf]
    return copy.deepcopy(model, {id(value): value.detach().clone() for value in passed})


def fold(model: Any, gains: dict[str, Tensor]) -> Any:
    """Multiply each dropout's units by its gain, in the weights before or behind it, and put a plain module in its place."""
    beside = neighbours(model) if any((gain != 1).any() for gain in gains.values()) else {}
    wrapped = {id(inner) for module in model.modules() if isinstance(module, WRAPPERS) for inner in module.modules()}
    new: dict[str, nn.Module] = {}
    for name, gain in gains.items():
        if id(model.get_submodule(name)) in wrapped or f".{NAME}." in f".{name}":
            continue  # its wrapper folds it; a draw inside of a forward has no weight to fold it into
        new[name] = nn.Identity()
        if (gain != 1).any() and not _fold_into_neighbours(model, beside[name], gain):
            new[name] = _diagonal(name, model, gain)
    return replace_modules(model, new)


def unwrap(model: Any) -> Any:
    """Turn attention, recurrent, gated and inserted wrappers back into the modules they were made from."""
    plain = {name: module.plain() for name, module in model.named_modules() if isinstance(module, WRAPPERS)}
    model = replace_modules(model, plain)
    model = replace_modules(model, {n: m[0] for n, m in model.named_modules() if isinstance(m, Inserted)})
    forget_skips(model)
    forget_draws(model)
    return model


def _fold_into_neighbours(model: nn.Module, beside: Neighbours, gain: Tensor) -> bool:
    """Scale the layers behind a dropout, or the layer before it; whether either could be scaled."""
    consumers = [model.get_submodule(name) for name in beside.consumers]
    if consumers and not beside.reused and not any(tied(model, consumer) for consumer in consumers):
        for consumer in consumers:
            scale_inputs(consumer, gain)
        return True
    producer = model.get_submodule(beside.producer) if beside.producer else None
    between = [model.get_submodule(name) for name in beside.between]
    homogeneous = all(isinstance(module, HOMOGENEOUS) for module in between)
    if producer is not None and homogeneous and not beside.reused and not tied(model, producer):
        scale_outputs(producer, gain)
        return True
    return False


def tied(model: nn.Module, module: nn.Module) -> bool:
    """Whether changing this module's weight would be wrong: another module holds it too, or a parametrisation computes it."""
    weight = parameters_of(module).get("weight")
    if weight is None or "parametrizations" in children_of(module) or has_forward_pre_hooks(module):
        return True
    holders = [m for m in model.modules() for p in parameters_of(m).values() if p is weight]
    return len(holders) > 1


@torch.no_grad()
def scale_inputs(module: nn.Module, gain: Tensor) -> None:
    """Multiply the weights that each input unit feeds; a channel of a flattened map feeds a block of columns."""
    weight = module.get_parameter("weight")
    if not gain.dim():
        weight.mul_(gain)
        return
    if isinstance(module, TRANSPOSED):
        weight.mul_(gain.view(-1, *[1] * (weight.dim() - 1)))
        return
    groups = getattr(module, "groups", 1)
    scaled = weight.reshape(groups, weight.shape[0] // groups, gain.numel() // groups, -1) * gain.view(groups, 1, -1, 1)
    weight.copy_(scaled.reshape(weight.shape))


@torch.no_grad()
def scale_outputs(module: nn.Module, gain: Tensor) -> None:
    """Multiply the weights and the bias that make each output unit."""
    weight = module.get_parameter("weight")
    if not gain.dim():
        weight.mul_(gain)
    elif isinstance(module, TRANSPOSED):
        weight.mul_(gain.view(1, -1, *[1] * (weight.dim() - 2)))
    else:
        weight.mul_(gain.view(-1, *[1] * (weight.dim() - 1)))
    bias = getattr(module, "bias", None)
    if isinstance(bias, Tensor):
        bias.mul_(gain)


def _diagonal(name: str, model: nn.Module, gain: Tensor) -> nn.Module:
    """A plain linear or convolutional layer that multiplies unit by unit, for a dropout without neighbours to scale."""
    layer = model.get_submodule(name)
    assert isinstance(layer, NoiseLayer)
    if layer.width is None or layer.dims is None:
        raise DropoutError(
            f"{name}: want a known number of units to bake, got a model that never ran; run it once before"
        )
    # Not the precision of the rates, which stay in float32 in a model of half precision.
    logits = {id(other.logit) for other in noise_layers(model).values()}
    dtype = next((p.dtype for p in model.parameters() if id(p) not in logits), gain.dtype)
    width, gain = layer.width, gain.expand(layer.width).to(dtype)
    new: nn.Module
    if layer.unit_dim == 1 and layer.dims > 2:
        convolution = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[layer.dims]
        new = convolution(width, width, 1, groups=width, bias=False, device=gain.device, dtype=dtype)
        weight = gain.view(-1, *[1] * (layer.dims - 1))
    else:
        new = nn.Linear(width, width, bias=False, device=gain.device, dtype=dtype)
        weight = torch.diag(gain)
    with torch.no_grad():
        new.get_parameter("weight").copy_(weight)
    return new
