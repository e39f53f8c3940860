"""Compares the Triton kernels of a dense layer with its steps in torch; run with TRITON_INTERPRET=1, or on a GPU."""

import itertools

import torch
from torch import Tensor

from lbdrop.models import dense_torch, dense_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def close(a: Tensor, b: Tensor, dtype: torch.dtype, what: str) -> None:
    tolerance = 2e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(a.float(), b.float(), rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}")


def compare(images: int, pixels: int, total: int, first: int, last: int, dtype: torch.dtype) -> None:
    """Channels ``first`` to ``last`` of ``total``, which lie with a gap between rows."""
    rows, channels = images * pixels, last - first
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=g).to(kind).to(DEVICE)

    new = normal(rows, channels, kind=dtype) * 2 + 30  # far from zero: where variances are lost
    bias, mask = normal(channels), (normal(images, channels) > -0.5).to(dtype) * 1.25
    for b, m, with_statistics in itertools.product((None, bias), (None, mask), (True, False)):
        kept, found = [], []
        for steps in (dense_torch, dense_triton):
            into = torch.zeros(rows, total, dtype=dtype, device=DEVICE)
            statistics = (torch.zeros(channels, device=DEVICE), torch.zeros(channels, device=DEVICE))
            steps.place(new, b, m, into[:, first:last], statistics if with_statistics else None, 1e-5)
            kept.append(into)
            found.append(statistics)
        close(kept[0], kept[1], dtype, "place")
        close(found[0][0], found[1][0], dtype, "means")
        relative = (found[1][1] / found[0][1]).nan_to_num(1.0)
        close(relative, torch.ones_like(relative), dtype, "spreads")
    several = torch.zeros(3 * rows, total, dtype=dtype, device=DEVICE)
    dense_triton.place(new, None, None, several[:, first:last], None)
    close(several[:, first:last], new.repeat(3, 1), dtype, "place, repeated")

    x = normal(rows, total, kind=dtype)[:, first:last]
    mean, inverse, gamma, beta = normal(channels), normal(channels).abs(), normal(channels), normal(channels)
    close(
        dense_triton.norm_relu(x, mean, inverse, gamma, beta),
        dense_torch.norm_relu(x, mean, inverse, gamma, beta),
        dtype,
        "norm",
    )
    gradient = normal(rows, channels, kind=dtype)
    before, totals = normal(rows, total, kind=dtype), normal(2, total)
    for is_first in (True, False):
        ends = []
        for steps in (dense_torch, dense_triton):
            into, sums = before.clone(), totals.clone()
            by = steps.norm_relu_backward(
                gradient, x, mean, inverse, gamma, beta, into[:, first:last], sums[:, first:last], first=is_first
            )
            ends.append((into, sums / rows, by[0] / rows, by[1] / rows))
        for name, a, b in zip(("into", "totals", "gamma", "beta"), *ends, strict=True):
            close(a, b, dtype, f"backward, {name}")
    part = slice(first, last)
    for direct, through, m in itertools.product((None, gradient), (None, before[:, part]), (None, mask)):
        made = [
            s.collect(direct, through, x, mean, inverse, totals[:, part] * rows, m) for s in (dense_torch, dense_triton)
        ]
        close(made[0][0], made[1][0], dtype, "collect")
        close(made[0][1] / rows, made[1][1] / rows, dtype, "collect, sums")


if __name__ == "__main__":
    # Interpreted, what becomes bfloat16 is cut off instead of rounded.
    for dtype in (torch.float32, torch.bfloat16 if DEVICE == "cuda" else torch.float16):
        compare(2, 63, 48, 16, 32, dtype)
        compare(3, 140, 96, 0, 80, dtype)
        compare(1, 7, 20, 5, 17, dtype)
    print(f"compared on {DEVICE}")
