"""What a model holds besides its parameters, kept before an attempt at running it and restored if the attempt fails."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lbdrop._torch import buffers_of, is_batched

__all__ = ["Snapshot", "unchanged"]


class Snapshot:
    """Buffers, with their values, and tensors that are plain attributes of a module."""

    def __init__(self, model: nn.Module):
        self.buffers = [
            (module, dict(buffers), {name: b.clone() for name, b in buffers.items() if b is not None})
            for module in model.modules()
            if (buffers := buffers_of(module))
        ]
        self.attributes = [(module, _tensor_attributes(module)) for module in model.modules()]

    @torch.no_grad()
    def restore(self) -> None:
        for module, buffers, values in self.buffers:
            buffers_of(module).update(buffers)
            for name, value in values.items():
                buffer = buffers_of(module)[name]
                assert buffer is not None
                buffer.copy_(value)
        for module, attributes in self.attributes:
            for name in _tensor_attributes(module).keys() - attributes.keys():
                vars(module)[name] = None
            vars(module).update(attributes)

    @staticmethod
    def holds_lanes(model: nn.Module) -> bool:
        """Whether the model has kept a tensor that lives under ``vmap`` alone, and cannot be read any more."""
        tensors = (
            tensor
            for module in model.modules()
            for tensor in (*buffers_of(module).values(), *_tensor_attributes(module).values())
            if tensor is not None
        )
        return any(map(is_batched, tensors))


def _tensor_attributes(module: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}


@contextmanager
def unchanged(model: nn.Module, generator: torch.Generator | None = None) -> Iterator[None]:
    """What the block does to the model besides its parameters, and to random states, is undone."""
    before, state = Snapshot(model), None if generator is None else generator.get_state()
    devices = {p.device for p in model.parameters() if p.is_cuda}
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        before.restore()
        if generator is not None and state is not None:
            generator.set_state(state)
