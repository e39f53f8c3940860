"""States for a while, after which all is as it was: modes, where single modules may have their own; kernels; gradients."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

__all__ = ["as_at_test", "recurrent_by_hand", "still"]


@contextmanager
def as_at_test(model: nn.Module) -> Iterator[None]:
    """Running statistics, which stay as they are, and no dropout that is not ours."""
    training = [module for module in model.modules() if module.training]
    for module in training:  # eval() would go through all of them once more
        module.training = False
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
def still(rates: list[nn.Parameter]) -> Iterator[None]:
    """What is computed here has no gradient for these rates."""
    moving = [logit for logit in rates if logit.requires_grad]
    try:
        for logit in moving:
            logit.requires_grad_(False)
        yield
    finally:
        for logit in moving:
            logit.requires_grad_(True)
