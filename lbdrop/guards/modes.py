"""Temporary states of a model, each restored at the end: eval mode, no cuDNN for recurrent layers, frozen parameters."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

__all__ = ["eval_mode", "frozen", "warn_of_eval_mode", "without_cudnn_recurrence"]


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put every module in eval mode: running statistics do not change, and ordinary dropout is off.

    At the end each module has its own mode again, so that a model with some parts in eval mode keeps them so.
    """
    training = [module for module in model.modules() if module.training]
    for module in training:  # not eval(), which walks over all children once more
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def without_cudnn_recurrence(model: nn.Module) -> Iterator[None]:
    """Switch cuDNN off for a model with recurrent layers: in eval mode cuDNN's have no backward pass, torch's own have."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    with torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext():
        yield


@contextmanager
def frozen(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Set ``requires_grad`` to False for these parameters: what is computed here has no gradient for them."""
    learning = [parameter for parameter in parameters if parameter.requires_grad]
    try:
        for parameter in learning:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def warn_of_eval_mode(model: nn.Module) -> None:
    """Of a model that is trained as a whole in eval mode; parts of it may be on purpose."""
    if not any(module.training for module in model.modules()):
        warnings.warn(
            "objective: want a model in training mode, got one in eval mode, as from_pretrained returns it: learned masks are"
            " drawn all the same, but other dropout is off and running statistics stay; call model.train() before training",
            stacklevel=4,
        )
