"""A Bernoulli prior on the masks of every example, in place of the paper's prior on weights."""

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.rules.evaluation import Evaluation
from lbdrop.rules.priors import bernoulli_kl

__all__ = ["MaskPrior"]


class MaskPrior:
    """The loss plus KL(Ber(keep) ‖ Ber(½)), summed over units.

    Each example's masks are latent variables of its own, so unlike a prior on weights this one is not divided by the number
    of examples: the more units a layer has, the closer it is held to one half.

    Args:
        weight: the share of a layer's masks that an observation has.
    """

    def __init__(self, weight: float = 1.0):
        self.weight = weight

    def loss(self, evaluation: Evaluation) -> Float[Tensor, ""]:
        expected = evaluation.losses().mean()
        costs = [
            bernoulli_kl(layer.logit).sum() * (1 if layer.units else layer.width or 1)
            for layer in evaluation.layers.values()
        ]
        return expected + self.weight * torch.stack(costs).sum()
