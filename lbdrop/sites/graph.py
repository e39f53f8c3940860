"""The layers before and behind each dropout, read off the model's graph by ``torch.fx`` without running it.

The KL needs the weights that a dropped unit feeds. :func:`lbdrop.bake` needs the weights that a rate can be folded into,
and :func:`lbdrop.prune` needs both sides. Where a model cannot be traced as a whole, the largest possible parts are.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from lbdrop.dropout import NoiseLayer, noise_layers

__all__ = ["Neighbours", "neighbours"]

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

# A factor per channel, positive or zero, passes through these unchanged: f(p·x) = p·f(x).
HOMOGENEOUS = (
    nn.Identity, nn.Flatten, nn.ReLU, nn.LeakyReLU, nn.PReLU,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
)  # fmt: skip
HOMOGENEOUS_FUNCTIONS = {F.relu, torch.relu, torch.flatten, "relu", "flatten", F.max_pool2d, F.avg_pool2d,
                         F.adaptive_avg_pool2d}  # fmt: skip
FLATTEN: tuple[Any, ...] = (nn.Flatten, torch.flatten, "flatten")
POOLS = (*HOMOGENEOUS[5:], F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)

# Unit k of the output depends on unit k of the input alone: a unit removed before the module is removed behind it too.
UNITWISE = (
    *HOMOGENEOUS[:1], *HOMOGENEOUS[2:],
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SELU, nn.Hardswish,
)  # fmt: skip
UNITWISE_FUNCTIONS = {F.relu, torch.relu, torch.tanh, torch.sigmoid, F.gelu, F.silu, F.elu, F.selu, "relu", "tanh",
                      "sigmoid", F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d}  # fmt: skip


@dataclass
class Neighbours:
    """The linear layers before and behind one dropout, by name; empty where there is something else."""

    consumers: list[str] = field(default_factory=list)
    """Every layer that reads the dropout's output, if all of them are linear; else empty."""
    producer: str | None = None
    """The linear layer whose output goes to the dropout alone, unit by unit."""
    between: list[str] = field(default_factory=list)
    """The modules between the producer and the dropout, such as BatchNorm."""
    reused: bool = False
    """Whether one of them is called more than once, so that its weights serve other units too."""


class _Tracer(fx.Tracer):
    """Torch's changes all modules of the process while it traces; those that other threads run stay as they are."""

    one_at_a_time, thread = threading.Lock(), 0

    def trace(self, *args: Any, **kwargs: Any) -> fx.Graph:
        with self.one_at_a_time:
            self.thread = threading.get_ident()
            return super().trace(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        mine = threading.get_ident() == self.thread
        return super().getattr(attr, attr_val, parameter_proxy_cache) if mine else attr_val

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        mine = threading.get_ident() == self.thread
        return super().call_module(m, forward, args, kwargs) if mine else forward(*args, **kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # A converted attention or recurrent layer holds dropouts of its own, and is one node from outside.
        inside = type(m).__module__.startswith(("torch.nn", "lbdrop"))
        return inside and not isinstance(m, nn.Sequential | nn.ModuleList | nn.ModuleDict)


def neighbours(model: nn.Module) -> dict[str, Neighbours]:
    """For every learned dropout of ``model``, the linear layers before and behind it."""
    found = {name: Neighbours() for name in noise_layers(model)}
    found |= _feed_forward(model, set(found))
    remaining = {name for name, beside in found.items() if not beside.consumers}
    for prefix, part in model.named_modules():
        inside = {name for name in remaining if name.startswith(f"{prefix}." if prefix else "")}
        if not inside or isinstance(part, NoiseLayer):
            continue
        try:
            graph = _Tracer().trace(part)
        except Exception:  # fx fails in many ways; all of them mean that smaller parts are to be tried
            continue
        for node in graph.nodes:
            name = f"{prefix}.{node.target}" if prefix else str(node.target)
            if node.op == "call_module" and name in inside:
                # A dropout that is called twice has no single pair of sides.
                found[name] = Neighbours() if name not in remaining else _neighbours_of(part, node, prefix)
                calls = Counter(f"{prefix}.{n.target}" if prefix else str(n.target) for n in graph.nodes)
                names = {name for name in (*found[name].consumers, *found[name].between, found[name].producer) if name}
                # Weights read by attribute, as in F.linear(x, self.fc.weight), serve something else as well.
                read = {
                    target.rpartition(".")[0] for target in calls if target.rpartition(".")[2] in ("weight", "bias")
                }
                found[name].reused = any(calls[other] > 1 or other in read for other in names)
                remaining.discard(name)
    return found


def _feed_forward(model: nn.Module, names: set[str]) -> dict[str, Neighbours]:
    """Inside torch's transformer layers, which branch and so cannot be traced: linear1, activation, dropout, linear2."""
    layers = [
        f"{name}." if name else ""
        for name, module in model.named_modules()
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
    ]
    return {f"{at}dropout": Neighbours([f"{at}linear2"], f"{at}linear1") for at in layers if f"{at}dropout" in names}


def _neighbours_of(part: nn.Module, node: fx.Node, prefix: str) -> Neighbours:
    absolute = lambda target: f"{prefix}.{target}" if prefix else str(target)  # noqa: E731
    layer = _module(part, node)
    assert isinstance(layer, NoiseLayer)
    # One rate multiplies everything alike. Rates of single units need their units on the axis that the consumer sums over.
    axis = "any" if layer.units is None else "channels" if layer.unit_dim == 1 else "last"
    consumers = list(_consumers(part, node, axis))
    result = Neighbours([absolute(c) for c in consumers if c] if all(consumers) else [])
    current: Any = node
    while True:
        previous = current.args[0] if current.args else None
        if not isinstance(previous, fx.Node) or len(previous.users) != 1:
            return result
        module = _module(part, previous)
        if isinstance(module, LINEAR):
            if axis == "any" or isinstance(module, nn.Linear) == (axis == "last"):
                result.producer = absolute(previous.target)
            return result
        if axis == "last" and _is(part, previous, POOLS):
            result.between = []
            return result
        if not _passes(part, previous, (*UNITWISE, NoiseLayer), UNITWISE_FUNCTIONS):
            result.between = []
            return result
        if module is not None:
            result.between.append(absolute(previous.target))
        current = previous


def _consumers(part: nn.Module, node: fx.Node, axis: str) -> Iterator[str | None]:
    """The linear layers behind a node; ``None`` for anything else, and where the units are not what they sum over."""
    for user in node.users:
        module = _module(part, user)
        if isinstance(module, LINEAR):
            fits = {"any": True, "flat": isinstance(module, nn.Linear), "last": isinstance(module, nn.Linear),
                    "channels": not isinstance(module, nn.Linear)}  # fmt: skip
            yield str(user.target) if fits[axis] else None
        elif _is(part, user, FLATTEN):
            yield from _consumers(part, user, {"channels": "flat"}.get(axis, axis)) if axis != "last" else (None,)
        elif axis in ("last", "flat") and _is(part, user, POOLS):
            yield None
        elif _passes(part, user, (*HOMOGENEOUS, NoiseLayer), HOMOGENEOUS_FUNCTIONS):
            yield from _consumers(part, user, axis)
        else:
            yield None


def _is(part: nn.Module, node: fx.Node, kinds: tuple[Any, ...]) -> bool:
    module = _module(part, node)
    if module is not None:
        return isinstance(module, tuple(kind for kind in kinds if isinstance(kind, type)))
    return node.target in kinds


def _module(part: nn.Module, node: fx.Node) -> nn.Module | None:
    return part.get_submodule(str(node.target)) if node.op == "call_module" else None


def _passes(part: nn.Module, node: fx.Node, modules: tuple[type, ...], functions: set[Any]) -> bool:
    if node.op == "call_module":
        return isinstance(_module(part, node), modules)
    return node.op in ("call_function", "call_method") and node.target in functions
