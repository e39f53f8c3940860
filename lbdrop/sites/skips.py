"""LayerDrop: layers that a model skips by the toss of a coin become residual branches, each with a learned rate.

$$ y = x + z\\,(f(x) - x) / \\text{keep}, \\qquad z \\sim \\mathrm{Ber}(\\text{keep}) $$

The model's own coin, ``torch.rand([]) < rate``, is answered so that no layer is skipped; a mask of one element per example
drops what the layer adds. Its other outputs stay or are dropped too, whichever gives what a pass that skips gives.
Fan et al., Reducing Transformer Depth on Demand with Structured Dropout, 2020.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lbdrop._torch import remove_forward_hooks, tree_flatten, tree_unflatten
from lbdrop.dropout import NoiseLayer
from lbdrop.sites.draws import Draws, draws_of
from lbdrop.sites.example import Run, same_outputs, undisturbed
from lbdrop.sites.survey import NAME, Found, Toss, look
from lbdrop.sources import use_in

__all__ = ["KEY", "answer_skips", "forget_skips"]

KEY = "branch"


def answer_skips(
    model: nn.Module, run: Run, tosses: list[Toss], names: Mapping[nn.Module, str], make: Callable[[Found], NoiseLayer]
) -> None:
    """Give layers that are skipped by chance a learned dropout of what they add, if their input is what a skip leaves.

    The model's other draws have learned dropouts before. Where a skip does something else, nothing is changed.
    """
    if not (tosses := [each for each in tosses if each.rate < 1]):
        return
    layers = [module for module in model.modules() if isinstance(module, NoiseLayer)]
    with use_in(layers, _Closed(set())):
        _, skipped = look(model, run, training=True, side=0.0)
    skippable = {each.layer for each in tosses if each.rate}
    for tosser, layer, rate in tosses:
        draws_of(tosser).coins = True
        if rate and not hasattr(draws := draws_of(layer), KEY):
            draws.add_module(KEY, make(Found(names[layer], KEY, rate, 0, {"examples": True})).train(layer.training))
            layer.register_forward_hook(_drop_branch, with_kwargs=True)
    closed = {draws_of(layer).get_submodule(KEY) for layer in skippable}
    with use_in([*layers, *closed], _Closed(closed)), undisturbed(model):
        model.train()
        for whole in (False, True):
            for layer in skippable:
                draws_of(layer).branch_is_whole = whole
            if same_outputs(skipped, run()):
                return
    forget_skips(model)


class _Closed:
    """Masks of zeros for some layers, no masks for all others."""

    def __init__(self, closed: set[Any]):
        self.closed = closed

    def mask(self, layer: Any, x: Tensor) -> Tensor | None:
        return torch.zeros(layer.mask_shape(x), dtype=x.dtype, device=x.device) if layer in self.closed else None


def forget_skips(model: nn.Module) -> None:
    """Undo :func:`answer_skips`: the model tosses its coins again."""
    for module in model.modules():
        if isinstance(draws := getattr(module, NAME, None), Draws):
            draws.coins = False
            if hasattr(draws, KEY):
                delattr(draws, KEY)
                remove_forward_hooks(module, _drop_branch)


def _drop_branch(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    """The input of a layer, and what the layer adds to it under the mask of each example."""
    draws = module.get_submodule(NAME)
    tensors, structure = tree_flatten(output)
    place = next(place for place, each in enumerate(tensors) if isinstance(each, Tensor))
    result = tensors[place]
    ones = torch.ones_like(result[(slice(None), *[slice(1)] * (result.dim() - 1))])
    kept = draws.get_submodule(KEY)(ones)
    if kept is ones:  # no mask: bit for bit what it was
        return output
    given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    x = next(each for each in given if each.shape == result.shape)
    if draws.branch_is_whole:
        tensors = [each * kept.view(-1, *[1] * (each.dim() - 1)) if _is_real(each) else each for each in tensors]
    tensors[place] = x + (result - x) * kept
    return tree_unflatten(tensors, structure)


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0
