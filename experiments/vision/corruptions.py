"""Images made worse on purpose, in five degrees: noise, blur and compression as in CIFAR-10-C.

    severity              1      2      3      4      5
    gaussian_noise      0.04   0.06   0.08   0.09   0.10    deviation, of pixels in [0, 1]
    gaussian_blur       0.4    0.6    0.7    0.8    1.0     deviation in pixels, cut at four of them, edges repeated
    jpeg                 80     65     58     50     40     quality

These are the settings of CIFAR-10-C's generator for images of 32 × 32. Two things differ from its published files: the
noise is of course another draw, and results are rounded to bytes where the original cuts fractions off.

Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR 2019.
"""

import io
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from lbdrop.errors import DropoutError

__all__ = ["Kind", "corrupt", "gaussian_blur", "gaussian_noise", "jpeg"]

Kind = Literal["gaussian_noise", "gaussian_blur", "jpeg"]

DEVIATION = (0.04, 0.06, 0.08, 0.09, 0.10)
SIGMA = (0.4, 0.6, 0.7, 0.8, 1.0)
QUALITY = (80, 65, 58, 50, 40)

Bytes = UInt8[Tensor, "n 3 h w"]
CHUNK = 1024  # images at a time, so that the float copies of a large set stay small


def corrupt(images: Bytes, kind: str, severity: int, generator: torch.Generator | None = None) -> Bytes:
    """A corrupted copy of the images; only the noise is random.

    Example:
        >>> images = torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)
        >>> corrupt(images, "gaussian_noise", 5, torch.Generator().manual_seed(0)).float().std() / 255
        tensor(0.1...)
    """
    if kind == "gaussian_noise":
        return gaussian_noise(images, severity, generator)
    if kind == "gaussian_blur":
        return gaussian_blur(images, severity)
    if kind == "jpeg":
        return jpeg(images, severity)
    raise DropoutError(f"kind: want one of {', '.join(get_args(Kind))}, got {kind!r}")


def gaussian_noise(images: Bytes, severity: int, generator: torch.Generator | None = None) -> Bytes:
    """Independent noise for every pixel and colour; drawn on the generator's device, the CPU if there is none."""
    deviation = _setting(DEVIATION, severity)
    on = "cpu" if generator is None else generator.device
    noisy = []
    for x in images.split(CHUNK):
        noise = torch.randn(x.shape, generator=generator, device=on).to(x.device)
        noisy.append(_to_bytes(x / 255 + deviation * noise))
    return torch.cat(noisy)


def gaussian_blur(images: Bytes, severity: int) -> Bytes:
    """A Gaussian filter of height and width."""
    kernel = _gaussian(_setting(SIGMA, severity))
    return torch.cat([_to_bytes(_along(_along(x / 255, kernel, 2), kernel, 3)) for x in images.split(CHUNK)])


def jpeg(images: Bytes, severity: int) -> Bytes:
    """Compressed and read again; needs Pillow."""
    quality = _setting(QUALITY, severity)
    try:
        from PIL import Image
    except ImportError as error:
        raise DropoutError("jpeg needs Pillow; install it with pip install pillow") from error
    result = []
    for pixels in images.permute(0, 2, 3, 1).cpu().numpy():
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "JPEG", quality=quality)
        result.append(np.array(Image.open(buffer)))
    return torch.from_numpy(np.stack(result)).permute(0, 3, 1, 2).contiguous().to(images.device)


def _setting(table: tuple[float, ...] | tuple[int, ...], severity: int) -> float:
    if not 1 <= severity <= len(table):
        raise DropoutError(f"severity: want 1 to {len(table)}, got {severity}")
    return table[severity - 1]


def _gaussian(sigma: float) -> list[float]:
    radius = int(4 * sigma + 0.5)
    weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    return (weights / weights.sum()).tolist()


def _along(x: Float[Tensor, "n 3 h w"], kernel: list[float], axis: int) -> Float[Tensor, "n 3 h w"]:
    """The weighted sum of shifted copies; a convolution on the GPU may round to fewer digits than bytes need."""
    radius, size = len(kernel) // 2, x.shape[axis]
    padded = F.pad(x, (0, 0, radius, radius) if axis == 2 else (radius, radius, 0, 0), mode="replicate")
    blurred = torch.zeros_like(x)
    for i, weight in enumerate(kernel):
        blurred.add_(padded.narrow(axis, i, size), alpha=weight)
    return blurred


def _to_bytes(x: Float[Tensor, "n 3 h w"]) -> Bytes:
    return (x.clamp(0, 1) * 255).round().to(torch.uint8)
