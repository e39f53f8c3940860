r"""Rates that follow held-out data one optimiser step ahead: a rival to balanced noise, short-sighted by construction.

A step of Adam on the masked loss of example $i$ moves the held-out loss by

$$ f_i(z) = -t \cdot \nabla_w \ell_i(w, z), \qquad t = P\,(g - c\,m), \qquad
   c = \frac{\langle g, m\rangle_P}{\langle m, m\rangle_P} $$

$g$ is the held-out gradient, $P$ Adam's $1/(\sqrt{\hat v} + \varepsilon)$, $m$ its momentum. Without the projection on what is
orthogonal to $m$ rates chase the size of gradients. $f$ is one forward-mode derivative for each example, and DisARM makes its
expectation over masks a gradient for the rates.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jvp

from lbdrop import Bound, Objective
from lbdrop.dropout import learned_layers
from lbdrop.errors import DropoutError
from lbdrop.masks import deterministic

__all__ = ["OneStep"]

Losses = Callable[..., Tensor]


class OneStep:
    """Called as an :class:`lbdrop.Objective` is; give it the optimiser once there is one, with ``follow(optimizer)``.

    Args:
        model: a model with learned dropouts.
        held_out: batches of held-out data, gone through again and again.
        every: how many training steps to one look at held-out data.
        generator: draws the masks that rates are learned from.
    """

    def __init__(
        self,
        model: nn.Module,
        held_out: Iterable[tuple[Tensor, ...]],
        every: int = 2,
        generator: torch.Generator | None = None,
    ):
        self.model, self.held_out, self.every = model, held_out, every
        rates = {id(layer.logit): layer.logit for layer in learned_layers(model).values()}
        self.logits = [logit for logit in rates.values() if logit.requires_grad]
        self.weights = {name: p for name, p in model.named_parameters() if id(p) not in rates}
        # The sampling and DisARM are the library's; its rule plays no part, since the losses are of our making.
        self.sampling = Objective(model, Bound(model, 1, weight=0.0), estimator="disarm", generator=generator)
        self.optimizer: torch.optim.Optimizer | None = None
        self.steps = 0
        self._batches = self._again_and_again()

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Look ahead by the steps of this optimiser, an Adam."""
        if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
            raise DropoutError(f"optimiser: want Adam, whose steps are looked ahead by, got {type(optimizer).__name__}")
        self.optimizer = optimizer

    def __call__(self, losses: Losses, *batch: Tensor) -> Float[Tensor, ""]:
        """The training loss; its ``backward()`` gives weights the training gradient and rates the held-out one."""
        expected = losses(self.model, *batch).mean()  # a plain call: no gradient of it reaches the rates
        self.steps += 1
        if self.steps % self.every or self.optimizer is None or not self.optimizer.state:
            return expected
        for logit, slope in zip(self.logits, self.slopes(losses, batch), strict=True):
            expected = expected + ((logit - logit.detach()) * slope).sum()  # of value 0
        return expected

    def slopes(self, losses: Losses, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """How the held-out loss after one step would change with each logit."""
        tangents = self.tangents(losses, next(self._batches))
        ahead = self.sampling.evaluation(lambda m: -_derivative(m, losses, batch, self.weights, tangents)).losses()
        slopes = torch.autograd.grad(ahead.mean(), self.logits, allow_unused=True)
        return tuple(torch.zeros_like(a) if s is None else s for a, s in zip(self.logits, slopes, strict=True))

    def tangents(self, losses: Losses, held_out: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """t = P·(g − c·m), by weight."""
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with deterministic(self.model):
                loss = losses(self.model, *held_out).mean()
        finally:
            for module in training:
                module.training = True
        slopes = torch.autograd.grad(loss, list(self.weights.values()), allow_unused=True)
        found = {name: (g, *_adam(self.optimizer, self.weights[name])) for name, g in zip(self.weights, slopes, strict=True)
                 if g is not None}  # fmt: skip
        along = sum(float((g * p * m).sum()) for g, m, p in found.values())
        size = sum(float((m * p * m).sum()) for _, m, p in found.values())
        c = along / size if size else 0.0
        return {name: p * (g - c * m) for name, (g, m, p) in found.items()}

    def __repr__(self) -> str:
        return f"OneStep({len(self.logits)} rates, every={self.every})"

    def _again_and_again(self) -> Iterator[tuple[Tensor, ...]]:
        while True:
            yield from self.held_out


def _adam(optimizer: Any, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The momentum and the preconditioner of one weight, without their learning rate."""
    group = next(g for g in optimizer.param_groups if any(p is weight for p in g["params"]))
    state = optimizer.state[weight]
    if not state:
        return torch.zeros_like(weight), torch.ones_like(weight)
    step = float(state["step"])
    first, second = (1 - beta**step for beta in group["betas"])
    return state["exp_avg"] / first, 1 / ((state["exp_avg_sq"] / second).sqrt() + group["eps"])


class _Lossy(nn.Module):
    """A loss as a module, so that the weights inside it can be exchanged."""

    def __init__(self, model: nn.Module, losses: Losses):
        super().__init__()
        self.model, self.losses = model, losses

    def forward(self, *batch: Tensor) -> Tensor:
        return self.losses(self.model, *batch)


def _derivative(
    model: nn.Module,
    losses: Losses,
    batch: tuple[Tensor, ...],
    weights: Mapping[str, Tensor],
    tangents: Mapping[str, Tensor],
) -> Float[Tensor, "batch"]:
    """The derivative of each example's loss along the tangents."""
    lossy = _Lossy(model, losses)
    names = list(tangents)

    def at(*values: Tensor) -> Tensor:
        return functional_call(
            lossy, {f"model.{name}": value for name, value in zip(names, values, strict=True)}, batch
        )

    primals = tuple(weights[name].detach() for name in names)
    return jvp(at, primals, tuple(tangents[name] for name in names))[1]
