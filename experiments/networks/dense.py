r"""A dense block as one operation, for a GPU: features lie where they are read, and are normalised by statistics made once.

$$ x_{l+1} = [x_l,\; D(W_l * \mathrm{ReLU}(\gamma_l \hat x_l + \beta_l))] $$

Every layer normalises all features before it. Their means and variances are the same for each of them, and so is what
their gradients need: with $g$ the sum over layers of the gradients that reach $\hat x$,

$$ \frac{\partial L}{\partial x} = \frac{\partial L}{\partial x}\Big|_{\text{direct}}
   + \frac{1}{\sqrt{v + \epsilon}}\Big(g - \bar g - \hat x\,\overline{g \hat x}\Big), $$

corrected once a feature instead of once a layer and feature. Nothing is concatenated: new features are written beside the
old ones. What is saved is memory traffic and the number of kernels (LOG.md).

Pleiss et al., Memory-Efficient Implementation of DenseNets, 2017, share memory so, and compute twice; here nothing is.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function

from experiments.networks import dense_torch

__all__ = ["Weights", "dense_block", "is_fast", "predicted_block"]

Masks = Sequence[Tensor | None]


class Weights(NamedTuple):
    """Of one layer."""

    gamma: Tensor
    beta: Tensor
    kernel: Tensor
    bias: Any
    mean: Any
    """The running mean and variance of what the layer reads."""
    variance: Any


def is_fast(x: Tensor, weight: Tensor) -> bool:
    """Whether there are kernels for such maps and weights: on a GPU, computed in single precision."""
    known = x.dtype != torch.float64 and weight.dtype == torch.float32 and x.numel() > 0
    return x.is_cuda and known and _kernels() is not None


def dense_block(
    inputs: Sequence[Tensor], layers: Sequence[Weights], masks: Masks, momentum: float, eps: float, whole: bool
) -> Tensor:
    """All features, or the new ones alone, in training mode: batch statistics, running ones moved.

    Args:
        inputs: maps of one size, to be read side by side.
        layers: their weights.
        masks: (images, channels) for each layer's new features, scaled; or none.
        momentum: of the running statistics.
        eps: added to variances.
        whole: whether the result has the inputs in front of the new features.
    """
    if has_torch_function(tuple(inputs)):  # whoever remembers calls of torch remembers this one as a whole
        return handle_torch_function(dense_block, inputs, inputs, layers, masks, momentum, eps, whole)
    learned = [each for layer in layers for each in layer[:4]]
    with torch.cuda.device_of(inputs[0]):  # where kernels are started
        result: Any = _Trained.apply(len(inputs), layers, masks, momentum, eps, whole, *inputs, *learned)
    return result


def predicted_block(inputs: Sequence[Tensor], layers: Sequence[Weights], eps: float, whole: bool) -> Tensor:
    """The same with running statistics and without masks or gradients; lanes of a prediction are further images."""
    if has_torch_function(tuple(inputs)):
        return handle_torch_function(predicted_block, inputs, inputs, layers, eps, whole)
    learned = [each for layer in layers for each in layer]
    result: Any = _Predicted.apply(len(inputs), eps, whole, *inputs, *learned)
    return result


class _Trained(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        count: int,
        layers: Sequence[Weights],
        masks: Masks,
        momentum: float,
        eps: float,
        whole: bool,
        *tensors: Tensor,
    ) -> Tensor:
        inputs, steps = tensors[:count], _steps(tensors[0])
        block = _Space(inputs[0], inputs, layers)
        features, (mean, inverse) = block.features(), block.statistics()
        for x, to in zip(inputs, block.inputs, strict=True):
            steps.place(_rows(x, block.dtype), None, None, features[:, to], (mean[to], inverse[to]), eps)
        kernels, read = _cast([layer.kernel for layer in layers], block.dtype), []
        for layer, kernel, mask, to in zip(layers, kernels, masks, block.new, strict=True):
            before = slice(0, to.start)
            z = steps.norm_relu(features[:, before], mean[before], inverse[before], layer.gamma, layer.beta)
            new = F.conv2d(block.maps(z), kernel, padding=1)
            steps.place(_rows(new), layer.bias, mask, features[:, to], (mean[to], inverse[to]), eps)
            read.append(z)
        _move(layers, mean, inverse, len(features), momentum, eps)
        ctx.save_for_backward(features, mean, inverse, *read, *kernels, *tensors[count:])
        ctx.block, ctx.masks, ctx.whole = block, masks, whole
        return block.given(features, whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        block, masks, whole = ctx.block, ctx.masks, ctx.whole
        features, mean, inverse, *others = ctx.saved_tensors
        n = len(block.new)
        read, kernels, learned = others[:n], others[n : 2 * n], others[2 * n :]
        steps, direct = _steps(features), _rows(gradient, block.dtype)
        start = block.new[0].start
        offset = 0 if whole else start
        # Everything but what the last layer made is read by some layer.
        through = torch.empty_like(features[:, : block.new[-1].start])
        totals = torch.zeros((2, features.shape[1]), dtype=mean.dtype, device=mean.device)

        def gathered(part: slice, mask: Tensor | None, is_direct: bool, is_read: bool) -> tuple[Tensor, Tensor]:
            came = direct[:, part.start - offset : part.stop - offset] if is_direct else None
            return steps.collect(
                came, through[:, part] if is_read else None, features[:, part], mean[part], inverse[part], totals[:, part],
                mask,
            )  # fmt: skip

        found: list[Tensor] = []
        for i in reversed(range(n)):
            to, last = block.new[i], i == n - 1
            before = slice(0, to.start)
            new, by_bias = gathered(to, masks[i], True, not last)
            by_read, by_kernel, _ = torch.ops.aten.convolution_backward(
                block.maps(new), block.maps(read[i]), kernels[i], None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1,
                (True, True, False),
            )  # fmt: skip
            by_gamma, by_beta = steps.norm_relu_backward(
                _rows(by_read), features[:, before], mean[before], inverse[before], learned[4 * i], learned[4 * i + 1],
                through[:, before], totals[:, before], first=last,
            )  # fmt: skip
            found[:0] = [by_gamma, by_beta, by_kernel, by_bias]
        found[2::4] = _cast(found[2::4], learned[2].dtype)
        by_inputs = [block.maps(gathered(part, None, whole, True)[0]) for part in block.inputs]
        return (*(None,) * 6, *by_inputs, *found)


class _Predicted(torch.autograd.Function):
    @staticmethod
    def forward(count: int, eps: float, whole: bool, *tensors: Tensor) -> Tensor:
        with torch.cuda.device_of(tensors[0]):
            return _predict(tensors[:count], eps, whole, tensors[count:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *given: Any) -> tuple[Tensor, int]:
        count, eps, whole, *tensors = given
        # Lanes in front, where one image after the other lies; what no mask has touched is spread over all of them.
        inputs = [
            x if axis is None else x.movedim(axis, 0).flatten(0, 1)
            for x, axis in zip(tensors[:count], in_dims[3 : 3 + count], strict=True)
        ]
        with torch.cuda.device_of(inputs[0]):
            result = _predict(inputs, eps, whole, tensors[count:])
        return result.unflatten(0, (info.batch_size, -1)), 0


def _predict(inputs: Sequence[Tensor], eps: float, whole: bool, tensors: Sequence[Tensor]) -> Tensor:
    layers = [Weights(*tensors[i : i + 6]) for i in range(0, len(tensors), 6)]
    steps, block = _steps(inputs[0]), _Space(max(inputs, key=len), inputs, layers)
    features, kernels = block.features(), _cast([layer.kernel for layer in layers], block.dtype)
    for x, to in zip(inputs, block.inputs, strict=True):
        steps.place(_rows(x, block.dtype), None, None, features[:, to], None)
    for layer, kernel, to in zip(layers, kernels, block.new, strict=True):
        z = steps.norm_relu(
            features[:, : to.start], layer.mean, (layer.variance + eps).rsqrt(), layer.gamma, layer.beta
        )
        new = F.conv2d(block.maps(z), kernel, padding=1)
        steps.place(_rows(new), layer.bias, None, features[:, to], None)
    return block.given(features, whole)


class _Space:
    """Where the features of a block lie, as rows: pixels × channels."""

    def __init__(self, x: Tensor, inputs: Sequence[Tensor], layers: Sequence[Weights]):
        self.images, _, self.height, self.width = x.shape
        device = x.device.type
        # A function of one's own sees no autocast: it takes the precision that a convolution would.
        self.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        widths = [each.shape[1] for each in inputs] + [layer.kernel.shape[0] for layer in layers]
        ends = [sum(widths[: i + 1]) for i in range(len(widths))]
        places = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
        self.inputs, self.new = places[: len(inputs)], places[len(inputs) :]
        self.channels, self.device = ends[-1], x.device

    def features(self) -> Tensor:
        """Room for all of them."""
        rows = self.images * self.height * self.width
        return torch.empty((rows, self.channels), dtype=self.dtype, device=self.device)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Room for every channel's mean, and one over its standard deviation."""
        wide = torch.promote_types(self.dtype, torch.float32)
        mean, inverse = torch.empty((2, self.channels), dtype=wide, device=self.device)
        return mean, inverse

    def maps(self, rows: Tensor) -> Tensor:
        """Rows as images in the layout ``channels_last``; nothing is moved."""
        return rows.unflatten(0, (self.images, self.height, self.width)).permute(0, 3, 1, 2)

    def given(self, features: Tensor, whole: bool) -> Tensor:
        return self.maps(features if whole else features[:, self.new[0].start :].contiguous())


def _rows(maps: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Images as rows with their channels side by side, whatever layout they came in."""
    rows = maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1]).contiguous()
    return rows if dtype is None else rows.to(dtype)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """All of them in one call."""
    if all(each.dtype == dtype for each in tensors):
        return tensors
    cast = [torch.empty_like(each, dtype=dtype) for each in tensors]
    torch._foreach_copy_(cast, list(tensors))
    return cast


def _move(layers: Sequence[Weights], mean: Tensor, inverse: Tensor, pixels: int, momentum: float, eps: float) -> None:
    """Running statistics of all layers, in two calls; of the variance the unbiased one, as torch has it."""
    variance = (inverse**-2 - eps) * (pixels / max(pixels - 1, 1))
    ends = [len(layer.mean) for layer in layers]
    torch._foreach_lerp_([layer.mean for layer in layers], [mean[:end] for end in ends], momentum)
    torch._foreach_lerp_([layer.variance for layer in layers], [variance[:end] for end in ends], momentum)


def _steps(x: Tensor) -> Any:
    return _kernels() if x.is_cuda else dense_torch


def _kernels() -> ModuleType | None:
    try:
        from experiments.networks import dense_triton
    except ImportError:  # torch for a GPU brings Triton along, but not on every system
        return None
    return dense_triton
