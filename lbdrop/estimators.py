r"""Unbiased gradients $\nabla_\alpha\, \mathbb{E}_{z\sim \mathrm{Ber}(\sigma(\alpha))} f(z)$ from losses at sampled masks.

Pure tensor functions. A leading axis runs over the $n$ masks; ``f`` broadcasts over the units of its example. What comes
back has the shape of one mask: the gradient of each element's logit, to be summed over whatever shares a rate.

=====================  ==========================================================================================
ARM                    $(f(b) - f(\tilde b))\,(u - \tfrac12)$ — Yin & Zhou 2019, the paper's choice
DisARM                 $\tfrac12 (f(b) - f(\tilde b))(b - \tilde b)\max(p, 1-p)$ — Dong et al. 2020, Yin et al. 2020
RLOO                   $\tfrac{1}{n-1}\sum_i (f_i - \bar f)(z_i - p)$ — Kool et al. 2019
ARMS                   RLOO over a Dirichlet copula, times $p(1-p)/(p-J)$ — Dimitriev & Zhou 2021
double control variate RLOO of $f_i - (z_i-p)^\top \bar G_{-i}$, plus $\bar G\,p(1-p)$ — Titsias & Shi 2022
=====================  ==========================================================================================
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop._torch import indicator
from lbdrop.errors import DropoutError

__all__ = ["Draw", "Estimator", "antithetic", "arm", "arms", "copula", "disarm", "double_control_variate", "get",
           "independent", "register", "rloo"]  # fmt: skip


class Draw(NamedTuple):
    """The masks of one layer: ``z`` of shape (n, \\*mask), and the uniforms they came from."""

    z: Tensor
    uniforms: Tensor


class Site(NamedTuple):
    """All that an estimator may know of one layer: its draw, keep rates, and slope ∂f/∂z at every mask."""

    draw: Draw
    keep: Tensor
    slope: Tensor | None
    """∂f/∂z, from the same backward pass that serves the weights."""
    losses: Tensor
    """f, shaped to broadcast against z."""
    per_example: Callable[[Tensor], Tensor]
    """Sums a tensor shaped like z over the units of each example, to (n, examples)."""
    spread: Callable[[Tensor], Tensor]
    """Shapes (n, examples) as ``losses`` are."""


# ------------------------------------------------------------------------------------------------------------- draws


def _blank(keep: Tensor, count: int, shape: Sequence[int]) -> Tensor:
    # At least float32 whatever the activations are in: a rate of .001 is lost in bfloat16's uniforms.
    dtype = torch.promote_types(keep.dtype, torch.float32)
    return torch.empty((count, *shape), dtype=dtype, device=keep.device)


def antithetic(keep: Tensor, n: int, shape: Sequence[int], generator: torch.Generator | None = None) -> Draw:
    """The pair z = 1[u > 1−p], z̃ = 1[u < p] from one u."""
    if n != 2:
        raise DropoutError(f"antithetic: want n = 2, a mask and its mirror image, got {n}")
    u = _blank(keep, 1, shape).uniform_(generator=generator)
    return Draw(torch.cat([indicator(torch.gt, u, 1 - keep), indicator(torch.lt, u, keep)]), u[0])


def independent(keep: Tensor, n: int, shape: Sequence[int], generator: torch.Generator | None = None) -> Draw:
    """n masks that know nothing of each other."""
    u = _blank(keep, n, shape).uniform_(generator=generator)
    return Draw(indicator(torch.lt, u, keep), u)


def copula(keep: Tensor, n: int, shape: Sequence[int], generator: torch.Generator | None = None) -> Draw:
    """n masks, any two of them negatively dependent: a Dirichlet copula for every unit."""
    exponential = _blank(keep, n, shape).exponential_(generator=generator)
    v = (1 - exponential / exponential.sum(0)).pow(n - 1)
    u = torch.where(keep < 0.5, v, 1 - v)
    return Draw(indicator(torch.lt, u, keep), u)


# --------------------------------------------------------------------------------------------------------- gradients


def arm(u: Float[Tensor, "*mask"], f: Float[Tensor, "2 *#mask"]) -> Float[Tensor, "*mask"]:
    """Augment–REINFORCE–merge: the loss of the drawn and of the mirrored mask, and their common uniforms."""
    return (f[0] - f[1]) * (u - 0.5)


def disarm(
    z: Float[Tensor, "2 *mask"], p: Float[Tensor, "*#mask"], f: Float[Tensor, "2 *#mask"]
) -> Float[Tensor, "*mask"]:
    """ARM with the uniforms integrated out: E[ARM | z, z̃], never of larger variance."""
    return 0.5 * (f[0] - f[1]) * (z[0] - z[1]) * torch.maximum(p, 1 - p)


def rloo(
    z: Float[Tensor, "n *mask"], p: Float[Tensor, "*#mask"], f: Float[Tensor, "n *#mask"]
) -> Float[Tensor, "*mask"]:
    """REINFORCE whose baseline is the mean of the other masks' losses."""
    return _covariance(z - p, f)


def _covariance(centred: Float[Tensor, "n *mask"], f: Float[Tensor, "n *#mask"]) -> Float[Tensor, "*mask"]:
    return ((f - f.mean(0)) * centred).sum(0) / (centred.shape[0] - 1)


def arms(
    z: Float[Tensor, "n *mask"], p: Float[Tensor, "*#mask"], f: Float[Tensor, "n *#mask"]
) -> Float[Tensor, "*mask"]:
    """RLOO for masks of a :func:`copula`, corrected by the chance J that two of them both keep a unit."""
    n = z.shape[0]
    rare = torch.minimum(p, 1 - p)
    both_rare = (2 * rare.pow(1 / (n - 1)) - 1).clamp(min=0).pow(n - 1)
    # p − J is the same for a unit and its complement, so neither side loses digits near 0 or 1.
    return rare * (1 - rare) / (rare - both_rare) * rloo(z, p, f)


def double_control_variate(
    z: Float[Tensor, "n *mask"],
    p: Float[Tensor, "*#mask"],
    f: Float[Tensor, "n *#mask"],
    slope: Float[Tensor, "n *mask"],
    explained: Float[Tensor, "n *#mask"] | None = None,
) -> Float[Tensor, "*mask"]:
    """RLOO on what a linear model of the loss leaves unexplained; the linear part's gradient is exact.

    The model of mask i uses the slopes at the other masks, so it is independent of z_i and nothing is biased.
    ``explained`` is that model's prediction where a loss depends on further layers too; by default the units of the last
    axis are all there are.
    """
    centred = z - p
    if explained is None:
        explained = _leave_one_out_linear(centred, slope, lambda t: t.sum(-1, keepdim=True))
    return _with_linear_part(centred, p, f - explained, slope)


def _with_linear_part(centred: Tensor, p: Tensor, rest: Tensor, slope: Tensor) -> Tensor:
    return _covariance(centred, rest) + slope.mean(0) * p * (1 - p)


def _leave_one_out_linear(
    centred: Float[Tensor, "n *mask"], slope: Float[Tensor, "n *mask"], over_units: Callable[[Tensor], Tensor]
) -> Float[Tensor, "n ..."]:
    """(z_i − p) · mean of the other masks' slopes."""
    return over_units(centred * (slope.sum(0) - slope)) / (len(slope) - 1)


# -------------------------------------------------------------------------------------------- estimators as a setting


class Estimator(NamedTuple):
    """A way to draw ``masks`` masks together with the gradient that belongs to it."""

    name: str
    masks: int
    draw: Callable[..., Draw]
    gradients: Callable[[Sequence[Site]], list[Tensor]]
    """The gradients of all layers at once: the double control variate explains a loss by the masks of every layer."""


def _each(gradient: Callable[[Site], Tensor]) -> Callable[[Sequence[Site]], list[Tensor]]:
    return lambda sites: [gradient(site) for site in sites]


def _double_control_variate(sites: Sequence[Site]) -> list[Tensor]:
    parts = [(site, site.draw.z - site.keep, site.slope) for site in sites if site.slope is not None]
    each = [_leave_one_out_linear(centred, slope, site.per_example) for site, centred, slope in parts]
    explained = torch.stack(each).sum(0)
    return [_with_linear_part(centred, site.keep, site.losses - site.spread(explained), slope)
            for site, centred, slope in parts]  # fmt: skip


REGISTERED: dict[str, Estimator] = {}


def register(estimator: Estimator) -> Estimator:
    """Make one of your own known by its name: to objectives, to the toy example and to ``benchmarks.variance``."""
    return REGISTERED.setdefault(estimator.name, estimator)


def get(name: str | Estimator) -> Estimator:
    """An estimator by name; a number after a dash is how many masks it draws. One that is an estimator is itself.

    >>> get("double-cv").masks, get("rloo-4").masks
    (2, 4)
    """
    if isinstance(name, Estimator) or name in REGISTERED:
        return name if isinstance(name, Estimator) else REGISTERED[name]
    kind, _, count = name.rpartition("-") if name[-1:].isdigit() else (name, "", "2")
    n = int(count)
    known: dict[str, Estimator] = {
        "arm": Estimator(name, 2, antithetic, _each(lambda s: arm(s.draw.uniforms, s.losses))),
        "disarm": Estimator(name, 2, antithetic, _each(lambda s: disarm(s.draw.z, s.keep, s.losses))),
        "rloo": Estimator(name, n, independent, _each(lambda s: rloo(s.draw.z, s.keep, s.losses))),
        "arms": Estimator(name, n, copula, _each(lambda s: arms(s.draw.z, s.keep, s.losses))),
        "double-cv": Estimator(name, n, independent, _double_control_variate),
    }
    if kind not in known or n < 2 or (n > 2 and known[kind].masks == 2):
        raise DropoutError(
            f"estimator: want 'arm', 'disarm', or 'rloo', 'arms' or 'double-cv', these three with a number of masks of"
            f" at least 2 as in 'rloo-4', got {name!r}"
        )
    return known[kind]
