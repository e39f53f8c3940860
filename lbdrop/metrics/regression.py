r"""Regression from S masks and Gaussian noise: error, likelihood, and coverage of intervals.

$$ p(y\mid x) = \frac1S \sum_s \mathcal N(y;\, f_s(x),\, \sigma^2), \qquad
   F(y) = \frac1S \sum_s \Phi\!\Big(\frac{y - f_s(x)}{\sigma}\Big) $$

The central interval of level $\alpha$ holds $y$ exactly if $|2F(y) - 1| \le \alpha$, so coverage needs no quantiles.
Gal and Ghahramani, Dropout as a Bayesian Approximation, ICML 2016 (their precision τ is $1/\sigma^2$).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.errors import DropoutError

__all__ = ["gaussian_nll", "interval_coverage", "mixture_nll", "rmse"]


def rmse(mean: Float[Tensor, "batch *outputs"], targets: Float[Tensor, "batch *outputs"]) -> Float[Tensor, ""]:
    """Root of the squared error averaged over examples and outputs, in the units of the targets.

    >>> float(rmse(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 6.0])) ** 2)
    12.5
    """
    _check(mean, targets, "mean")
    return (mean - targets).square().mean().sqrt()


def gaussian_nll(
    mean: Float[Tensor, "batch *outputs"],
    variance: float | Float[Tensor, "..."],
    targets: Float[Tensor, "batch *outputs"],
) -> Float[Tensor, ""]:
    """−log N(y; mean, variance) in nats, summed over outputs and averaged over examples.

    The variance is the sum of the masks' variance and the noise: ``predictive.variance + noise``; a number, or a tensor
    that broadcasts to ``mean``.
    """
    _check(mean, targets, "mean")
    return mixture_nll(mean[None], targets, variance)


def mixture_nll(
    samples: Float[Tensor, "samples batch *outputs"],
    targets: Float[Tensor, "batch *outputs"],
    noise_variance: float | Float[Tensor, "..."],
) -> Float[Tensor, ""]:
    """−log 1/S Σₛ N(y; fₛ, σ²) in nats, averaged over examples; the outputs of one example are scored jointly.

    Within a sample outputs are independent, so their logarithms add up before samples are averaged. ``noise_variance``
    is σ²: a number, or a tensor that broadcasts to ``samples``, as (outputs,) for one per output.

    >>> samples = torch.tensor([[0.0], [0.0]])
    >>> round(float(mixture_nll(samples, torch.tensor([0.0]), noise_variance=1.0)), 4)  # log √(2π)
    0.9189
    """
    variance = _variance(samples, targets, noise_variance)
    log_density = -((targets - samples).square() / variance + (2 * math.pi * variance).log()) / 2
    joint = log_density.reshape(*samples.shape[:2], -1).sum(2)
    return (math.log(len(samples)) - joint.logsumexp(0)).mean()


def interval_coverage(
    samples: Float[Tensor, "samples batch *outputs"],
    targets: Float[Tensor, "batch *outputs"],
    noise_variance: float | Float[Tensor, "..."],
    level: float = 0.95,
) -> Float[Tensor, ""]:
    """Targets inside their central predictive interval, divided by all targets (examples × outputs); ideal is ``level``.

    The interval leaves (1 − level)/2 of the mixture on either side. For a single Gaussian give ``mean[None]`` and its
    variance.
    """
    if not 0 < level < 1:
        raise DropoutError(f"level: want a share between 0 and 1, got {level}; 0.95 means 95 %")
    variance = _variance(samples, targets, noise_variance)
    below = torch.special.ndtr((targets - samples) / variance.sqrt()).mean(0)
    return ((2 * below - 1).abs() <= level).to(samples.dtype).mean()


def _check(values: Tensor, targets: Tensor, name: str) -> None:
    if values.shape != targets.shape or not targets.numel():
        raise DropoutError(
            f"{name} and targets: want one shape (batch, …) and at least one example, got {tuple(values.shape)} and"
            f" {tuple(targets.shape)}; remove an axis of size 1 with squeeze"
        )
    if not bool(values.isfinite().all() & targets.isfinite().all()):
        raise DropoutError(f"{name} and targets: want finite numbers, got NaN or infinity; check the model's outputs")


def _variance(samples: Tensor, targets: Tensor, variance: float | Tensor) -> Tensor:
    if samples.dim() < 2 or not len(samples):
        raise DropoutError(
            f"samples: want (samples, batch, …) with at least one sample, got {tuple(samples.shape)}; keep them with"
            " predict(..., keep_samples=True)"
        )
    _check(samples, targets.expand_as(samples) if samples.shape[1:] == targets.shape else targets, "samples")
    spread = torch.as_tensor(variance, dtype=samples.dtype, device=samples.device)
    axes = zip(reversed(spread.shape), reversed(samples.shape), strict=False)
    if spread.dim() > samples.dim() or any(own not in (1, other) for own, other in axes):
        raise DropoutError(
            f"variance: want a number, or a shape that broadcasts to {tuple(samples.shape)}, got {tuple(spread.shape)};"
            " give one per output, or one per sample, example and output"
        )
    if not bool((spread > 0).all() & spread.isfinite().all()):
        raise DropoutError(
            f"variance: want finite numbers above 0, got {float(spread.min()):.3g} to {float(spread.max()):.3g}; add the"
            " noise's variance, it keeps the density finite where all masks agree"
        )
    return spread
