"""``torch.autocast`` in lanes: under ``vmap``, a torch function gets its arguments in the precision of a plain pass.

``vmap`` takes functions apart before autocast sees them. Of ``conv2d`` it makes an operation that autocast does not know. Of
``linear`` it makes a product, which becomes bfloat16, and a sum with the bias, which becomes float32 again. Here the
arguments of the whole function are cast, by torch's own list for the device.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lbdrop._torch import any_autocast_enabled, autocast_disabled, autocast_operations, is_batched, transparent

__all__ = ["lane_autocast"]

# Of the functions that torch registers for autocast, LOWER run in lower precision, WIDEST in the widest type among their
# arguments, and all others in float32. A CPU has another list of the second kind.
LOWER = {
    "_addmm_activation", "_convolution", "_native_multi_head_attention", "_scaled_dot_product_flash_attention",
    "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul",
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "cudnn_convolution", "cudnn_convolution_transpose", "einsum", "gru_cell", "linalg_multi_dot", "linalg_vecdot", "linear",
    "lstm_cell", "matmul", "mkldnn_rnn_layer", "mm", "mv", "prelu", "rnn_relu_cell", "rnn_tanh_cell",
    "scaled_dot_product_attention",
}  # fmt: skip
WIDEST = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cat", "cross", "dot", "grid_sampler", "index_copy", "index_put", "scatter_add",
    "stack", "tensordot", "vdot",
}  # fmt: skip
WIDEST_ON_CPU = {"cat", "index_copy", "stack"}
# Other names of registered functions, and functions that call them, which a device's list may leave out.
CALLS = {
    "__matmul__": "matmul", "chain_matmul": "mm", "cross_entropy_loss": "log_softmax", "einsum": "bmm", "inner": "mm",
    "linalg_matmul": "matmul", "linalg_multi_dot": "mm", "linalg_norm": "linalg_vector_norm", "nll_loss_nd": "nll_loss",
    "pairwise_distance": "norm", "special_expm1": "expm1", "special_log1p": "log1p", "special_log_softmax": "log_softmax",
    "special_softmax": "softmax", "square": "pow", "tensordot": "mm",
}  # fmt: skip
# In a plain pass these take an input in lower precision beside parameters in float32; under vmap they do not.
NORMS = {"batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"}


def lane_autocast() -> AbstractContextManager[object]:
    """While open, ``torch.autocast`` reaches into lanes. Costs nothing where it is off for every device."""
    return _LaneAutocast() if any_autocast_enabled() else nullcontext()


class _LaneAutocast(TorchFunctionMode):
    """Casts what has lanes as ``torch.autocast`` casts what has none, unless the model has switched it off for a while."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = next((t.device.type for t in _tensors(args, kwargs) if is_batched(t)), None)
        if device is None or not torch.is_autocast_enabled(device):
            return func(*args, **kwargs)
        if (inside := transparent(func)) is not None:
            with self:
                return inside(*args, **kwargs)
        name = _registered_name(getattr(func, "__name__", ""), device)
        if name is None:
            return func(*args, **kwargs)
        dtypes = [t.dtype for t in _tensors(args, kwargs) if _is_cast(t, device)]
        widest = name in (WIDEST_ON_CPU if device == "cpu" else WIDEST)
        lower = name in LOWER or (widest and torch.float32 not in dtypes)
        cast = partial(_cast, device=device, dtype=torch.get_autocast_dtype(device) if lower else torch.float32)
        with autocast_disabled():  # or it would cast again what vmap makes of a function in float32
            output = func(*map(cast, args), **{key: cast(value) for key, value in kwargs.items()})
        return output if name in _registered(device) else output.to(next(_tensors(args, kwargs)).dtype)


@cache
def _registered_name(name: str, device: str) -> str | None:
    """The name under which the device's list, or ours, has the function."""
    registered = _registered(device)
    if name in registered:
        return name
    called = CALLS.get(name)
    return called if called in registered else name if name in NORMS else None


@cache
def _registered(device: str) -> set[str]:
    return autocast_operations(device)


def _tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    for value in (*args, *kwargs.values()):
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, Tensor):
                yield each


def _cast(value: Any, device: str, dtype: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return [_cast(each, device, dtype) for each in value]
    return value.to(dtype) if _is_cast(value, device) else value


def _is_cast(value: Any, device: str) -> bool:
    return (
        isinstance(value, Tensor)
        and value.device.type == device
        and value.is_floating_point()
        and value.dtype != torch.float64
    )
