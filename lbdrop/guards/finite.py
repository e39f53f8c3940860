"""Numbers that are none: found at the step they appear, and named, without keeping an accelerator waiting.

A question such as "are all losses finite?" is put to the device at once; its answer is read when the device has it anyway.
Only when the answer is no does anybody look closer: which examples, which parameter, which layer came first.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from lbdrop.dropout import NoiseLayer
from lbdrop.errors import DropoutError
from lbdrop.guards.modes import eval_mode
from lbdrop.masks import deterministic

__all__ = [
    "Answer",
    "Watch",
    "bad_parameters",
    "finite_gradients",
    "origin",
    "refuse_infinite",
    "refuse_infinite_output",
]

# A loss that is multiplied by more than this is scaled for half precision.
LARGEST_UNSCALED = 1024.0
# So many numbers are copied in less time than it takes to ask several tensors.
SMALL = 100_000


class Answer:
    """The answer to a yes-or-no question, which a GPU is not waited for until it is read."""

    def __init__(self, yes: Bool[Tensor, ""]):
        self.value, self.there = yes, None
        if yes.is_cuda:
            self.value = torch.empty((), dtype=torch.bool, pin_memory=True)
            self.value.copy_(yes, non_blocking=True)
            self.there = torch.cuda.Event()
            self.there.record()

    @property
    def ready(self) -> bool:
        """Whether reading it costs no wait."""
        return self.there is None or self.there.query()

    def read(self) -> bool:
        if self.there is not None:
            self.there.synchronize()
        return bool(self.value)


class _Question(NamedTuple):
    """A question put to the device, and what to do if the answer is no."""

    answer: Answer
    refuse: Callable[[], None]


class Watch:
    """Looks after the losses and gradients of one model's training steps.

    On a CPU each is looked at before anything else happens. A GPU is asked about losses and answers when their backward pass
    has been queued, so still before any optimiser step; about gradients with the losses of the step after.
    """

    def __init__(self, model: nn.Module, on: bool = True):
        self.model, self.on = model, on
        self.in_step = False
        """Whether a backward pass will come, even where gradients are off for a moment: it reads what is still open."""
        self._open: list[_Question] = []

    def losses(self, result: Tensor, losses: Callable[[nn.Module], Any], of: str = "this batch") -> None:
        """Refuse losses (masks, batch) that are not finite, and say where they come from."""
        if not self.on or (_surely_finite(result) and not self._open):
            return
        finite = torch.isfinite(result)

        def refuse() -> None:
            refuse_infinite(finite, of, origin(self.model, lambda: losses(self.model)))

        question = _Question(Answer(finite.all()), refuse)
        later = result.is_cuda and (torch.is_grad_enabled() or self.in_step)
        self._read([*self._open, question], lambda q: q.answer.ready if later else True)

    def backward(self, loss: Tensor) -> None:
        """Look at the gradients when ``loss.backward()`` has made them."""
        if self.on and loss.requires_grad:
            # The engine calls back when all of this backward pass is queued, before any optimiser step.
            engine: Any = torch.autograd.Variable._execution_engine  # pyright: ignore[reportAttributeAccessIssue]
            loss.register_hook(lambda scale: engine.queue_callback(lambda: self._gradients(scale.detach())))

    def _gradients(self, scale: Tensor) -> None:
        self._read(self._open, lambda _: True)
        # Not model.parameters(), which takes its time to name them all.
        finite = finite_gradients(p for m in self.model.modules() for p in m._parameters.values() if p is not None)
        if finite is None:
            return

        def refuse() -> None:
            bad = bad_parameters(self.model, gradients=not scale.is_cuda)
            raise DropoutError(
                f"gradient: want finite numbers, got NaN or infinity for {', '.join(bad[:4]) or 'a parameter'}, though all"
                " losses are finite; look for a root or a logarithm at 0 behind it. "
                + ("It has changed parameters" if scale.is_cuda else "No parameter has been changed")
            )

        # A scaled loss may overflow, and whoever scales it looks after that.
        question = _Question(Answer(finite | (scale.abs() > LARGEST_UNSCALED)), refuse)
        self._read([question], lambda _: not scale.is_cuda)  # to wait for a GPU here would let it run dry

    def _read(self, questions: list[_Question], due: Callable[[_Question], bool]) -> None:
        ready = [question for question in questions if due(question)]
        self._open = [question for question in questions if question not in ready]
        for question in ready:
            if not question.answer.read():
                question.refuse()


def refuse_infinite(finite: Bool[Tensor, "masks batch"], of: str = "this batch", where: str = "") -> None:
    """An error that names the examples whose losses are not finite; ``where`` says what is known of the reason."""
    bad = _rows(~finite.movedim(-1, 0))
    if bad:
        raise DropoutError(
            f"loss: want finite numbers, got NaN or infinity for examples {bad} of {of}; {where or 'look at their inputs'},"
            " or lower the learning rate. No parameter has been changed"
        )


def refuse_infinite_output(mean: Tensor, model: nn.Module, call: Callable[[], Any], part: int) -> None:
    """An error that names the rows of a prediction that are not finite; a logit of −∞ is a probability of 0, and fine."""
    bad = _rows(~torch.isfinite(mean))
    if bad:
        raise DropoutError(
            f"prediction: want finite numbers, got NaN or infinity in rows {bad} of part {part} of the inputs (from 0);"
            f" {origin(model, call)}"
        )


def finite_gradients(parameters: Iterable[Tensor]) -> Bool[Tensor, ""] | None:
    """Whether all gradients are finite, asked on the device; None where nothing is left to ask."""
    gradients = [g for p in parameters if (g := p.grad) is not None and not g.is_sparse]
    if all(gradient.is_cpu for gradient in gradients):
        # Those of a small network in one tensor: there each question costs more than a copy.
        small = 0 < sum(gradient.numel() for gradient in gradients) <= SMALL
        if all(map(_surely_finite, [torch.cat([g.reshape(-1) for g in gradients])] if small else gradients)):
            return None
        return torch.stack([torch.isfinite(gradient).all() for gradient in gradients]).all()
    # By the largest element, which no half precision can overflow as a sum of squares does.
    return torch.isfinite(torch.nn.utils.get_total_norm(gradients, math.inf))


def _surely_finite(tensor: Tensor) -> bool:
    """Whether a tensor on the CPU is finite by the sign that is quickest there, its sum; one that overflows says nothing."""
    return tensor.is_cpu and not tensor.is_complex() and math.isfinite(tensor.detach().sum())


def bad_parameters(model: nn.Module, gradients: bool = False) -> list[str]:
    """The names of parameters and buffers that are not finite, or whose gradients are not."""
    held = [*model.named_parameters(), *([] if gradients else model.named_buffers())]
    found = [(name, t.grad if gradients else t) for name, t in held]
    fixed = {f"{name}.logit" for name, m in model.named_modules() if isinstance(m, NoiseLayer) and not m.learns}
    return [
        name
        for name, t in found
        if t is not None and t.is_floating_point() and name not in fixed and not bool(torch.isfinite(t).all())
    ]


def origin(model: nn.Module, call: Callable[[], Any]) -> str:
    """Where a pass first meets something that is not finite, in words: a parameter, the input, or a layer's output.

    The pass is run once more, without masks and gradients, in eval mode: nothing changes by it.
    """
    if bad := bad_parameters(model):
        return f"not finite before the step: {', '.join(bad[:4])}; look at the steps before this one"
    seen: list[str] = []

    def entering(_: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        for tensor in tree_flatten((inputs, named))[0]:
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and (rows := _rows(~torch.isfinite(tensor))):
                seen.append(f"the model's input is not finite in rows {rows}: look at the data")

    def leaving(name: str) -> Callable[..., None]:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            held = [t for t in tree_flatten(output)[0] if isinstance(t, Tensor) and t.is_floating_point()]
            if not all(bool(torch.isfinite(t).all()) for t in held):
                seen.append(f"first in the output of layer {name!r} ({type(module).__name__}): look there")

        return look

    leaves = [(name, m) for name, m in model.named_modules() if not any(m.children())]
    hooks = [m.register_forward_hook(leaving(name)) for name, m in leaves]
    hooks.append(model.register_forward_pre_hook(entering, with_kwargs=True))
    try:
        with eval_mode(model), torch.no_grad(), deterministic(model):
            call()
    except Exception:  # in search of a reason, another one is of no help
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return seen[0] if seen else "the model's outputs are finite without dropout: look at the loss and at single masks"


def _rows(bad: Bool[Tensor, "..."]) -> list[int]:
    """The first few indices along the first axis with anything bad in them."""
    return (bad.flatten(1).any(1) if bad.dim() > 1 else bad).reshape(-1).nonzero().flatten().tolist()[:8]
