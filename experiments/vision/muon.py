r"""Muon: momentum whose singular values are all made one, for kernels of few rows and many columns.

$$ m \leftarrow \beta m + (1-\beta)\,g, \qquad W \leftarrow (1 - \eta\lambda)\,W - \eta\,U V^\top
   \quad\text{with}\quad U S V^\top = (1-\beta)\,g + \beta\,m $$

Every direction that the gradient has is learned at the same pace, not the strongest alone. :class:`torch.optim.Muon` takes
matrices alone, and is not in every torch that this library allows; a DenseNet has a hundred small kernels. Here all kernels
of as many rows are one batch, and the iteration of Newton and Schulz runs on their Gram matrices, rows × rows, alone:
$UV^\top = (MM^\top)^{-1/2} M$.

Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.errors import DropoutError

__all__ = ["Muon", "orthogonal"]

# Jordan et al.'s: singular values end between .7 and 1.2, in few steps rather than close to one.
ITERATION = (3.4445, -4.7750, 2.0315)
STEPS = 5


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov's momentum and decoupled weight decay; a kernel's rows are its first axis.

    Args:
        params: kernels that have no more rows than columns, where columns are all further axes together.
        lr: the length of a step along every singular direction; a tensor if steps are recorded as a CUDA graph.
        momentum: β.
        weight_decay: λ.

    Example:
        >>> kernel = torch.nn.Parameter(torch.zeros(4, 2, 3, 3))
        >>> optimizer = Muon([kernel], lr=0.1, weight_decay=0.0)
        >>> kernel.grad = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(0))
        >>> optimizer.step()
        >>> bool((torch.linalg.svdvals(kernel.flatten(1)) - 0.1).abs().max() < 0.05)
        True
    """

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 0.02, momentum: float = 0.95, weight_decay: float = 0.01
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.dim() < 2 or not 0 < len(p) <= p[0].numel():
                raise DropoutError(
                    f"params: want kernels of no more rows than columns, got one of shape {tuple(p.shape)}; leave it to AdamW"
                )
            _matrix(p)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            of_rows: dict[int, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    of_rows.setdefault(len(p), []).append(p)
            for kernels in of_rows.values():
                self._move(kernels, **{name: group[name] for name in ("lr", "momentum", "weight_decay")})
        return loss

    def _move(self, kernels: list[Tensor], lr: float | Tensor, momentum: float, weight_decay: float) -> None:
        gradients = [p.grad for p in kernels if p.grad is not None]
        for p in kernels:
            moment = self.state[p].get("momentum")
            if moment is None:
                self.state[p]["momentum"] = torch.zeros_like(p)
            elif moment.stride() != p.stride():  # kept on another device, say: columns must mean the same
                self.state[p]["momentum"] = torch.empty_like(p).copy_(moment)
        moments = [self.state[p]["momentum"] for p in kernels]
        torch._foreach_lerp_(moments, gradients, 1 - momentum)
        # In the momentum's layout, which is the kernels', whatever that of their gradients.
        ahead = [_matrix(each) for each in torch._foreach_lerp(moments, gradients, 1 - momentum)]
        # Filled up with columns of zeros, which change no product of rows.
        widest = max(each.shape[1] for each in ahead)
        batch = ahead[0].new_zeros(len(ahead), len(ahead[0]), widest)
        places = [room[:, : each.shape[1]] for room, each in zip(batch, ahead, strict=True)]
        torch._foreach_copy_(places, ahead)
        moved = orthogonal(batch).mul_(lr)
        torch._foreach_mul_(kernels, 1 - lr * weight_decay)
        torch._foreach_sub_(
            [_matrix(p) for p in kernels],
            [change[:, : each.shape[1]] for change, each in zip(moved, ahead, strict=True)],
        )


def orthogonal(batch: Float[Tensor, "kernels rows columns"]) -> Float[Tensor, "kernels rows columns"]:
    """Each matrix with its singular values moved to between .7 and 1.2, but for those far below its largest."""
    if batch.dtype in (torch.float16, torch.bfloat16):  # too coarse for products of products
        return orthogonal(batch.float()).to(batch.dtype)
    norm = torch.linalg.vector_norm(batch, dim=(1, 2), keepdim=True).clamp(min=1e-12)
    gram = batch @ batch.mT / norm**2
    one = torch.eye(batch.shape[1], dtype=batch.dtype, device=batch.device)
    a, b, c = ITERATION
    turn = one / norm
    for _ in range(STEPS):  # x ← (a + b·xxᵀ + c·(xxᵀ)²)·x, of which only the factor and xxᵀ are kept
        factor = a * one + b * gram + c * (gram @ gram)
        turn, gram = factor @ turn, factor @ gram @ factor
    return turn @ batch


def _matrix(kernel: Tensor) -> Tensor:
    """Rows and columns where they lie: in ``channels_last`` columns are in another order, which changes nothing."""
    rows, columns = len(kernel), kernel[0].numel()
    if kernel.stride(0) != columns:
        raise DropoutError(
            f"params: want kernels whose rows lie one after another, got shape {tuple(kernel.shape)}, strides {kernel.stride()}"
        )
    return kernel.as_strided((rows, columns), (columns, 1))
