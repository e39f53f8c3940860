"""Where a NaN or an infinity comes from: a parameter, the model's input, or the output of one layer."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from lbdrop._torch import tree_flatten
from lbdrop.dropout import NoiseLayer
from lbdrop.guards.modes import eval_mode
from lbdrop.masks import deterministic

__all__ = ["first_bad_rows", "nonfinite_parameters", "origin"]

MAX_ROWS = 8
"""At most so many examples are named in an error."""


def nonfinite_parameters(model: nn.Module, gradients: bool = False) -> list[str]:
    """The names of parameters and buffers that are not finite, or of those whose gradients are not."""
    tensors = [*model.named_parameters(), *([] if gradients else model.named_buffers())]
    # The logit of a dropout whose rate is not learned: a rate of 0 or 1 has an infinite one.
    fixed = {f"{name}.logit" for name, m in model.named_modules() if isinstance(m, NoiseLayer) and not m.learns}
    return [
        name for name, tensor in tensors if name not in fixed and not _is_finite(tensor.grad if gradients else tensor)
    ]


def origin(model: nn.Module, call: Callable[[], Any]) -> str:
    """The first place in a pass that is not finite, as half a sentence for an error.

    The pass runs once more, without masks and gradients, in eval mode: nothing changes by it.
    """
    if bad := nonfinite_parameters(model):
        return f"not finite before the step: {', '.join(bad[:4])}; look at the steps before this one"
    places: list[str] = []

    def check_input(_: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        for tensor in tree_flatten((inputs, named))[0]:
            if _is_floating(tensor) and (rows := first_bad_rows(~torch.isfinite(tensor))):
                places.append(f"the model's input is not finite in rows {rows}: look at the data")

    def check_output(name: str) -> Callable[..., None]:
        def check(module: nn.Module, inputs: Any, output: Any) -> None:
            if not all(_is_finite(tensor) for tensor in tree_flatten(output)[0] if isinstance(tensor, Tensor)):
                places.append(f"first in the output of layer {name!r} ({type(module).__name__}): look there")

        return check

    leaves = [(name, m) for name, m in model.named_modules() if not any(m.children())]
    hooks = [m.register_forward_hook(check_output(name)) for name, m in leaves]
    hooks.append(model.register_forward_pre_hook(check_input, with_kwargs=True))
    try:
        with eval_mode(model), torch.no_grad(), deterministic(model):
            call()
    except Exception:  # an error of the second pass would hide the first one's
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return (
        places[0] if places else "the model's outputs are finite without dropout: look at the loss and at single masks"
    )


def first_bad_rows(bad: Bool[Tensor, "..."]) -> list[int]:
    """The first few indices along the first axis at which anything is bad."""
    rows = bad.flatten(1).any(1) if bad.dim() > 1 else bad
    return rows.reshape(-1).nonzero().flatten().tolist()[:MAX_ROWS]


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_finite(tensor: Tensor | None) -> bool:
    return tensor is None or not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
