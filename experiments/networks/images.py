"""What every network here asks of its images."""

from torch import Tensor

from lbdrop.errors import DropoutError

__all__ = ["check_images"]


def check_images(images: Tensor, smallest: int) -> None:
    """An error unless these are floating-point images with three channels and sides that the network can halve."""
    if images.dim() != 4 or images.shape[1] != 3 or min(images.shape[2:]) < smallest:
        raise DropoutError(
            f"images: want shape (batch, 3, height, width) with sides of at least {smallest}, got"
            f" {tuple(images.shape)}; resize them first"
        )
    if not images.is_floating_point():
        raise DropoutError(f"images: want floating point in [0, 1], got {images.dtype}; divide bytes by 255")
