r"""The four steps of a dense layer around its convolution, in plain torch; :mod:`.dense_triton` has the same.

Maps are rows: pixels of all images × channels, a channel's mean $m$ and $r = 1/\sqrt{v + \epsilon}$ beside them.

$$ z = \max(0,\; \gamma \hat x + \beta), \qquad \hat x = (x - m)\,r $$
"""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["collect", "norm_relu", "norm_relu_backward", "place"]

Rows = Float[Tensor, "pixels channels"]
Vector = Float[Tensor, "channels"]


def place(
    new: Float[Tensor, "some channels"],
    bias: Vector | None,
    mask: Float[Tensor, "images channels"] | None,
    into: Rows,
    statistics: tuple[Vector, Vector] | None,
    eps: float = 0.0,
) -> None:
    """Write (new + bias) · mask where it belongs among all channels, with its statistics; fewer rows are repeated."""
    wide = _wide(into)
    value = new.to(wide) if bias is None else new.to(wide) + bias
    if mask is not None:
        value = value * mask.to(wide).repeat_interleave(len(new) // len(mask), 0)
    into.copy_(value.repeat(len(into) // len(new), 1))
    if statistics is not None:
        variance, mean = torch.var_mean(into.to(wide), 0, correction=0)
        statistics[0].copy_(mean)
        statistics[1].copy_((variance + eps).rsqrt())


def norm_relu(x: Rows, mean: Vector, inverse: Vector, gamma: Vector, beta: Vector) -> Rows:
    """BatchNorm with given statistics, and ReLU."""
    return ((x.to(_wide(x)) - mean) * inverse * gamma + beta).relu().to(x.dtype)


def norm_relu_backward(
    gradient: Rows,
    x: Rows,
    mean: Vector,
    inverse: Vector,
    gamma: Vector,
    beta: Vector,
    into: Rows,
    totals: Float[Tensor, "2 channels"],
    *,
    first: bool,
) -> tuple[Vector, Vector]:
    r"""The gradients of γ and β; that of x̂, which many layers read, is added ``into`` a sum over all of them.

    Its sums over pixels, plain and times x̂, are added to ``totals``: what the statistics' own gradients need.
    """
    normal = (x.to(_wide(x)) - mean) * inverse
    through = gradient.to(normal.dtype) * (normal * gamma + beta > 0)
    by_beta, by_gamma = through.sum(0), (through * normal).sum(0)
    into.copy_(through * gamma if first else into + through * gamma)
    totals += gamma * torch.stack([by_beta, by_gamma])
    return by_gamma, by_beta


def collect(
    direct: Rows | None,
    through: Rows | None,
    x: Rows,
    mean: Vector,
    inverse: Vector,
    totals: Float[Tensor, "2 channels"],
    mask: Float[Tensor, "images channels"] | None,
) -> tuple[Rows, Vector]:
    """The gradient of features: what came directly, what came through normalisations and their statistics, under a mask.

    Given with its sum over pixels, which is a bias's.
    """
    wide = _wide(x)
    found = torch.zeros_like(x, dtype=wide) if direct is None else direct.to(wide)
    if through is not None:
        normal = (x.to(wide) - mean) * inverse
        found = found + inverse * (through.to(wide) - totals[0] / len(x) - normal * totals[1] / len(x))
    if mask is not None:
        found = found * mask.to(wide).repeat_interleave(len(x) // len(mask), 0)
    return found.to(x.dtype), found.sum(0)


def _wide(x: Tensor) -> torch.dtype:
    """What is computed in: at least single precision."""
    return torch.promote_types(x.dtype, torch.float32)
