"""Activation checkpointing around a dropout: allowed where the recomputed pass draws the same mask, refused elsewhere.

``torch.utils.checkpoint`` runs a block again in the backward pass, when no pass of ours is active any more: the layer draws its
mask by itself. After one mask from the global random state, which checkpointing restores, that is the mask of the forward pass.
Of several masks, or with a generator of one's own, it is another one, and all gradients would be wrong.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import checkpoint

from lbdrop.errors import DropoutError

__all__ = ["checkpoints_explained", "refuse_checkpoint"]


def refuse_checkpoint(grad_enabled: bool) -> None:
    """An error if the caller stands inside a checkpointed block whose masks could not be drawn again.

    Args:
        grad_enabled: whether gradients were enabled when the pass began: reentrant checkpointing switches them off.
    """
    if grad_enabled and (_inside_reentrant() or _inside_non_reentrant()):
        raise DropoutError(
            "checkpoint: want no dropout of ours inside torch.utils.checkpoint where a step draws several masks or has its"
            " own generator, got one; the recomputed block would draw other masks, and all gradients would be wrong."
            " Checkpoint the parts between dropouts, or learn rates from held-out data (held_out=) without a generator"
        )


@contextmanager
def checkpoints_explained() -> Iterator[None]:
    """What torch says of a checkpointed block behind a dropout, as an error with the next step."""
    try:
        yield
    except RuntimeError as error:
        if "use_reentrant" not in str(error) and "escaped from inside a function being vmapped" not in str(error):
            raise
        raise DropoutError(
            "checkpoint: want no torch.utils.checkpoint behind a dropout where a step draws several masks, got one;"
            " checkpoint the part before the first dropout, or learn rates from held-out data (held_out=), which draws one"
        ) from error


def _inside_reentrant() -> bool:
    if torch.is_grad_enabled():
        return False
    code = checkpoint.CheckpointFunction.forward.__code__
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def _inside_non_reentrant() -> bool:
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore[reportAttributeAccessIssue]
    return hooks is not None and hooks[0].__qualname__.startswith(checkpoint._checkpoint_hook.__name__)
