"""What the zoo runs: a small model with its inputs, however its library makes it."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["BATCH", "RATE", "Entry", "Made", "main_output", "package", "settle", "stub_torchvision"]

BATCH = 3
"""Examples of a batch: a prime number, so that it is no number of heads or windows."""
RATE = 0.1
"""Every rate of dropout is set to at least this."""

_stub: Any = None


@dataclass
class Made:
    """A model with one batch for it, by name or as one argument."""

    model: nn.Module
    inputs: dict[str, Tensor] | tuple[Any, ...]
    examples: int = BATCH
    """How many losses a batch has: images, sentences, nodes."""

    def call(self, model: nn.Module) -> Any:
        return model(**self.inputs) if isinstance(self.inputs, dict) else model(*self.inputs)


@dataclass
class Entry:
    """A model that can be made, in the process that examines it."""

    source: str
    name: str
    make: Callable[[], Made]


def package(name: str) -> Any:
    """A package of the extra ``zoo``, which the checks of types do not have."""
    return importlib.import_module(name)


def stub_torchvision() -> None:
    """Let torchvision and what imports it be imported where its C++ operators do not load beside torch."""
    global _stub
    if _stub is None and importlib.util.find_spec("torchvision"):
        try:
            importlib.import_module("torchvision")
        except (RuntimeError, ImportError):
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            _stub = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                _stub.define(name + "(Tensor a, Tensor b, float c) -> Tensor")


def settle(made: Made) -> None:
    """Let signals through a model of random weights: none of them is 0, and each BatchNorm has the statistics of this batch."""
    generator = torch.Generator().manual_seed(1)
    for parameter in made.model.parameters():
        if parameter.is_floating_point() and not parameter.any():
            parameter.data.normal_(0, 0.02, generator=generator)
    norms = [
        (module, module.momentum)
        for module in made.model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    if norms:
        for module, _ in norms:
            module.momentum = 1.0
        with torch.no_grad():
            made.call(made.model.train())
        for module, momentum in norms:
            module.momentum = momentum
        made.model.eval()


def main_output(output: Any, examples: int) -> Tensor:
    """The first tensor of an output that has one entry for each example; logits before anything else."""
    candidates = [getattr(output, name, None) for name in ("logits", "prediction_outputs", "prediction_logits")]
    candidates += list(output.values()) if isinstance(output, dict) else []
    candidates += list(output) if isinstance(output, tuple | list) else []
    candidates.append(output)
    for each in candidates:
        if isinstance(each, Tensor) and each.is_floating_point() and each.dim() and len(each) == examples:
            return each
    nested = [each for each in candidates if isinstance(each, dict | tuple | list) and each is not output]
    for each in nested:
        try:
            return main_output(each, examples)
        except LookupError:
            continue
    raise LookupError("no tensor of the output has one entry for each example")
