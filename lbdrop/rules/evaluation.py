"""The losses of one batch under masks: what every rule is made of.

A :class:`Runner` belongs to an objective and lives as long: it runs the model under masks, checks what comes back, and finds
out whether examples are coupled. An :class:`Evaluation` is one batch of it.
"""

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop.dropout import LearnableDropout, NoiseLayer, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.estimators import Estimator, get
from lbdrop.guards import processes
from lbdrop.guards.checkpointing import checkpoints_explained
from lbdrop.guards.finite import Watch
from lbdrop.guards.snapshot import unchanged
from lbdrop.masks import Layout
from lbdrop.passes.drawer import PlainMasks
from lbdrop.passes.price import Plan, calls_on, count_pass, plan_for
from lbdrop.passes.run import Drawer, run
from lbdrop.sites.watch import check_unreached, functional_dropout, report_unreached
from lbdrop.step import Step

__all__ = ["Evaluation", "Runner"]

Losses = Callable[..., Tensor]
WEIGHTS_ALONE = Plan(get("double-cv"), 0.0)
"""Where no rate has a gradient."""
SEEDS = 2**62 - 1


class Runner:
    """Runs one model under masks.

    Args:
        model: the model as it was written, without wrappers.
        estimator: draws the masks from which rates learn, in every step; or how much a step may cost, in units of a plain one.
        masks: through how many masks weights are trained where no rate learns from them.
        coupled: whether the loss of one example depends on the masks of others; ``None`` finds out.
        unreached: ``"error"`` or ``"warn"``, about dropouts that a pass does not reach.
        check: refuse losses and gradients that are NaN or infinite.
        generator: draws the masks.
    """

    def __init__(
        self,
        model: nn.Module,
        estimator: Estimator | float,
        masks: int = 1,
        coupled: bool | None = None,
        unreached: str = "error",
        check: bool = True,
        generator: torch.Generator | None = None,
    ):
        check_unreached(unreached)
        self.model, self.layers = model, noise_layers(model)
        self.learned = {name: layer for name, layer in self.layers.items() if isinstance(layer, LearnableDropout)}
        self.called = model
        """What losses are given: the model, or what ``torch.compile`` made of it."""
        self.plan, self.budget = (Plan(estimator, 1.0), None) if isinstance(estimator, Estimator) else (None, estimator)
        self.masks, self.coupled = masks, coupled
        self.toss = self._toss
        """Gives a number from 0 to 1: rates learn in a step where it is below their share."""
        self.seed: int | None = None
        """What the processes that train together have in common in this step."""
        self.unreached, self.generator = unreached, generator
        self.watch = Watch(model, check)
        self.first_pass = True
        self._layouts: dict[tuple[Any, ...], list[Layout] | None] = {}
        """Where examples are in each mask, by mode, loss and order of the layers; ``None`` where they are coupled."""
        self._doubtful: dict[tuple[Any, ...], int] = {}
        """Of those where some slopes were all 0, as behind weights that start at 0, how many steps have seen them."""

    def evaluate(self, losses: Losses, estimator: Estimator | None = None) -> Float[Tensor, "masks batch"]:
        """Losses under the estimator's masks; their backward pass gives weights and rates their gradients."""
        logits = [layer.logit for layer in self.learned.values() if layer.logit.requires_grad]
        plan = Plan(estimator, 1.0) if estimator else self.plan_of(losses, bool(logits))
        if self.first_pass and 0 < plan.share < 1:
            self._try_step(Step(self.learned, plan.estimator, self.generator), losses)
        if plan.share == 1 or (plan.share and torch.is_grad_enabled() and self.toss() < plan.share):
            step = Step(self.learned, plan.estimator, self.generator, self.masks, plan.share)
            result = self.run(losses, step.masks, step)
            self.watch.losses(result, losses)
            if torch.is_grad_enabled() and (result.requires_grad or logits):
                self._check(step, result, losses)
                result = step.weigh(result)
            step.release()
            return result
        result = self.run(losses, 1, PlainMasks(self.generator))
        self.watch.losses(result, losses)
        return processes.with_zero_gradients(result, logits) if logits and torch.is_grad_enabled() else result

    def _try_step(self, step: Step, losses: Losses) -> None:
        """A step that leaves nothing behind, so that a mistake shows in the first, whether rates learn in it or not."""
        with unchanged(self.model, self.generator):
            result = self.run(losses, step.masks, step)
            self.watch.losses(result, losses)
            if result.requires_grad:
                self._check(step, result, losses)
            step.release()

    def _check(self, step: Step, result: Tensor, losses: Losses) -> None:
        if step.uses:
            step.coupled = self._is_coupled(step, result, losses)
            if not step.coupled:
                self._check_examples(step, result)

    def plan_of(self, losses: Losses, learns: bool = True) -> Plan:
        """The plan: made at the first losses, where it depends on what they cost."""
        if not learns and self.budget is not None:
            return WEIGHTS_ALONE._replace(share=float(self.masks > 1))
        if self.plan is None:
            assert self.budget is not None
            with functional_dropout(self.model, self.unreached), unchanged(self.model):
                found = count_pass(lambda: losses(self.model), self.layers.values())
            self.plan = plan_for(found, self.budget, calls_on(next(iter(self.layers.values())).logit.device))
        return self.plan

    def __repr__(self) -> str:
        if self.plan is None:
            return f"budget={self.budget}"
        share = "" if self.plan.share == 1 else f", in {self.plan.share:.0%} of the steps"
        return f"estimator={self.plan.estimator.name!r}{share}"

    def _toss(self) -> float:
        """A number from 0 to 1, the same in all processes where they have a seed in common."""
        if self.seed is not None:
            return float(torch.rand((), generator=torch.Generator().manual_seed(~self.seed & SEEDS)))
        on_cpu = self.generator is not None and self.generator.device.type == "cpu"
        return float(torch.rand((), generator=self.generator if on_cpu else None))

    def run(
        self, losses: Losses, masks: int, drawer: Drawer, layers: Collection[NoiseLayer] | None = None
    ) -> Float[Tensor, "masks batch"]:
        """Losses under each mask; the first pass also looks for dropout that is not ours."""

        def one() -> Tensor:
            result = losses(self.called)
            if not isinstance(result, Tensor):
                raise DropoutError(f"loss: want a tensor of one loss per example, got {type(result).__name__}")
            return result

        if not self.first_pass:
            result, _ = run(self.model, one, masks, drawer, layers)
        else:
            with functional_dropout(self.model, self.unreached):
                result, reached = run(self.model, one, masks, drawer, watched=True)
            report_unreached(self.layers, reached, self.unreached)
        self.check_shape(result)
        self.first_pass = False
        return result

    def check_shape(self, result: Tensor) -> None:
        if result.dim() != 2 or not result.shape[1]:
            raise DropoutError(
                f"loss: want one loss per example, shape (batch,), got {tuple(result.shape[1:])}; use reduction='none',"
                " and .flatten(1).mean(1) where an example has several losses"
            )

    def _check_examples(self, step: Step, result: Tensor) -> None:
        for use in step.learned:
            rows = use.layout.rows(use.draw.z.shape[1:])
            if rows % result.shape[1]:
                name = next(name for name, layer in self.layers.items() if layer is use.layer)
                raise DropoutError(
                    f"loss: want one loss for each of the {rows} examples that reach dropout {name!r}, got"
                    f" {result.shape[1]}; sum or average the losses of each example, name the examples' axis by"
                    " batch_dim, or pass coupled=True to use batch totals"
                )

    def _is_coupled(self, step: Step, result: Tensor, losses: Losses) -> bool:
        """Exact, by one extra backward pass behind the masks, once for each mode and each loss function."""
        if self.coupled is not None:
            return self.coupled
        if result.shape[1] == 1:  # one example has no others, and says nothing of larger batches
            return any(use.draw.z.shape[1:][use.layout.axis] > 1 for use in step.learned)
        mode = (
            tuple(module.training for module in self.model.modules()),
            getattr(inspect.unwrap(losses), "__code__", None),
            tuple(use.layer for use in step.learned),
        )
        if mode in self._doubtful:
            self._doubtful[mode] += 1
        # Looked at again in steps 2, 4, 8, …: slopes that are 0 at first do not stay so, or do not matter.
        if mode not in self._layouts or _is_power_of_two(self._doubtful.get(mode, 0)):
            with checkpoints_explained():
                found, certain = _layouts(step, result)
            if certain:
                self._doubtful.pop(mode, None)
            else:
                self._doubtful.setdefault(mode, 1)
            fits = all(result.shape[1] <= max(use.draw.z.shape[1:]) for use in step.learned)
            if found is None and not fits:
                self._check_examples(step, result)
            self._layouts[mode] = found
            shared = [name for name, m in self.model.named_modules() if isinstance(m, nn.SyncBatchNorm) and m.training]
            if found is None and shared and processes.count() > 1:
                raise DropoutError(
                    f"{shared[0]}: want no SyncBatchNorm behind a dropout, through which losses depend on the masks of other"
                    " processes; use LayerNorm or GroupNorm there, or put the dropout behind the last one"
                )
            if found is None:
                warnings.warn(
                    "the loss of one example depends on the masks of others (BatchNorm in training mode behind a dropout,"
                    " or a batch_dim that is not the examples' axis): using the difference of batch totals, which is"
                    " exact but noisier",
                    stacklevel=5,
                )
        layouts = self._layouts[mode]
        for use, layout in zip(step.learned, layouts or (), strict=bool(layouts)):
            use.layout = layout
        return layouts is None


def _is_power_of_two(count: int) -> bool:
    return count > 0 and count & (count - 1) == 0


def _layouts(step: Step, losses: Tensor) -> tuple[list[Layout] | None, bool]:
    """Where each mask has the examples, by slopes of some of them, and whether each slope told something.

    No layouts, ``None``, where some examples are not independent.
    """
    uses = [use for use in step.learned if use.stack.requires_grad]  # not those drawn under no_grad
    found = {id(use): use.layout for use in step.learned}
    if not uses or not losses.requires_grad:
        return list(found.values()), True
    touched: list[list[Tensor]] = [[] for _ in uses]
    for group in _groups(losses.shape[1]):
        slopes = torch.autograd.grad(
            losses[0, group].sum(), [use.stack for use in uses], retain_graph=True, allow_unused=True
        )
        for use, slope, seen in zip(uses, slopes, touched, strict=True):
            # A slope of NaN is 0 × ∞ of another example, and no coupling.
            seen.append(torch.zeros_like(use.draw.z[0]) if slope is None else slope[0].nan_to_num(0.0))
    for use, seen in zip(uses, touched, strict=True):
        axes = sorted(range(seen[0].dim()), key=lambda axis: axis != use.layout.axis % seen[0].dim())
        candidates = [Layout(axis, interleaved) for axis in axes for interleaved in (False, True)]
        fitting = [layout for layout in candidates if _separates(layout, seen, losses.shape[1])]
        if not fitting:
            return None, True
        found[id(use)] = fitting[0]
    return list(found.values()), all(bool(slope.any()) for seen in touched for slope in seen)


def _groups(examples: int) -> tuple[slice, ...]:
    """The examples whose slopes are looked at: the first, the last, and every second, as ends of a graph may be alone."""
    return slice(0, 1), slice(examples - 1, examples), slice(0, examples, 2)


def _separates(layout: Layout, slopes: list[Tensor], examples: int) -> bool:
    """Whether each group of examples touches rows of its own alone."""
    rows = slopes[0].shape[layout.axis]
    if rows % examples or (rows == examples and layout.interleaved):
        return False
    for group, slope in zip(_groups(examples), slopes, strict=True):
        inside = torch.zeros(1, examples, dtype=torch.bool, device=slope.device)
        inside[:, group] = True
        touched = slope.movedim(layout.axis, 0).flatten(1).ne(0).any(1)
        if bool((touched & ~layout.spread(inside, rows)[0]).any()):
            return False
    return True


@dataclass(frozen=True)
class Evaluation:
    """What a rule works with: the layers, and the losses of one batch under masks of its choice."""

    runner: Runner
    function: Losses
    """Takes the model and the batch, returns one loss per example."""
    batch: tuple[Any, ...] = ()
    shared: bool = False
    """Whether several processes train the model together."""

    @property
    def layers(self) -> Mapping[str, NoiseLayer]:
        return self.runner.layers

    def losses(self, estimator: Estimator | None = None) -> Float[Tensor, "masks batch"]:
        """Losses under each mask, with gradients for weights and logits behind them."""
        return self.runner.evaluate(self._of(self.batch), estimator)

    def sampled(self, drawer: Drawer, masks: int) -> Float[Tensor, "masks batch"]:
        """Losses under masks that ``drawer`` draws; no estimator, so gradients for the weights alone."""
        losses = self._of(self.batch)
        result = self.runner.run(losses, masks, drawer, self.layers.values())
        self.runner.watch.losses(result, losses)
        return result

    def losses_on(self, batch: tuple[Any, ...]) -> Float[Tensor, "batch"]:
        """Losses of a held-out batch, in whatever state the model is."""
        if not self.batch:
            raise DropoutError(
                "loss: want one that takes the batch too, so that it can be asked of held-out data, as in"
                " objective(lambda m, x, y: F.cross_entropy(m(x), y, reduction='none'), x, y); got no batch"
            )
        result = self.function(self.runner.called, *batch)
        self.runner.check_shape(result[None])
        self.runner.watch.losses(result[None], self._of(batch), "held-out data")
        return result

    def with_batch(self, batch: tuple[Any, ...]) -> "Evaluation":
        """The same losses, of another batch."""
        return Evaluation(self.runner, self.function, batch, self.shared)

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over all processes that train the model, in place."""
        if self.shared:
            dist.all_reduce(values)
        return values

    def _of(self, batch: tuple[Any, ...]) -> Losses:
        if not batch:
            return self.function

        def losses(model: nn.Module) -> Tensor:
            return self.function(model, *batch)

        losses.__wrapped__ = self.function  # pyright: ignore[reportFunctionMemberAccess] — as functools.wraps does
        return losses
