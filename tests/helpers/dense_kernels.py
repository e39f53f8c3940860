"""Compares the Triton kernels of a dense layer with its steps in torch; run with TRITON_INTERPRET=1, or on a GPU."""

import itertools

import torch
from torch import Tensor

from experiments.networks import dense, dense_torch, dense_triton

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
        if with_statistics:
            close(found[0][0], found[1][0], dtype, "means")
            relative = found[1][1] / found[0][1]
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


def compare_layouts() -> None:
    """A block by kernels and by torch, whatever layout images and gradients come in."""
    g = torch.Generator().manual_seed(0)
    width, growth = 6, 4
    shapes = [(width,), (width,), (growth, width, 3, 3), (growth,)]
    layer = dense.Weights(*(torch.randn(s, generator=g).to(DEVICE).requires_grad_() for s in shapes),
                          torch.zeros(width, device=DEVICE), torch.ones(width, device=DEVICE))  # fmt: skip
    for images, form, expanded in itertools.product(
        (1, 2), (torch.contiguous_format, torch.channels_last), (True, False)
    ):
        x = torch.randn(images, width, 5, 7, generator=g).to(DEVICE).contiguous(memory_format=form).requires_grad_()
        by = torch.randn(images, width + growth, 5, 7, generator=g).to(DEVICE)
        made = []
        for steps in (dense_torch, dense_triton):
            dense._steps = lambda _, steps=steps: steps
            layer.mean.zero_(), layer.variance.fill_(1.0)  # training moves them
            out = dense.dense_block([x], [layer], [None], 0.1, 1e-5, True)
            loss = out.sum() if expanded else (out * by).sum()
            made.append([out, *torch.autograd.grad(loss, [x, *layer[:4]])])
            with torch.no_grad():
                made[-1] += [layer.mean.clone(), dense.predicted_block([x], [layer], 1e-5, True)]
        for a, b in zip(*made, strict=True):
            close(a, b, torch.bfloat16 if DEVICE == "cuda" else torch.float32, f"{images} images, {form}")


if __name__ == "__main__":
    # Interpreted, what becomes bfloat16 is cut off instead of rounded.
    for dtype in (torch.float32, torch.bfloat16 if DEVICE == "cuda" else torch.float16):
        compare(2, 63, 48, 16, 32, dtype)
        compare(3, 140, 96, 0, 80, dtype)
        compare(1, 7, 20, 5, 17, dtype)
    dense_triton.PARTS, dense_triton.TILE = 2, 256  # so that each program has many turns
    compare(2, 45, 96, 0, 80, torch.float32)
    compare_layouts()
    print(f"compared on {DEVICE}")
