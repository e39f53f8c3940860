"""Losses, gradients and predictions that are NaN or infinite are refused at the step where they appear.

The check is put to the device at once and its answer is read when the device has it, so that a GPU is not kept waiting.
Only if the answer is no does a slower search say where it began (:mod:`lbdrop.guards.diagnosis`).
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from lbdrop._torch import after_backward, parameters_of
from lbdrop.errors import DropoutError
from lbdrop.guards.diagnosis import first_bad_rows, nonfinite_parameters, origin

__all__ = ["Answer", "Watch", "finite_gradients", "refuse_infinite", "refuse_infinite_output"]

MAX_UNSCALED_GRADIENT = 1024.0
"""A backward pass that begins with a larger gradient belongs to a loss scaled for half precision."""
MAX_COPIED = 100_000
"""Gradients of at most so many numbers are copied into one tensor: one check of that is quicker than one of each."""


class Answer:
    """The answer of the device to a yes-or-no question; a GPU is not waited for until the answer is read."""

    def __init__(self, yes: Bool[Tensor, ""]):
        self._value, self._copied = yes, None
        if yes.is_cuda:
            self._value = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._value.copy_(yes, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    @property
    def ready(self) -> bool:
        """Whether reading it costs no wait."""
        return self._copied is None or self._copied.query()

    def read(self) -> bool:
        if self._copied is not None:
            self._copied.synchronize()
        return bool(self._value)


class _Check(NamedTuple):
    """A question put to the device, and the error to raise if the answer is no."""

    answer: Answer
    refuse: Callable[[], None]


class Watch:
    """Refuses losses and gradients of one model's training steps that are not finite.

    On a CPU each is checked before anything else happens. On a GPU the answer about losses is read once their backward pass
    is queued, before any optimiser step; the answer about gradients is read with the losses of the next step.
    """

    def __init__(self, model: nn.Module, on: bool = True):
        self.model, self.on = model, on
        self.in_step = False
        """Whether a backward pass will follow, even if gradients are off at the moment: it reads the open checks."""
        self._open: list[_Check] = []

    def losses(self, result: Tensor, losses: Callable[[nn.Module], Any], of: str = "this batch") -> None:
        """Refuse losses (masks, batch) that are not finite, and say where they come from."""
        if not self.on or (_surely_finite(result) and not self._open):
            return
        finite = torch.isfinite(result)

        def refuse() -> None:
            refuse_infinite(finite, of, origin(self.model, lambda: losses(self.model)))

        check = _Check(Answer(finite.all()), refuse)
        can_wait = result.is_cuda and (torch.is_grad_enabled() or self.in_step)
        self._read([*self._open, check], lambda each: each.answer.ready if can_wait else True)

    def backward(self, loss: Tensor) -> None:
        """Check the gradients when ``loss.backward()`` has made them."""
        if self.on and loss.requires_grad:
            loss.register_hook(lambda gradient: after_backward(lambda: self._gradients(gradient.detach())))

    def _gradients(self, scale: Tensor) -> None:
        self._read(self._open, lambda _: True)
        # Not model.parameters(), which also makes all their names.
        finite = finite_gradients(p for m in self.model.modules() for p in parameters_of(m).values() if p is not None)
        if finite is None:
            return

        def refuse() -> None:
            bad = nonfinite_parameters(self.model, gradients=not scale.is_cuda)
            raise DropoutError(
                f"gradient: want finite numbers, got NaN or infinity for {', '.join(bad[:4]) or 'a parameter'}, though all"
                " losses are finite; look for a root or a logarithm at 0 behind it. "
                + ("It has changed parameters" if scale.is_cuda else "No parameter has been changed")
            )

        # A scaled loss may overflow: its gradient scaler handles that.
        check = _Check(Answer(finite | (scale.abs() > MAX_UNSCALED_GRADIENT)), refuse)
        self._read([check], lambda _: not scale.is_cuda)  # a GPU would run out of queued work if this waited for it

    def _read(self, checks: list[_Check], due: Callable[[_Check], bool]) -> None:
        ready = [check for check in checks if due(check)]
        self._open = [check for check in checks if check not in ready]
        for check in ready:
            if not check.answer.read():
                check.refuse()


def refuse_infinite(finite: Bool[Tensor, "masks batch"], of: str = "this batch", where: str = "") -> None:
    """An error that names the examples whose losses are not finite; ``where`` says what is known of the reason."""
    bad = first_bad_rows(~finite.movedim(-1, 0))
    if bad:
        raise DropoutError(
            f"loss: want finite numbers, got NaN or infinity for examples {bad} of {of}; {where or 'look at their inputs'},"
            " or lower the learning rate. No parameter has been changed"
        )


def refuse_infinite_output(mean: Tensor, model: nn.Module, call: Callable[[], Any], part: int) -> None:
    """An error that names the rows of a prediction that are not finite; a logit of −∞ is a probability of 0, and allowed."""
    bad = first_bad_rows(~torch.isfinite(mean))
    if bad:
        raise DropoutError(
            f"prediction: want finite numbers, got NaN or infinity in rows {bad} of part {part} of the inputs (from 0);"
            f" {origin(model, call)}"
        )


def finite_gradients(parameters: Iterable[Tensor]) -> Bool[Tensor, ""] | None:
    """Whether all gradients are finite, as a tensor on their device; ``None`` where that is certain already."""
    gradients = [g for p in parameters if (g := p.grad) is not None and not g.is_sparse]
    if all(gradient.is_cpu for gradient in gradients):
        few = 0 < sum(gradient.numel() for gradient in gradients) <= MAX_COPIED
        if all(map(_surely_finite, [torch.cat([g.reshape(-1) for g in gradients])] if few else gradients)):
            return None
        return torch.stack([torch.isfinite(gradient).all() for gradient in gradients]).all()
    # By the largest element: unlike a sum of squares, it cannot overflow in half precision.
    return torch.isfinite(torch.nn.utils.get_total_norm(gradients, math.inf))


def _surely_finite(tensor: Tensor) -> bool:
    """Whether the sum of a tensor on the CPU is finite, the quickest check there; ``False`` is no proof: sums overflow."""
    return tensor.is_cpu and not tensor.is_complex() and math.isfinite(tensor.detach().sum())
