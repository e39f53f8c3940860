"""States for a while, after which all is as it was: modes, where single modules may have their own; kernels; random numbers."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

__all__ = ["as_at_test", "put_back", "recurrent_by_hand"]


@contextmanager
def as_at_test(model: nn.Module) -> Iterator[None]:
    """Running statistics, which stay as they are, and no dropout that is not ours."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def recurrent_by_hand(model: nn.Module) -> Iterator[None]:
    """cuDNN's recurrent layers have no backward pass in eval mode; torch's own have."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    with torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext():
        yield


@contextmanager
def put_back(generator: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """What is drawn here is drawn again afterwards."""
    if generator is None:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
        return
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)
