"""The calls of torch that draw a mask, each with its rate, and the same call under a learned dropout.

What a model computes around a draw stays the model's own: attention is computed of what it was given, with its masks, biases
and groups; only its weights are dropped by another mask.
"""

import sys
from collections.abc import Callable, Mapping
from inspect import signature
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lbdrop._torch import transparent
from lbdrop.dropout import NoiseLayer
from lbdrop.sources import source_of

__all__ = ["COMPARISONS", "Call", "Calls", "answer_at_ones", "call_of", "innermost_module", "is_coin"]


class Call(NamedTuple):
    """A call that draws, or would if its rate were above 0 and it were told to train."""

    kind: str
    x: Tensor
    """What is dropped: activations, the query of attention, or the tensor that a mask is written to."""
    rate: float
    settings: Mapping[str, Any]
    answer: Callable[[NoiseLayer], Tensor]
    """The same call with a learned dropout in place of the draw."""


def call_of(func: Any, args: Any, kwargs: Any) -> Call | None:
    """What a torch function draws, if it is one that does."""
    read = READERS.get(func)
    return None if read is None else read(func, args, kwargs)


def _dropout(func: Any, args: Any, kwargs: Any) -> Call:
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    x, rate = given["input"], float(given.get("p", 0.5))
    on = bool(given.get("training", given.get("train", func is not F.alpha_dropout)))
    settings: dict[str, Any] = {}
    if func in CHANNELS:
        settings["channels"] = True
    elif x.dim() == 4:
        settings["unit_dim"] = 1  # the channels of a map, or the heads of attention
    if func in ALPHA:
        settings["scale"] = "alpha"
    in_place = bool(given.get("inplace")) or func is torch.dropout_

    def answer(layer: NoiseLayer) -> Tensor:
        if x.dim() == 1:  # a number for each edge of a graph
            dropped = layer(x.unsqueeze(-1)).squeeze(-1)
            return x.copy_(dropped) if in_place else dropped
        if not in_place:
            return layer(x)
        before = x.clone()  # the gradient of the rate needs it
        dropped = layer(before)
        return x if dropped is before else x.copy_(dropped)

    return Call("dropout", x, rate if on else 0.0, settings, answer)


def _attention(func: Any, args: Any, kwargs: Any) -> Call:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    x = given["query"]

    def answer(layer: NoiseLayer) -> Tensor:
        if source_of(layer) is None and not layer.training and layer.scale != "none":
            return func(*args, **kwargs)
        return _attend(layer, **{name: value for name, value in given.items() if name != "dropout_p"})

    return Call("attention", x, float(given.get("dropout_p", 0.0)), {"unit_dim": -3} if x.dim() > 3 else {}, answer)


def _attend(
    layer: NoiseLayer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``scaled_dot_product_attention`` of what it was given, its weights dropped by a layer."""
    if enable_gqa:
        heads = query.shape[-3]  # keys and values may have different numbers of them
        key, value = (each.repeat_interleave(heads // each.shape[-3], -3) for each in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if boolean else scores + attn_mask
        # As in torch's own, a query that may attend to nothing has weights of 0, not of NaN.
        nothing = scores.isneginf().all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    else:
        weights = torch.softmax(scores, -1)
    return layer(weights) @ value


def _bernoulli_(func: Any, args: Any, kwargs: Any) -> Call | None:
    target, keep = args[0], args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    if not isinstance(keep, float | int) or not target.is_floating_point() or target.dim() < 2:
        return None  # one probability each, or a mask of integers: no dropout that is known
    # The mean of what comes back stays what it was: the model may divide by it.
    return Call("mask", target, 1.0 - keep, {}, lambda layer: target.copy_(keep * layer(torch.ones_like(target))))


def _bernoulli(func: Any, args: Any, kwargs: Any) -> Call | None:
    means = args[0] if args else kwargs["input"]
    if (
        len(args) > 1
        or means.dim() < 2
        or not means.is_floating_point()
        or not bool((means == means.flatten()[0]).all())
    ):
        return None
    return Call("mask", means, 1.0 - float(means.flatten()[0]), {}, lambda layer: means * layer(torch.ones_like(means)))


CHANNELS = {F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout, torch.feature_dropout,
            torch.feature_alpha_dropout}  # fmt: skip
ALPHA = {F.alpha_dropout, F.feature_alpha_dropout, torch.alpha_dropout, torch.feature_alpha_dropout}
DROPOUTS = CHANNELS | ALPHA | {F.dropout, torch.dropout, torch.dropout_}
READERS: dict[Any, Callable[[Any, Any, Any], Call | None]] = {
    **dict.fromkeys(DROPOUTS, _dropout),
    F.scaled_dot_product_attention: _attention,
    Tensor.bernoulli_: _bernoulli_,
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
}


class Calls(TorchFunctionMode):
    """Shows every call of torch, those inside of ``multi_head_attention_forward`` too, which it would hide."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.multi_head_attention_forward:
            return self.see(func, args, kwargs or {})
        inside = transparent(func)
        assert inside is not None
        with self:
            return inside(**self.attention(signature(func).bind(*args, **(kwargs or {})).arguments))

    def see(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call it, or answer it."""
        return func(*args, **kwargs)

    def attention(self, given: dict[str, Any]) -> dict[str, Any]:
        """What to call ``multi_head_attention_forward`` with."""
        return given


COMPARISONS = {getattr(kind, name) for kind in (Tensor, torch) for name in ("lt", "le", "gt", "ge")} | {
    Tensor.__lt__, Tensor.__le__, Tensor.__gt__, Tensor.__ge__,
}  # fmt: skip


def is_coin(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call tosses a coin for everything at once, as LayerDrop does."""
    return func is torch.rand and (kwargs.get("size", args[0] if args else None) in ((), [], torch.Size()))


def innermost_module() -> nn.Module | None:
    """The module of whose methods the caller's code is, by the frames of the call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            return module
        frame = frame.f_back
    return None


def answer_at_ones(layer: NoiseLayer, target: Tensor) -> Tensor:
    """Ones where a learned dropout drops; the module around them scales by what is left."""
    ones = torch.ones_like(target)
    kept = layer(ones)
    return target.copy_(1 - (ones if kept is ones else kept * layer.keep_for(ones.dim())))
