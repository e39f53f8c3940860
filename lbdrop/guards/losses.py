"""What an objective is called with, looked at before its first pass: a function of model and batch, with gradients on."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lbdrop.errors import DropoutError

__all__ = ["check_losses"]

EXAMPLE = "objective(lambda m, x, y: F.cross_entropy(m(x), y, reduction='none'), x, y)"


def check_losses(losses: Callable[..., Tensor], model: nn.Module, batch: tuple[Any, ...]) -> None:
    """An error about what is no such function; a warning where nothing can be learned from it."""
    if losses is model or not callable(losses):
        got = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
        raise DropoutError(
            f"loss: want a function that runs the model, since it is run under other masks than the last, got {got};"
            f" write {EXAMPLE}"
        )
    try:
        signature = inspect.signature(losses.forward if isinstance(losses, nn.Module) else losses)
    except (TypeError, ValueError):  # of C
        return
    try:
        signature.bind(model, *batch)
    except TypeError as error:
        behind = f" and the {len(batch)} arguments behind it" if batch else ""
        raise DropoutError(
            f"loss: want a function of the model{behind}, got one that takes {signature}, and so {error}; write {EXAMPLE}"
        ) from None
    if not torch.is_grad_enabled():
        warnings.warn(
            "objective: want gradients on, got a call under no_grad or inference_mode: masks are drawn and there is a loss to"
            " look at, but nothing learns; train outside of it, and evaluate with model.eval() or lbdrop.predict",
            stacklevel=4,
        )
