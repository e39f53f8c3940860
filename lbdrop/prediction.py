r"""Predictive distributions from S masks, with everything before the first dropout computed once.

$$ p(y\mid x) \approx \bar p = \tfrac1S \sum_s p_s, \qquad
   \underbrace{H[\bar p]}_{\text{entropy}} = \underbrace{\tfrac1S\sum_s H[p_s]}_{\text{noise in the data}}
   + \underbrace{I[y; z]}_{\text{mutual information}} $$
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lbdrop._torch import tree_map, uncompiled
from lbdrop.dropout import noise_layers
from lbdrop.errors import DropoutError
from lbdrop.guards import threads
from lbdrop.guards.finite import refuse_infinite_output
from lbdrop.guards.promises import Answers, conformal_scale, largest_doubt
from lbdrop.passes.drawer import IndependentMasks
from lbdrop.passes.pieces import Plan, plan_pieces, split_rows
from lbdrop.passes.run import run
from lbdrop.sites.watch import check_unreached, functional_dropout, report_unreached

__all__ = ["Kind", "Predictive", "predict"]

Kind = Literal["classification", "binary", "regression"]


@dataclass(frozen=True)
class Predictive:
    """The predictive distribution of S masks. The first axis of every tensor but ``samples`` runs over examples."""

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

    def abstain(self, held_out: "Predictive", labels: Tensor, error: float = 0.05, risk: float = 0.05) -> Answers:
        """Which examples to answer, so that at most ``error`` of the answers are wrong.

        The promise holds for examples drawn as the held-out ones, which neither weights nor rates may have seen, and fails for
        a share of at most ``risk`` of all such held-out sets (:mod:`lbdrop.guards.promises`).

        >>> held_out = Predictive.of(torch.randn(5, 300, 2) + torch.tensor([9.0, 0.0]))
        >>> bool(held_out.abstain(held_out, torch.zeros(300).long()).answered.all())
        True
        """
        if self.entropy is None or held_out.entropy is None or self.entropy.dim() != 1:
            raise DropoutError("abstain: want predictions of one class per example; regression has interval")
        p = held_out.mean
        predicted = p.argmax(1) if p.dim() == 2 else p > 0.5
        if labels.shape != held_out.entropy.shape:
            raise DropoutError(f"labels: want shape {tuple(held_out.entropy.shape)}, got {tuple(labels.shape)}")
        at, share = largest_doubt(held_out.entropy, predicted != labels.to(predicted), error, risk)
        return Answers(self.entropy <= at, at, share)

    def interval(
        self, held_out: "Predictive", targets: Tensor, level: float = 0.9, noise: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Lower and upper ends that hold a share ``level`` of new targets, whatever the model: split conformal prediction.

        Its width follows the masks' deviation; ``noise`` is a variance added to theirs. The promise is for one output per
        example, drawn as the held-out ones, which neither weights nor rates may have seen.
        """
        if self.entropy is not None or held_out.entropy is not None:
            raise DropoutError("interval: want kind='regression', got classes; those have abstain")
        if held_out.mean.numel() != len(held_out.mean) or targets.numel() != held_out.mean.numel():
            raise DropoutError(
                f"targets: want one output and one target per example, got {tuple(held_out.mean.shape)} and"
                f" {tuple(targets.shape)}"
            )
        own, theirs = ((each.variance + noise).sqrt() for each in (self, held_out))
        if not bool((own > 0).all() & (theirs > 0).all()):
            raise DropoutError(
                "noise: want a variance above 0 where masks agree, got 0; say noise=1.0 for equal widths"
            )
        scores = (targets.view_as(held_out.mean) - held_out.mean).abs() / theirs
        scale = conformal_scale(scores.flatten(), level)
        return self.mean - scale * own, self.mean + scale * own

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
    check_unreached(unreached)
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
    with threads.predicting(core), _random_state_kept(device), torch.no_grad():
        generator = generator or torch.Generator(device).manual_seed(_seed())
        plan: Plan | None = None
        for batch in batches:
            batch = batch[0] if isinstance(batch, list | tuple) else batch
            batch = dict(batch) if isinstance(batch, Mapping) else batch
            batch = tree_map(lambda t: torch.from_numpy(t) if isinstance(t, np.ndarray) else t, batch)
            batch = tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, batch)
            plan = plan or plan_pieces(core, call, batch, samples, memory)
            for rows in split_rows(batch, plan.examples):
                outputs = _run_masks(core, call, rows, samples, plan, generator, None if parts else unreached)
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


def _seed() -> int:
    """A seed that follows from the global random state, which stays as it is."""
    return int(torch.randint(2**62, (), generator=torch.default_generator.clone_state()))


@contextmanager
def _random_state_kept(device: torch.device) -> Iterator[None]:
    """Put back the global random state, from which a model may draw by itself, unless other threads run models meanwhile."""
    on_gpu = device.type == "cuda"
    before, before_gpu = torch.get_rng_state(), torch.cuda.get_rng_state(device) if on_gpu else None
    try:
        yield
    finally:
        if threads.alone():
            torch.set_rng_state(before)
            if before_gpu is not None:
                torch.cuda.set_rng_state(before_gpu, device)


def _run_masks(
    model: nn.Module,
    call: Callable[[nn.Module, Any], Tensor],
    batch: Any,
    samples: int,
    plan: Plan,
    generator: torch.Generator,
    unreached: str | None,
) -> Tensor:
    """The outputs (samples, batch, …) under all masks, fewer at once where memory runs out.

    The first masks show whether layers are reached, and whether a functional dropout is on at test time, which draws its own
    masks; ``unreached`` says what follows, ``None`` that it is known already.
    """
    layers = noise_layers(model)
    outputs: list[Tensor] = []
    seeds = torch.randint(2**62, (samples,), generator=generator, device=generator.device).tolist()
    while (left := samples - sum(len(done) for done in outputs)) > 0:
        count = min(left, plan.masks)
        group = [torch.Generator(generator.device).manual_seed(seed) for seed in seeds[samples - left :][:count]]
        watch = nullcontext() if unreached is None else functional_dropout(model, unreached)
        try:
            with watch:
                output, reached = run(
                    model, lambda: call(model, batch), count, IndependentMasks(group), layers.values()
                )
        except (torch.OutOfMemoryError, RuntimeError) as error:
            short_of_memory = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
            if not short_of_memory or plan.masks == 1:
                raise
            plan.masks //= 2
            continue
        if unreached is not None:
            report_unreached(layers, reached, unreached)
            unreached = None
        outputs.append(output)
    return torch.cat(outputs)


def _to_host(part: Predictive) -> Predictive:
    return Predictive(**{name: None if t is None else t.cpu() for name, t in vars(part).items()})  # pyright: ignore
