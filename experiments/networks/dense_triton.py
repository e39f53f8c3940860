"""The steps of :mod:`experiments.networks.dense_torch` as GPU kernels: each map is read once and written once.

Sums over pixels are made in parts, one for each program, and the parts are then added in one order: the same every time.
"""

# Kernels are a language of their own, which looks like Python.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["collect", "norm_relu", "norm_relu_backward", "place"]

TILE, CHANNELS = 2048, 64  # values of a tile, and channels at most
PARTS = 256  # programs that share the rows of a channel's sum


def place(
    new: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    into: Tensor,
    statistics: tuple[Tensor, Tensor] | None,
    eps: float = 0.0,
) -> None:
    rows, channels = into.shape
    high, wide = _tile(channels)
    parts = min(triton.cdiv(rows, high), PARTS if statistics is not None else 65_535)
    sums = torch.empty((parts, 2, channels) if statistics is not None else (1,), device=into.device)
    _place[(parts, triton.cdiv(channels, wide))](
        new, bias if bias is not None else new, mask if mask is not None else new, into, sums,
        rows, len(new), channels, rows // len(mask) if mask is not None else 1, new.stride(0), into.stride(0),
        HAS_BIAS=bias is not None, HAS_MASK=mask is not None, HAS_SUMS=statistics is not None, ROWS=high, CHANNELS=wide,
    )  # fmt: skip
    if statistics is not None:
        _statistics[(triton.cdiv(channels, 16),)](
            sums, into, *statistics, parts, channels, rows, eps, PARTS=triton.next_power_of_2(parts), CHANNELS=16
        )


def norm_relu(x: Tensor, mean: Tensor, inverse: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    rows, channels = x.shape
    z = torch.empty((rows, channels), dtype=x.dtype, device=x.device)
    high, wide = _tile(channels)
    _norm_relu[(triton.cdiv(rows, high), triton.cdiv(channels, wide))](
        x, z, mean, inverse, gamma, beta, rows, channels, x.stride(0), ROWS=high, CHANNELS=wide
    )
    return z


def norm_relu_backward(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    gamma: Tensor,
    beta: Tensor,
    into: Tensor,
    totals: Tensor,
    *,
    first: bool,
) -> tuple[Tensor, Tensor]:
    rows, channels = x.shape
    high, wide = _tile(channels)
    parts = min(triton.cdiv(rows, high), PARTS)
    sums = torch.empty((parts, 2, channels), device=x.device)
    _norm_relu_backward[(parts, triton.cdiv(channels, wide))](
        gradient, x, mean, inverse, gamma, beta, into, sums, rows, channels, gradient.stride(0), x.stride(0), into.stride(0),
        FIRST=first, ROWS=high, CHANNELS=wide,
    )  # fmt: skip
    by_gamma, by_beta = torch.empty_like(gamma), torch.empty_like(beta)
    _totals[(triton.cdiv(channels, 16),)](
        sums, gamma, by_gamma, by_beta, totals, parts, channels, totals.stride(0),
        PARTS=triton.next_power_of_2(parts), CHANNELS=16,
    )  # fmt: skip
    return by_gamma, by_beta


def collect(
    direct: Tensor | None,
    through: Tensor | None,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    totals: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    rows, channels = x.shape
    found = torch.empty((rows, channels), dtype=x.dtype, device=x.device)
    high, wide = _tile(channels)
    parts = min(triton.cdiv(rows, high), PARTS)
    sums = torch.empty((parts, channels), device=x.device)
    _collect[(parts, triton.cdiv(channels, wide))](
        direct if direct is not None else x, through if through is not None else x, x, mean, inverse, totals,
        mask if mask is not None else x, found, sums, rows, channels, rows // len(mask) if mask is not None else 1,
        direct.stride(0) if direct is not None else 0, through.stride(0) if through is not None else 0, x.stride(0),
        totals.stride(0), DIRECT=direct is not None, THROUGH=through is not None, HAS_MASK=mask is not None,
        ROWS=high, CHANNELS=wide,
    )  # fmt: skip
    return found, sums.sum(0)


def _tile(channels: int) -> tuple[int, int]:
    wide = min(CHANNELS, triton.next_power_of_2(channels))
    return TILE // wide, wide


# ----------------------------------------------------------------------------------------------------------- kernels


@triton.jit
def _place(
    new, bias, mask, into, sums, rows, given, channels, pixels, new_stride, into_stride,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_SUMS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    # Sums of differences from one pixel, of the first image: far from zero, squares would lose what varies.
    pivot = tl.load(new + c, mask=known, other=0).to(tl.float32)
    if HAS_BIAS:
        added = tl.load(bias + c, mask=known, other=0).to(tl.float32)
        pivot += added
    if HAS_MASK:
        pivot *= tl.load(mask + c, mask=known, other=0).to(tl.float32)
    pivot = pivot.to(into.dtype.element_ty).to(tl.float32)
    plain = tl.zeros((ROWS, CHANNELS), tl.float32)
    squares = tl.zeros((ROWS, CHANNELS), tl.float32)
    for block in range(part, tl.cdiv(rows, ROWS), parts):
        p = block * ROWS + tl.arange(0, ROWS)
        inside = (p < rows)[:, None] & known[None, :]
        at = (p % given).to(tl.int64)[:, None] * new_stride + c[None, :]
        value = tl.load(new + at, mask=inside, other=0).to(tl.float32)
        if HAS_BIAS:
            value += added[None, :]
        if HAS_MASK:
            value *= tl.load(mask + (p // pixels)[:, None] * channels + c[None, :], mask=inside, other=0).to(tl.float32)
        kept = value.to(into.dtype.element_ty)
        tl.store(into + p.to(tl.int64)[:, None] * into_stride + c[None, :], kept, mask=inside)
        if HAS_SUMS:
            off = tl.where(inside, kept.to(tl.float32) - pivot[None, :], 0.0)
            plain += off
            squares += off * off
    if HAS_SUMS:
        tl.store(sums + part * 2 * channels + c, tl.sum(plain, 0), mask=known)
        tl.store(sums + (part * 2 + 1) * channels + c, tl.sum(squares, 0), mask=known)


@triton.jit
def _statistics(
    sums, into, mean, inverse, parts, channels, rows, eps, PARTS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    part = tl.arange(0, PARTS)
    inside = (part < parts)[:, None] & (c < channels)[None, :]
    at = part[:, None] * 2 * channels + c[None, :]
    plain = tl.sum(tl.load(sums + at, mask=inside, other=0), 0) / rows
    squares = tl.sum(tl.load(sums + at + channels, mask=inside, other=0), 0) / rows
    pivot = tl.load(into + c, mask=c < channels, other=0).to(tl.float32)  # the same pixel, as it was kept
    variance = tl.maximum(squares - plain * plain, 0.0)
    tl.store(mean + c, pivot + plain, mask=c < channels)
    tl.store(inverse + c, 1 / tl.sqrt(variance + eps), mask=c < channels)


@triton.jit
def _norm_relu(
    x, z, mean, inverse, gamma, beta, rows, channels, x_stride, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    p = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    inside = (p < rows)[:, None] & known[None, :]
    m, r = tl.load(mean + c, mask=known, other=0), tl.load(inverse + c, mask=known, other=0)
    g, b = tl.load(gamma + c, mask=known, other=0), tl.load(beta + c, mask=known, other=0)
    value = tl.load(x + p[:, None] * x_stride + c[None, :], mask=inside, other=0).to(tl.float32)
    y = tl.maximum((value - m[None, :]) * r[None, :] * g[None, :] + b[None, :], 0.0)
    tl.store(z + p[:, None] * channels + c[None, :], y.to(z.dtype.element_ty), mask=inside)


@triton.jit
def _norm_relu_backward(
    gradient, x, mean, inverse, gamma, beta, into, sums, rows, channels, gradient_stride, x_stride, into_stride,
    FIRST: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    m, r = tl.load(mean + c, mask=known, other=0), tl.load(inverse + c, mask=known, other=0)
    g, b = tl.load(gamma + c, mask=known, other=0), tl.load(beta + c, mask=known, other=0)
    by_beta = tl.zeros((ROWS, CHANNELS), tl.float32)
    by_gamma = tl.zeros((ROWS, CHANNELS), tl.float32)
    for block in range(part, tl.cdiv(rows, ROWS), parts):
        p = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = (p < rows)[:, None] & known[None, :]
        value = tl.load(x + p[:, None] * x_stride + c[None, :], mask=inside, other=0).to(tl.float32)
        came = tl.load(gradient + p[:, None] * gradient_stride + c[None, :], mask=inside, other=0).to(tl.float32)
        normal = (value - m[None, :]) * r[None, :]
        through = tl.where(normal * g[None, :] + b[None, :] > 0, came, 0.0)
        by_beta += through
        by_gamma += through * normal
        at = into + p[:, None] * into_stride + c[None, :]
        back = through * g[None, :]
        if not FIRST:
            back += tl.load(at, mask=inside, other=0).to(tl.float32)
        tl.store(at, back.to(into.dtype.element_ty), mask=inside)
    tl.store(sums + part * 2 * channels + c, tl.sum(by_beta, 0), mask=known)
    tl.store(sums + (part * 2 + 1) * channels + c, tl.sum(by_gamma, 0), mask=known)


@triton.jit
def _totals(
    sums, gamma, by_gamma, by_beta, totals, parts, channels, totals_stride, PARTS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    part = tl.arange(0, PARTS)
    known = c < channels
    inside = (part < parts)[:, None] & known[None, :]
    at = part[:, None] * 2 * channels + c[None, :]
    plain = tl.sum(tl.load(sums + at, mask=inside, other=0), 0)
    times = tl.sum(tl.load(sums + at + channels, mask=inside, other=0), 0)
    tl.store(by_beta + c, plain, mask=known)
    tl.store(by_gamma + c, times, mask=known)
    g = tl.load(gamma + c, mask=known, other=0)
    tl.store(totals + c, tl.load(totals + c, mask=known, other=0) + g * plain, mask=known)
    above = totals + totals_stride + c
    tl.store(above, tl.load(above, mask=known, other=0) + g * times, mask=known)


@triton.jit
def _collect(
    direct, through, x, mean, inverse, totals, mask, found, sums, rows, channels, pixels, direct_stride, through_stride,
    x_stride, totals_stride, DIRECT: tl.constexpr, THROUGH: tl.constexpr, HAS_MASK: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    if THROUGH:
        m, r = tl.load(mean + c, mask=known, other=0), tl.load(inverse + c, mask=known, other=0)
        plain = tl.load(totals + c, mask=known, other=0) / rows
        times = tl.load(totals + totals_stride + c, mask=known, other=0) / rows
    summed = tl.zeros((ROWS, CHANNELS), tl.float32)
    for block in range(part, tl.cdiv(rows, ROWS), parts):
        p = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = (p < rows)[:, None] & known[None, :]
        value = tl.zeros((ROWS, CHANNELS), tl.float32)
        if DIRECT:
            value += tl.load(direct + p[:, None] * direct_stride + c[None, :], mask=inside, other=0).to(tl.float32)
        if THROUGH:
            at = tl.load(x + p[:, None] * x_stride + c[None, :], mask=inside, other=0).to(tl.float32)
            normal = (at - m[None, :]) * r[None, :]
            came = tl.load(through + p[:, None] * through_stride + c[None, :], mask=inside, other=0).to(tl.float32)
            value += r[None, :] * (came - plain[None, :] - normal * times[None, :])
        if HAS_MASK:
            value *= tl.load(mask + (p // pixels)[:, None] * channels + c[None, :], mask=inside, other=0).to(tl.float32)
        tl.store(found + p[:, None] * channels + c[None, :], value.to(found.dtype.element_ty), mask=inside)
        summed += tl.where(inside, value, 0.0)
    tl.store(sums + part * channels + c, tl.sum(summed, 0), mask=known)
