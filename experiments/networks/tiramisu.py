r"""FC-DenseNet for segmentation: dense blocks down and up, with a middle block between and a choice of dropout in each.

$$ x_{l+1} = [x_l,\; D(W * \mathrm{ReLU}(\mathrm{BN}(x_l)))] \qquad\text{(a layer adds its features to all before it)} $$

A transition down is BN, ReLU, a 1 × 1 convolution, dropout and pooling; one up a transposed convolution of the new features
alone, cropped to the skip connection that it joins.

Jégou, Drozdzal, Vazquez, Romero and Bengio, The One Hundred Layers Tiramisu, 2017.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from experiments.networks import dense
from experiments.networks.images import check_images
from lbdrop.errors import DropoutError

__all__ = ["CommonDropout2d", "FCDenseNet", "batch_statistics", "dense_kernels"]


class Plan(NamedTuple):
    """What a depth stands for."""

    blocks: Sequence[int]
    """Layers in each block of the way down; the way up mirrors them."""
    middle: int
    growth: int
    """Channels that a layer adds."""


PLANS = {
    56: Plan((4,) * 5, 4, 12),
    67: Plan((5,) * 5, 5, 16),
    103: Plan((4, 5, 7, 10, 12), 15, 16),
}
STEM = 48
SMALLEST = 32  # five poolings halve it to one pixel

Dropout = Callable[[str, int], nn.Module]
"""From the name of a block ("down.0" … "down.4", "middle", "up.0" … "up.4") and a number of channels to a layer."""


class CommonDropout2d(nn.Module):
    """``nn.Dropout2d`` whose draw does not look at its input, so that all masks of a step see the same one.

    Where learned rates compare the losses of several masks, noise of a fixed dropout behind them would drown the difference
    in the losses; drawn once for all of them it cancels. Off in eval mode.
    """

    def __init__(self, rate: float = 0.2):
        super().__init__()
        if not 0 <= rate < 1:
            raise DropoutError(f"rate: want a number from 0 to below 1, got {rate}")
        self.rate = rate

    def forward(self, x: Float[Tensor, "batch channels *space"]) -> Float[Tensor, "batch channels *space"]:
        mask = self.mask(x, x.shape[1])
        return x if mask is None else x * mask.view(*mask.shape, *(1 for _ in x.shape[2:]))

    def mask(self, x: Tensor, channels: int) -> Float[Tensor, "batch channels"] | None:
        """For ``channels`` of images like these; none where nothing is dropped."""
        if not self.training or not self.rate:
            return None
        keep = 1 - self.rate
        # Not by bernoulli_ or torch.rand: an objective looks for dropout whose rate is to be learned, and this is to stay.
        return (torch.empty((len(x), channels), device=x.device).uniform_() < keep).to(x.dtype).div_(keep)

    def extra_repr(self) -> str:
        return f"p={self.rate}"


def _tiramisu_dropout(block: str, channels: int) -> nn.Module:
    return CommonDropout2d(0.2)


class FCDenseNet(nn.Module):
    """FC-DenseNet56, 67 or 103.

    Args:
        depth: 56, 67 or 103.
        classes: how many outputs for each pixel.
        dropout: called with the name of a block and the number of channels wherever the network drops: behind every layer
            of a block, and before the pooling behind a block of the way down. By default a rate of .2 everywhere.
        plan: other sizes than those of the three depths, for small networks.
        generator: draws the starting weights by He's rule, uniform; biases start at 0.

    Example:
        >>> from lbdrop import LearnableDropout
        >>> def dropout(block, channels):
        ...     return LearnableDropout(rate=0.2, channels=True) if block == "middle" else CommonDropout2d(0.2)
        >>> model = FCDenseNet(56, classes=11, dropout=dropout)
        >>> model(torch.rand(2, 3, 40, 52)).shape
        torch.Size([2, 11, 40, 52])
    """

    def __init__(
        self,
        depth: int = 103,
        *,
        classes: int = 11,
        dropout: Dropout = _tiramisu_dropout,
        plan: Plan | None = None,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        if depth not in PLANS:
            raise DropoutError(f"depth: want one of {', '.join(map(str, PLANS))}, got {depth}")
        if classes < 1:
            raise DropoutError(f"classes: want at least 1, got {classes}; void is not one of them")
        if isinstance(dropout, nn.Module):
            raise DropoutError(
                f"dropout: want a function of a block's name and the number of channels, got the layer {dropout}; pass"
                " lambda block, channels: nn.Dropout2d(0.2)"
            )
        blocks, middle, growth = plan or PLANS[depth]
        self.widths: list[int] = []
        """Channels of everything concatenated: at the end of the middle block, then of each block of the way up."""
        self.first = nn.Conv2d(3, STEM, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        width, skips = STEM, []
        for i, layers in enumerate(blocks):
            self.down.append(_Down(width, layers, growth, lambda c, name=f"down.{i}": dropout(name, c)))
            width += layers * growth
            skips.append(width)
        self.middle = _Block(width, middle, growth, lambda c: dropout("middle", c), whole=False)
        self.widths.append(width + middle * growth)
        new = middle * growth
        for i, layers in enumerate(reversed(blocks)):
            # Only the new features go on upwards, or channels would pile up; the head reads everything.
            last = i == len(blocks) - 1
            block = _Up(new, skips.pop(), layers, growth, lambda c, name=f"up.{i}": dropout(name, c), whole=last)
            self.up.append(block)
            self.widths.append(block.width)
            new = layers * growth
        self.head = nn.Conv2d(self.widths[-1], classes, 1)
        self._initialise(generator)

    def forward(self, images: Tensor) -> Float[Tensor, "batch classes height width"]:
        check_images(images, SMALLEST)
        x, skips = self.first(images), []
        for block in self.down:
            x, skip = block(x)
            skips.append(skip)
        x = self.middle(x)
        for block in self.up:
            x = block(x, skips.pop())
        return self.head(x)

    def _initialise(self, generator: torch.Generator | None) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.kaiming_uniform_(module.weight, nonlinearity="relu", generator=generator)
                assert module.bias is not None
                nn.init.zeros_(module.bias)


class _Norm(nn.BatchNorm2d):
    """Batch normalisation that, in eval mode, is one multiplication and addition.

    The masks of a prediction run as lanes of one call. There ``F.batch_norm`` would move lanes beside channels, a copy of every
    map on either side of every convolution.
    """

    def forward(self, input: Tensor) -> Tensor:
        mean, variance = self.running_mean, self.running_var
        if self.training:  # without counting batches: a kernel for each of a hundred layers, for what nobody reads
            return F.batch_norm(input, mean, variance, self.weight, self.bias, True, self.momentum or 0.0, self.eps)
        if mean is None or variance is None:  # batch statistics, see batch_statistics
            variance, mean = torch.var_mean(input.float(), (0, 2, 3), correction=0)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        shift = self.bias - mean * scale
        spread = (-1, 1, 1)
        return torch.addcmul(shift.view(spread).to(input.dtype), input, scale.view(spread).to(input.dtype))


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """In eval mode too, normalise each batch by its own statistics, as FC-DenseNet was first tested.

    Running statistics were gathered under dropout, which spreads activations; with dropout off they do not fit.
    """
    norms = [module for module in model.modules() if isinstance(module, _Norm)]
    kept = [(norm.running_mean, norm.running_var) for norm in norms]
    try:
        for norm in norms:
            norm.running_mean = norm.running_var = None
        yield
    finally:
        for norm, (mean, variance) in zip(norms, kept, strict=True):
            norm.running_mean, norm.running_var = mean, variance


class _Join(torch.autograd.Function):
    """Concatenation of channels for prediction: lanes are laid out as further images of the batch.

    ``torch.cat`` would lay them out as a fifth axis, and lose ``channels_last`` to every convolution behind it.
    """

    @staticmethod
    def forward(*parts: Tensor) -> Tensor:
        return torch.cat(parts, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *parts: Tensor) -> tuple[Tensor, int]:
        lanes = [part if axis is None else part.movedim(axis, 0) for part, axis in zip(parts, in_dims, strict=True)]
        batch, _, height, width = lanes[0].shape[-4:]
        widths = [lane.shape[-3] for lane in lanes]
        single = parts[0] if in_dims[0] is None else lanes[0][0]
        form = torch.channels_last if single.stride(1) == 1 else torch.contiguous_format
        shape = (info.batch_size * batch, sum(widths), height, width)
        joined = torch.empty(shape, dtype=single.dtype, device=single.device, memory_format=form)
        result = joined.unflatten(0, (info.batch_size, batch))
        for lane, place in zip(lanes, result.split(widths, 2), strict=True):
            place.copy_(lane)  # what no mask has touched is spread over all lanes here
        return result, 0


def _joined(*parts: Tensor) -> Tensor:
    return torch.cat(parts, 1) if torch.is_grad_enabled() else _Join.apply(*parts)  # pyright: ignore[reportReturnType]


class _Layer(nn.Module):
    def __init__(self, width: int, growth: int, dropout: Callable[[int], nn.Module]):
        super().__init__()
        self.norm, self.conv = _Norm(width), nn.Conv2d(width, growth, 3, padding=1)
        self.dropout = dropout(growth)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.conv(F.relu_(self.norm(x))))

    def weights(self) -> dense.Weights:
        norm, conv = self.norm, self.conv
        return dense.Weights(norm.weight, norm.bias, conv.weight, conv.bias, norm.running_mean, norm.running_var)


def dense_kernels(model: nn.Module) -> list[Tensor]:
    """Of all layers that add features: few rows, and a column for each feature they read and each neighbour."""
    return [module.conv.weight for module in model.modules() if isinstance(module, _Layer)]


class _Block(nn.Module):
    """Dense layers over maps side by side; gives everything concatenated, or the new features alone."""

    def __init__(self, width: int, layers: int, growth: int, dropout: Callable[[int], nn.Module], whole: bool):
        super().__init__()
        self.layers = nn.ModuleList(_Layer(width + i * growth, growth, dropout) for i in range(layers))
        self.whole = whole

    def forward(self, *inputs: Tensor) -> Tensor:
        layers: list[Any] = list(self.layers)
        norm, x = layers[0].norm, inputs[0]
        if dense.is_fast(x, norm.weight) and _is_plain(layers):
            weights = [layer.weights() for layer in layers]
            if norm.training and x[:, 0].numel() > 1 and not _is_transformed():
                masks = [layer.dropout.mask(x, layer.conv.out_channels) for layer in layers]
                return dense.dense_block(inputs, weights, masks, norm.momentum or 0.0, norm.eps, self.whole)
            drops = any(layer.dropout.training and layer.dropout.rate for layer in layers)
            if not (norm.training or drops or torch.is_grad_enabled()):
                return dense.predicted_block(inputs, weights, norm.eps, self.whole)
        x = x if len(inputs) == 1 else _joined(*inputs)
        new = [layers[0](x)]
        for layer in layers[1:]:
            x = _joined(x, new[-1])
            new.append(layer(x))
        return _joined(x, new[-1]) if self.whole else _joined(*new)


def _is_transformed() -> bool:
    """Whether torch.func is at work, which has its own derivatives."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]


def _is_plain(layers: Sequence[Any]) -> bool:
    """Whether layers are what one operation takes them for: alike, with parts of this file that nobody listens to."""
    norms = [layer.norm for layer in layers]
    parts = [part for layer in layers for part in layer.modules()]
    return (
        all(type(norm) is _Norm and norm.running_mean is not None for norm in norms)
        and len({(norm.training, norm.momentum, norm.eps) for norm in norms}) == 1
        and all(isinstance(layer.dropout, CommonDropout2d) for layer in layers)
        and not any(part._forward_hooks or part._forward_pre_hooks for part in parts)
        and not any(part._backward_hooks or part._backward_pre_hooks for part in parts)
    )


class _Down(nn.Module):
    def __init__(self, width: int, layers: int, growth: int, dropout: Callable[[int], nn.Module]):
        super().__init__()
        self.block = _Block(width, layers, growth, dropout, whole=True)
        width += layers * growth
        self.norm, self.conv, self.dropout = _Norm(width), nn.Conv2d(width, width, 1), dropout(width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        skip = self.block(x)
        return F.max_pool2d(self.dropout(self.conv(F.relu_(self.norm(skip)))), 2), skip


class _Up(nn.Module):
    def __init__(self, new: int, skip: int, layers: int, growth: int, dropout: Callable[[int], nn.Module], whole: bool):
        super().__init__()
        self.conv = nn.ConvTranspose2d(new, new, 3, stride=2)
        self.block = _Block(new + skip, layers, growth, dropout, whole)
        self.width = new + skip + layers * growth

    def forward(self, new: Tensor, skip: Tensor) -> Tensor:
        # An odd side was rounded down by the pooling, so what comes back is one pixel larger than the skip, or equal.
        height, width = skip.shape[2:]
        x = self.conv(new)
        top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
        return self.block(x[:, :, top : top + height, left : left + width], skip)
