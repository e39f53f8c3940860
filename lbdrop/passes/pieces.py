"""How many examples and how many masks go through a model at once, so that activations fit into memory."""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lbdrop import masks
from lbdrop._torch import tree_flatten, tree_map
from lbdrop.dropout import NoiseLayer, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.guards.snapshot import Snapshot
from lbdrop.passes.price import count_pass

__all__ = ["Plan", "plan_pieces", "split_rows"]

MAX_GROWTH = 64
"""Activations are taken to be at most so many times as large as the input, before any is measured."""
ALONE = 0.6
"""Where more than this share of a pass is work behind the first dropout, a CPU runs masks one by one, which fits its cache."""
SURELY_FREE = 1 << 26
"""So few bytes are there."""
DEFAULT_MEMORY = 4 << 30
"""Free bytes where the system does not tell."""


@dataclass
class Plan:
    """How many examples and how many masks go through the model at once."""

    examples: int
    masks: int


def plan_pieces(model: nn.Module, call: Callable[..., Tensor], batch: Any, samples: int, memory: int | None) -> Plan:
    """The plan for ``samples`` masks of a batch, in ``memory`` bytes or half of what is free."""
    tensors = [t for t in tree_flatten(batch)[0] if isinstance(t, Tensor) and t.dim()]
    if not tensors or not len(tensors[0]):
        raise DropoutError("inputs: want at least one example, got an empty batch; check the data")
    examples = len(tensors[0])
    if (
        tensors[0].device.type == "cpu"
        and _share_behind(model, lambda: call(model, next(split_rows(batch, 32)))) > ALONE
    ):
        samples = 1
    needed = samples * sum(t.nbytes for t in tensors) * MAX_GROWTH
    if memory is None and needed < SURELY_FREE:
        return Plan(examples, samples)  # nor asked for: the system takes longer to say it than a small model to predict
    budget = memory or _free_memory(tensors[0].device) // 2
    if memory is None and needed < budget:
        return Plan(examples, samples)  # certain to fit: no measuring
    before, behind = _largest_activations(model, call, next(split_rows(batch, 1)))
    # An operation holds its input, its output and a workspace.
    masks_at_once = int(min(samples, max(1, (budget // 3 / examples - before) // max(behind, 1))))
    examples_at_once = int(min(examples, max(1, budget // 3 // (before + masks_at_once * behind))))
    if any(layer.batch_dim for layer in noise_layers(model).values()):
        examples_at_once = examples  # sequence-first inside, so perhaps outside: the first axis may not be examples
    return Plan(examples_at_once, masks_at_once)


_counting = threading.RLock()
_shares: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()


def _share_behind(model: nn.Module, call: Callable[[], Tensor]) -> float:
    """Counted once for a model."""
    with _counting:  # one thread counts, others wait for it
        if model not in _shares:
            before = Snapshot(model)
            found = count_pass(call, noise_layers(model).values())
            before.restore()
            _shares[model] = (found.behind - found.calls_behind) / found.total
        return _shares[model]


def split_rows(batch: Any, count: int) -> Iterator[Any]:
    """Pieces of at most ``count`` examples of a batch, which may be any tree of tensors."""
    examples = len(next(t for t in tree_flatten(batch)[0] if isinstance(t, Tensor) and t.dim()))
    if count >= examples:
        yield batch
        return
    for start in range(0, examples, count):
        part = slice(start, start + count)
        yield tree_map(lambda t, part=part: t[part] if _has_examples(t, examples) else t, batch)


def _has_examples(value: Any, examples: int) -> bool:
    """Whether a tensor has an entry for each example; a table or a scalar beside them goes whole into every piece."""
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == examples


def _largest_activations(model: nn.Module, call: Callable[..., Tensor], one: Any) -> tuple[int, int]:
    """Bytes of the largest output before and behind the first dropout, for one example under one mask."""
    largest = [1, 1]
    behind = [False]

    def measure(module: nn.Module, _: Any, output: Any) -> None:
        behind[0] |= isinstance(module, NoiseLayer)
        size = sum(t.nbytes for t in tree_flatten(output)[0] if isinstance(t, Tensor))
        largest[behind[0]] = max(largest[behind[0]], size)

    measured = [m for m in model.modules() if isinstance(m, NoiseLayer) or not list(m.children())]
    hooks = [module.register_forward_hook(measure) for module in measured]
    try:
        with masks.drawn(model):
            call(model, one)
    finally:
        for hook in hooks:
            hook.remove()
    return largest[0], largest[1]


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return DEFAULT_MEMORY
