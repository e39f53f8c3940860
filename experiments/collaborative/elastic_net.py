r"""Every item's non-negative elastic net on all others, solved together by products of item × item matrices.

$$ \min_{B \ge 0,\ B_{ii} = 0}\ \tfrac12\lVert X - XB\rVert^2 + \tfrac12\lambda_2\lVert B\rVert^2 + \lambda_1 \lvert B\rvert $$

needs of $X$ only $G = X^\top X$. Coordinate descent goes column by column; steps of all columns at once are
dense products, at which a GPU is best. The ridge makes the problem strongly convex, so Nesterov's
momentum is a known constant and the error falls by $1 - \sqrt{\lambda_2 / L}$ each step.

Nesterov, Introductory Lectures on Convex Optimization, 2004, 2.2.1; with the proximal step of Beck and Teboulle, 2009.
"""

import math
import warnings
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.recommend.data.splits import HeldOut
from lbdrop.recommend.linear.base import binary, co_occurrence
from lbdrop.recommend.linear.methods import SLIM

__all__ = ["SLIMAtOnce", "non_negative_elastic_net"]


class SLIMAtOnce(SLIM):
    """SLIM for a GPU: all items at once."""

    def fit(self, matrix: Any, held_out: HeldOut | None = None) -> "SLIMAtOnce":
        gram, strength = co_occurrence(binary(matrix), self.device), self.alpha * matrix.shape[0]
        l1, l2 = strength * self.l1_ratio, strength * (1 - self.l1_ratio)
        self.state = {"weights": non_negative_elastic_net(gram, l1, l2)}
        return self


def non_negative_elastic_net(
    gram: Float[Tensor, "items items"], l1: float, l2: float, *, tolerance: float = 1e-4, max_steps: int = 2000
) -> Float[Tensor, "items items"]:
    """The weights, one column for each item, with zeros on the diagonal.

    Args:
        gram: $X^\\top X$; it is not changed.
        l1: weight of the sum.
        l2: weight of half the sum of squares; above 0.
        tolerance: stop when no weight changes by more in a step.
        max_steps: stop after so many steps, with a warning.
    """
    largest = _largest_eigenvalue(gram)
    step = 1 / (largest + l2)
    root = math.sqrt(l2 * step)
    momentum = (1 - root) / (1 + root)
    weights = torch.zeros_like(gram)
    ahead = weights.clone()
    # TF32 is faster and precise enough at first; only the last steps need float32.
    before = torch.get_float32_matmul_precision()
    try:
        for precision, near in (("high", 10 * tolerance), ("highest", tolerance)):
            torch.set_float32_matmul_precision(precision)
            for count in range(max_steps):
                # ahead − step · (G·ahead − G + l2·ahead + l1), cut at 0
                nearer = torch.addmm(gram, gram, ahead, beta=step, alpha=-step)
                nearer.add_(ahead, alpha=1 - step * l2).sub_(step * l1).clamp_(min=0)
                nearer.diagonal().zero_()
                moved = nearer - weights
                ahead = torch.add(nearer, moved, alpha=momentum, out=ahead)
                weights = nearer
                # Only every ten steps, because it waits for the device.
                if count % 10 == 9 and float(moved.abs_().max()) < near:
                    break
            else:
                if precision == "highest":
                    warnings.warn(
                        f"elastic net: weights still move by more than {tolerance:g} a step after {max_steps:,} steps; they"
                        " are near the solution at best; raise l2, or max_steps",
                        stacklevel=2,
                    )
    finally:
        torch.set_float32_matmul_precision(before)
    return weights


def _largest_eigenvalue(gram: Float[Tensor, "items items"]) -> float:
    """By power iteration; a hundredth is added, for the iteration comes from below and too long a step diverges."""
    vector = gram.new_ones(gram.shape[0])  # counts are non-negative, so this is not orthogonal to the leading vector
    for _ in range(50):
        vector = gram @ (vector / vector.norm().clamp(min=torch.finfo(gram.dtype).tiny))
    return 1.01 * float(vector.norm())
