"""Eval mode for a while, after which every module is in its own again: some may have been in eval mode all along."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["as_at_test"]


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
