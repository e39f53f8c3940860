r"""Predictive distributions from S masks, with everything before the first dropout computed once.

$$ p(y\mid x) \approx \bar p = \tfrac1S \sum_s p_s, \qquad
   \underbrace{H[\bar p]}_{\text{entropy}} = \underbrace{\tfrac1S\sum_s H[p_s]}_{\text{noise in the data}}
   + \underbrace{I[y; z]}_{\text{mutual information}} $$
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lbdrop import masks
from lbdrop._torch import tree_flatten, tree_map, uncompiled
from lbdrop.dropout import NoiseLayer, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.guards.finite import refuse_infinite_output
from lbdrop.passes.run import run
from lbdrop.sites.watch import functional_dropout, report_unreachable

__all__ = ["Kind", "Predictive", "predict"]

Kind = Literal["classification", "binary", "regression"]


@dataclass(frozen=True)
class Predictive:
    """What S masks say together. The first axis of every tensor but ``samples`` runs over examples."""

    mean: Tensor
    """Mean class probabilities, or mean output in regression."""
    variance: Tensor
    """Variance of the samples over the masks, shaped like ``mean``."""
    entropy: Tensor | None
    """Entropy of ``mean`` in nats, class axis removed; ``None`` in regression."""
    mutual_information: Tensor | None
    """The part of the entropy that the masks disagree about; ``None`` in regression."""
    samples: Tensor | None
    """Every sample, masks first; ``None`` unless kept."""

    @property
    def std(self) -> Tensor:
        return self.variance.sqrt()

    @classmethod
    def of(
        cls, outputs: Tensor, kind: Kind = "classification", class_dim: int = 1, keep_samples: bool = True
    ) -> "Predictive":
        """From raw outputs (S, batch, …): logits in classification, values in regression."""
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        if kind == "regression":
            samples, entropy, information = outputs, None, None
        elif kind == "binary":
            samples = torch.sigmoid(outputs)
            entropy_of = lambda p: torch.special.entr(p) + torch.special.entr(1 - p)  # noqa: E731
            entropy = entropy_of(samples.mean(0))
            information = (entropy - entropy_of(samples).mean(0)).clamp(min=0)
        elif kind == "classification":
            axis = class_dim if class_dim < 0 else class_dim + 1
            if outputs.dim() < 3:
                raise DropoutError(
                    f"output: want logits (batch, classes, …), got shape {tuple(outputs.shape[1:])}; say kind='binary' for"
                    " one logit per example or kind='regression' for values"
                )
            samples = torch.softmax(outputs, axis)
            entropy = torch.special.entr(samples.mean(0, keepdim=True)).sum(axis)[0]
            information = (entropy - torch.special.entr(samples).sum(axis).mean(0)).clamp(min=0)
        else:
            raise DropoutError(f"kind: want 'classification', 'binary' or 'regression', got {kind!r}")
        mean, variance = samples.mean(0), samples.var(0, correction=0)
        return cls(mean, variance, entropy, information, samples if keep_samples else None)

    @classmethod
    def cat(cls, parts: list["Predictive"]) -> "Predictive":
        """One predictive for all batches."""

        def join(name: str, axis: int = 0) -> Any:
            tensors = [getattr(part, name) for part in parts]
            return None if tensors[0] is None else torch.cat(tensors, axis)

        return cls(join("mean"), join("variance"), join("entropy"), join("mutual_information"), join("samples", 1))


def predict(
    model: nn.Module,
    inputs: Any,
    samples: int = 20,
    *,
    kind: Kind = "classification",
    class_dim: int | None = None,
    forward: Callable[[nn.Module, Any], Tensor] | None = None,
    keep_samples: bool = True,
    memory: int | None = None,
    progress: bool = True,
    unreached: str = "error",
    generator: torch.Generator | None = None,
) -> Predictive:
    """Predict with ``samples`` masks per example; mode and random state of the caller stay as they are.

    Args:
        model: a model with learned dropouts.
        inputs: a tensor of examples, a dict of them (passed by name), or a loader of batches; a batch that is a tuple or
            list gives its first element.
        samples: how many masks.
        kind: ``"classification"`` (logits, softmax), ``"binary"`` (one logit, sigmoid) or ``"regression"``.
        class_dim: in classification, the axis of the classes in the output; by default 1, as in (batch, classes) and
            (batch, classes, height, width).
        forward: how to call the model on a batch, for other signatures and outputs.
        keep_samples: keep every sample beside the summaries.
        memory: bytes that activations may take; by default half of what is free.
        progress: show a bar where a loader has several batches.
        unreached: ``"error"`` or ``"warn"``, about dropouts that a pass does not reach.
        generator: draws the masks, on the model's device; by default the masks follow from the global random state.
    """
    if not isinstance(samples, int) or samples < 1:
        raise DropoutError(f"samples: want a whole number, at least 1, got {samples}")
    if class_dim is not None and kind != "classification":
        raise DropoutError(f"class_dim: want it in classification alone, got kind={kind!r}; leave it out")
    core = uncompiled(model)
    noise_layers(core)
    device = next(core.parameters()).device
    call = forward or _default_forward
    # A tuple is one batch, (inputs, targets); a list may be a loader.
    is_loader = not isinstance(inputs, Tensor | Mapping | np.ndarray | tuple) and isinstance(inputs, Iterable)
    batches: Iterable[Any] = inputs if is_loader else [inputs]
    if is_loader and progress:
        from rich.progress import track  # here: import lbdrop need not wait for it

        total = len(inputs) if isinstance(inputs, Sized) else None
        batches = track(batches, "predicting", total=total, transient=True, disable=total == 1)
    parts = []
    with _as_found(core, device), torch.no_grad():
        generator = generator or torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
        plan: _Plan | None = None
        for batch in batches:
            batch = batch[0] if isinstance(batch, list | tuple) else batch
            batch = dict(batch) if isinstance(batch, Mapping) else batch
            batch = tree_map(lambda t: torch.from_numpy(t) if isinstance(t, np.ndarray) else t, batch)
            batch = tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, batch)
            plan = plan or _plan(core, call, batch, samples, memory)
            for rows in _rows(batch, plan.examples):
                # A functional dropout that is on at test time draws past us: looked for in the first part.
                with nullcontext() if parts else functional_dropout(core, unreached):
                    outputs = _sample(core, call, rows, samples, plan, generator, unreached)
                part = Predictive.of(outputs, kind, 1 if class_dim is None else class_dim, keep_samples)
                refuse_infinite_output(part.mean, core, partial(call, core, rows), len(parts))
                parts.append(_to_host(part) if is_loader else part)
    if not parts:
        raise DropoutError("inputs: want at least one batch, got an empty loader; check its dataset and drop_last")
    return parts[0] if len(parts) == 1 else Predictive.cat(parts)


def _default_forward(model: nn.Module, batch: Any) -> Tensor:
    output = model(**batch) if isinstance(batch, dict) else model(batch)
    output = getattr(output, "logits", output)
    if not isinstance(output, Tensor):
        raise DropoutError(
            f"output: want a tensor, or an object with .logits, got {type(output).__name__}; say how to read it, as in"
            " forward=lambda model, batch: model(batch)[0]"
        )
    return output


@contextmanager
def _as_found(model: nn.Module, device: torch.device) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            model.eval()
            yield
        finally:
            for module, training in modes:
                module.training = training


class _Independent:
    def __init__(self, masks: int, generator: torch.Generator):
        self.masks, self.generator = masks, generator

    def begin(self) -> None: ...

    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        if not layer.samples_at_test:
            return layer.spread(layer.keep, len(shape)).to(x.dtype).expand(self.masks, *shape)
        return layer.draw(self.masks, shape, x, self.generator)

    def seen(self, use: int, x: Tensor) -> None: ...


def _sample(
    model: nn.Module,
    call: Callable[[nn.Module, Any], Tensor],
    batch: Any,
    samples: int,
    plan: "_Plan",
    generator: torch.Generator,
    unreached: str,
) -> Tensor:
    outputs: list[Tensor] = []
    while (left := samples - sum(len(done) for done in outputs)) > 0:
        count = min(left, plan.masks)
        try:
            output, reached = run(model, lambda: call(model, batch), count, _Independent(count, generator))
        except (torch.OutOfMemoryError, RuntimeError) as error:
            short_of_memory = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
            if not short_of_memory or plan.masks == 1:
                raise
            plan.masks //= 2
            continue
        dead = [name for name, layer in noise_layers(model).items() if layer not in reached]
        if dead:
            report_unreachable(f"dropout never reached in a pass: {dead}", "call it in the model's forward", unreached)
        outputs.append(output)
    return torch.cat(outputs)


# ---------------------------------------------------------------------------------------------------------- memory


@dataclass
class _Plan:
    """How many examples and how many masks go through the model at once."""

    examples: int
    masks: int


def _plan(model: nn.Module, call: Callable[..., Tensor], batch: Any, samples: int, memory: int | None) -> _Plan:
    tensors = [t for t in tree_flatten(batch)[0] if isinstance(t, Tensor) and t.dim()]
    if not tensors or not len(tensors[0]):
        raise DropoutError("inputs: want at least one example, got an empty batch")
    examples = len(tensors[0])
    budget = memory or _free(tensors[0].device) // 2
    # Inputs that could not fill the budget even if every activation were 64 times their size need no measuring.
    if memory is None and samples * sum(t.nbytes for t in tensors) * 64 < budget:
        return _Plan(examples, samples)
    before, behind = _largest_activations(model, call, next(_rows(batch, 1)))
    # An operation holds its input, its output and a workspace.
    masks_at_once = int(min(samples, max(1, (budget // 3 / examples - before) // max(behind, 1))))
    examples_at_once = int(min(examples, max(1, budget // 3 // (before + masks_at_once * behind))))
    if any(layer.batch_dim for layer in noise_layers(model).values()):
        examples_at_once = examples  # sequence-first inside, so perhaps outside: the first axis may not be examples
    return _Plan(examples_at_once, masks_at_once)


def _largest_activations(model: nn.Module, call: Callable[..., Tensor], one: Any) -> tuple[int, int]:
    """Bytes of the largest output before and behind the first dropout, for one example under one mask."""
    largest = [1, 1]
    behind = [False]

    def look(module: nn.Module, _: Any, output: Any) -> None:
        behind[0] |= isinstance(module, NoiseLayer)
        size = sum(t.nbytes for t in tree_flatten(output)[0] if isinstance(t, Tensor))
        largest[behind[0]] = max(largest[behind[0]], size)

    hooks = [
        m.register_forward_hook(look) for m in model.modules() if isinstance(m, NoiseLayer) or not list(m.children())
    ]
    try:
        with masks.drawn(model):
            call(model, one)
    finally:
        for hook in hooks:
            hook.remove()
    return largest[0], largest[1]


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4 << 30


def _rows(batch: Any, count: int) -> Iterator[Any]:
    examples = len(next(t for t in tree_flatten(batch)[0] if isinstance(t, Tensor) and t.dim()))
    if count >= examples:
        yield batch
        return
    for start in range(0, examples, count):
        part = slice(start, start + count)
        yield tree_map(lambda t, part=part: t[part] if _counts(t, examples) else t, batch)


def _counts(value: Any, examples: int) -> bool:
    """Whether a tensor has an entry for each example; a table or a scalar beside them goes to every part whole."""
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == examples


def _to_host(part: Predictive) -> Predictive:
    return Predictive(**{name: None if t is None else t.cpu() for name, t in vars(part).items()})  # pyright: ignore
