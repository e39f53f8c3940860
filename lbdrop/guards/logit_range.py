"""Logits stay where their rates can come back from."""

from collections.abc import Iterable

from lbdrop._torch import clamp_many
from lbdrop.dropout import NoiseLayer

__all__ = ["clamp_logits"]


def clamp_logits(layers: Iterable[NoiseLayer]) -> None:
    """Put logits that a step drove out of their range back to its edge, where they still have a gradient.

    A projection of the parameters between two steps: the gradients of each step stay exact for the rates it is taken at.
    """
    found = {logit: layer.logit_range for layer in layers if layer.learns and (logit := layer.logit).requires_grad}
    if not found:
        return
    # By .data: losses of an earlier call may still be waiting for their backward pass, and within the range nothing changes.
    logits = [logit.data for logit in found]
    clamp_many(logits, [low for low, _ in found.values()], [high for _, high in found.values()])
