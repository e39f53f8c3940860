"""Activation checkpointing around a dropout is allowed where the recomputed pass draws the same mask, refused elsewhere.

``torch.utils.checkpoint`` runs a block again in the backward pass. By then our pass has ended, so the layer draws its mask by
itself. Checkpointing restores the global random state: where the pass drew one mask from that, the layer draws the same one.
Where it drew several masks, or had its own generator, the layer draws another, and all gradients would be wrong.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import checkpoint

from lbdrop._torch import checkpoint_restores_randomness, inside_non_reentrant_checkpoint
from lbdrop.errors import DropoutError

__all__ = ["checkpoints_explained", "inside_checkpoint", "refuse_checkpoint", "refuse_unrestored"]


def inside_checkpoint() -> bool:
    """Whether the caller stands inside a checkpointed block."""
    return _inside_reentrant_checkpoint() or inside_non_reentrant_checkpoint()


def refuse_checkpoint(grad_enabled: bool) -> None:
    """An error if the caller stands inside a checkpointed block whose masks could not be drawn again.

    Args:
        grad_enabled: whether gradients were enabled when the pass began: reentrant checkpointing switches them off.
    """
    if grad_enabled and inside_checkpoint():
        raise DropoutError(
            "checkpoint: want no dropout of ours inside torch.utils.checkpoint where a step draws several masks or has its"
            " own generator, got one; the recomputed block would draw other masks, and all gradients would be wrong."
            " Checkpoint the parts between dropouts, or learn rates from held-out data (held_out=) without a generator"
        )


def refuse_unrestored(grad_enabled: bool) -> None:
    """An error if the caller stands inside a checkpointed block that was told not to draw the same masks again."""
    if grad_enabled and inside_checkpoint() and not checkpoint_restores_randomness():
        raise DropoutError(
            "checkpoint: want a block with dropout to draw the same masks when it is computed again, got one with"
            " preserve_rng_state=False, whose gradients would be wrong; leave preserve_rng_state out"
        )


@contextmanager
def checkpoints_explained() -> Iterator[None]:
    """Turn what torch says about a checkpointed block behind a dropout into an error with the next step."""
    try:
        yield
    except RuntimeError as error:
        if "use_reentrant" not in str(error) and "escaped from inside a function being vmapped" not in str(error):
            raise
        raise DropoutError(
            "checkpoint: want no torch.utils.checkpoint behind a dropout where a step draws several masks, got one;"
            " checkpoint the part before the first dropout, or learn rates from held-out data (held_out=), which draws one"
        ) from error


def _inside_reentrant_checkpoint() -> bool:
    """Whether a caller is the forward pass of a reentrant checkpoint, which torch marks nowhere else."""
    if torch.is_grad_enabled():
        return False
    code = checkpoint.CheckpointFunction.forward.__code__
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
