r"""From per-example losses to one loss whose backward pass serves weights and rates together.

:class:`Objective` runs the model under the estimator's masks and checks what comes back; *how* rates are learned is a
:class:`lbdrop.rules.bound.Rule`, and how their gradients come about :mod:`lbdrop.step`. Weights get theirs by autograd,
averaged over all masks drawn.
"""

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lbdrop import estimators
from lbdrop.dropout import NoiseLayer, hold_in_range, learned_layers, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.guards import processes
from lbdrop.guards.checkpointing import checkpoints_explained
from lbdrop.guards.finite import Watch
from lbdrop.passes.run import Drawer, run
from lbdrop.rules.balanced import Balanced
from lbdrop.rules.bound import Bound, Rule
from lbdrop.sites.watch import functional_dropout
from lbdrop.step import Step

__all__ = ["Objective", "parameter_groups"]

# Least variance for its time at every number of masks (benchmarks/variance.py); four, because two leave more than a fifth
# of ARM's variance at keep .8, and eight cost a long step and much memory where most of a network lies behind a dropout.
DEFAULT_ESTIMATOR = "double-cv-4"


class _Batch:
    """One batch, as a rule sees it."""

    def __init__(self, objective: "Objective", losses: Callable[..., Tensor], batch: tuple[Any, ...]):
        self._objective, self._losses, self._batch = objective, losses, batch

    @property
    def batch(self) -> tuple[Any, ...]:
        return self._batch

    def instead(self, batch: tuple[Any, ...]) -> "_Batch":
        return _Batch(self._objective, self._losses, batch)

    def summed(self, values: Tensor) -> Tensor:
        if self._objective.shared:
            dist.all_reduce(values)
        return values

    @property
    def layers(self) -> Mapping[str, NoiseLayer]:
        return self._objective.layers

    def losses(self, estimator: estimators.Estimator | None = None) -> Float[Tensor, "masks batch"]:
        return self._objective.evaluate(self._bound(self._batch), estimator)

    def sampled(self, drawer: Drawer, masks: int) -> Float[Tensor, "masks batch"]:
        bound = self._bound(self._batch)
        result = self._objective.run(bound, masks, drawer, self._objective.layers.values())
        self._objective.watch.losses(result, bound)
        return result

    def elsewhere(self, batch: tuple[Any, ...]) -> Float[Tensor, "batch"]:
        if not self._batch:
            raise DropoutError(
                "loss: want one that takes the batch too, so that it can be asked of held-out data, as in"
                " objective(lambda m, x, y: F.cross_entropy(m(x), y, reduction='none'), x, y); got no batch"
            )
        result = self._losses(self._objective.core, *batch)
        self._objective.check_losses(result[None])
        self._objective.watch.losses(result[None], self._bound(batch), "held-out data")
        return result

    def _bound(self, batch: tuple[Any, ...]) -> Callable[[nn.Module], Tensor]:
        if not batch:
            return self._losses

        def bound(model: nn.Module) -> Tensor:
            return self._losses(model, *batch)

        bound.__wrapped__ = self._losses  # pyright: ignore[reportFunctionMemberAccess] — all of functools.wraps that is wanted
        return bound


class Objective:
    """Per-example losses in, one loss out: its ``backward()`` gives weights and rates their gradients.

    Args:
        model: a model with learned dropouts (see :func:`lbdrop.convert`).
        rule: how rates are learned; by default :class:`~lbdrop.rules.balanced.Balanced` if there is held-out data, otherwise
            :class:`~lbdrop.rules.bound.Bound`, which wants ``examples``.
        held_out: batches of data for the rates to follow: a ``DataLoader``, say. Losses are then asked for as
            ``objective(losses, *batch)``.
        steps: with ``held_out``, how many training steps the run has.
        examples: how many examples the training set has. With ``held_out``, those held out are given back, that is, trained
            on as well, once rates are settled; without it they never are.
        estimator: ``"double-cv-4"`` (four masks), ``"double-cv"`` (two), ``"arm"`` (the paper's), ``"disarm"``,
            ``"rloo-4"``, ``"arms-4"``, … (:mod:`lbdrop.estimators`).
        masks: through how many masks weights are trained where no rate is learned; an estimator has its own number.
        coupled: whether the loss of one example depends on the masks of others, as BatchNorm in training mode makes it;
            ``None`` finds out by itself. Where it does, the difference of batch totals replaces that of single examples.
        unreached: ``"error"`` or ``"warn"``, about dropouts that a pass does not reach.
        check: refuse losses and gradients that are NaN or infinite before anything is changed, and name them. On a GPU the
            error about losses comes from ``backward()``, that about gradients from the next one. Gradients under a loss scale
            are left to its scaler.
        generator: draws the masks; with several processes one of its own for each, seeded by rank. By default masks follow
            from the global random state and the process.

    Example:
        >>> model = lbdrop.convert(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 2)), verbose=False)
        >>> objective = Objective(model, examples=100)
        >>> x, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
        >>> loss = objective(lambda m: torch.nn.functional.cross_entropy(m(x), y, reduction="none"))
        >>> loss.backward()
        >>> model[1].logit.grad is not None
        True
    """

    def __init__(
        self,
        model: nn.Module,
        rule: Rule | None = None,
        *,
        held_out: Iterable[Any] | None = None,
        steps: int | None = None,
        examples: int | None = None,
        estimator: str = DEFAULT_ESTIMATOR,
        masks: int = 1,
        coupled: bool | None = None,
        unreached: str = "error",
        check: bool = True,
        generator: torch.Generator | None = None,
    ):
        # A compiled model is run as it was written: masks share their prefix by vmap, which compiled code does not see.
        self.core, _ = processes.unwrap(model)
        self.layers = noise_layers(self.core)
        if rule is not None and held_out is not None:
            raise DropoutError("rule and held_out: want one of them; a rule of its own has its own held-out data")
        if rule is None and held_out is not None:
            if steps is None:
                raise DropoutError(
                    "steps: want how many training steps the run has, as in Objective(model, held_out=loader,"
                    " steps=epochs * len(train_loader)); rates are settled after a share of them"
                )
            rule = Balanced(self.core, held_out, steps=steps, examples=examples, masks=masks, generator=generator)
        elif rule is None:
            if examples is None:
                raise DropoutError(
                    "examples: want the size of the training set, as in Objective(model, examples=50_000), or data for the"
                    " rates to follow, as in Objective(model, held_out=loader, steps=10_000)"
                )
            rule = Bound(self.core, examples)
        self.rule = rule
        self.estimator = estimators.get(estimator)
        self.masks = masks
        self.coupled = coupled
        self.unreached = unreached
        self.watch = Watch(self.core, check)
        self.generator = generator
        self._coupled_in: dict[tuple[Any, ...], bool] = {}
        self._looked_at = False
        self.model = model

    @property
    def model(self) -> nn.Module:
        """The model, or what wraps it for several processes: give it here if it was wrapped after the objective was made."""
        return self._model

    @model.setter
    def model(self, model: nn.Module) -> None:
        core, wrapper = processes.unwrap(model)
        if core is not self.core:
            raise DropoutError("model: want the objective's own, wrapped; got another one; make an objective for that")
        known = None if wrapper is None else processes.averaged_parameters(wrapper)
        missing = [name for name, p in core.named_parameters() if known is not None and id(p) not in known]
        if missing:
            raise DropoutError(
                f"model: want one that was wrapped with all its parameters, got {missing[:4]} added since, which no process"
                " would share; convert the model and make its objective first, wrap it then, and set objective.model to it"
            )
        self._model, self._wrapper = model, wrapper

    def __call__(self, losses: Callable[..., Tensor], *batch: Any) -> Float[Tensor, ""]:
        """The loss of one batch; ``losses`` takes the model, and the batch if given, and returns one loss per example."""
        if torch.is_grad_enabled():
            self._warn_if_alone()
            hold_in_range(self.layers.values())
        self.watch.in_step = torch.is_grad_enabled()
        try:
            with processes.per_process_randomness(next(iter(self.layers.values())).logit.device):
                result = processes.call_through_wrapper(
                    self._wrapper, lambda: self.rule.loss(_Batch(self, losses, batch))
                )
        finally:
            self.watch.in_step = False
        self.watch.backward(result)
        return result

    @property
    def shared(self) -> bool:
        """Whether several processes train this model together."""
        wrapped = self._wrapper is not None or DistributedDataParallel._active_ddp_module is not None
        return _several() and wrapped

    def _warn_if_alone(self) -> None:
        if _several() and not self.shared and not self._looked_at:
            warnings.warn(
                f"one of {dist.get_world_size()} processes, but nothing averages gradients over them: give the objective the"
                " wrapped model, as in Objective(DistributedDataParallel(model), …), unless each process trains a model of"
                " its own or you average by hand",
                stacklevel=3,
            )

    def evaluate(
        self, losses: Callable[[nn.Module], Tensor], estimator: estimators.Estimator | None = None
    ) -> Float[Tensor, "masks batch"]:
        """Run the model under the estimator's masks; what every rule is made of."""
        step = Step(learned_layers(self.core), estimator or self.estimator, self.generator, self.masks)
        result = self.run(losses, step.masks, step)
        learns = any(logit.requires_grad for logit in step.logits)
        differentiated = torch.is_grad_enabled() and (result.requires_grad or learns)
        self.watch.losses(result, losses)
        if differentiated:
            self._check_batch(step, result)
            step.coupled = self._is_coupled(step, result, losses)
            result = step.weigh(result)
        step.release()
        return result

    def run(
        self,
        losses: Callable[[nn.Module], Tensor],
        masks: int,
        drawer: Drawer,
        layers: Collection[NoiseLayer] | None = None,
    ) -> Float[Tensor, "masks batch"]:
        """The losses under each mask, of all layers unless told; the first time with a look at what the pass goes around."""

        def one() -> Tensor:
            result = losses(self.core)
            if not isinstance(result, Tensor):
                raise DropoutError(f"loss: want a tensor of one loss per example, got {type(result).__name__}")
            return result

        if self._looked_at:
            result, _ = run(self.core, one, masks, drawer, layers)
        else:
            with functional_dropout(self.core, self.unreached):
                result, reached = run(self.core, one, masks, drawer)
            self._report_unreached(reached)
        self.check_losses(result)
        self._looked_at = True
        return result

    def _report_unreached(self, reached: set[NoiseLayer]) -> None:
        missing = [name for name, layer in self.layers.items() if layer not in reached]
        if missing:
            message = (
                f"dropout never reached in a pass: {missing}; the model's forward goes around it, so its rate cannot be"
                " learned. Call the layer in forward, or allow it with unreached='warn'"
            )
            if self.unreached == "error":
                raise DropoutError(message)
            warnings.warn(message, stacklevel=4)

    def check_losses(self, result: Tensor) -> None:
        if result.dim() != 2 or not result.shape[1]:
            raise DropoutError(
                f"loss: want one loss per example, shape (batch,), got {tuple(result.shape[1:])}; use reduction='none',"
                " and .flatten(1).mean(1) where an example has several losses"
            )

    def _check_batch(self, step: Step, result: Tensor) -> None:
        if self.coupled:
            return
        for use in step.learned:
            batch = use.draw.z.shape[1:][use.layer.batch_dim]
            if batch != result.shape[1]:
                name = next(name for name, layer in self.layers.items() if layer is use.layer)
                raise DropoutError(
                    f"loss: want one loss for each of the {batch} examples that reach dropout {name!r}, got"
                    f" {result.shape[1]}; sum or average the losses of each example, name the examples' axis by"
                    " batch_dim, or pass coupled=True to use batch totals"
                )

    def _is_coupled(self, step: Step, result: Tensor, losses: Callable[[nn.Module], Tensor]) -> bool:
        """Exact, at the cost of one extra backward pass behind the masks, once for each mode and each loss function."""
        if self.coupled is not None:
            return self.coupled
        if result.shape[1] == 1:
            return False  # one example has no others, and says nothing of larger batches
        mode = (
            tuple(module.training for module in self.core.modules()),
            getattr(inspect.unwrap(losses), "__code__", None),
        )
        if mode not in self._coupled_in:
            with checkpoints_explained():
                self._coupled_in[mode] = coupled = step.couples(result)
            shared = [name for name, m in self.core.named_modules() if isinstance(m, nn.SyncBatchNorm) and m.training]
            if coupled and shared and processes.count() > 1:
                raise DropoutError(
                    f"{shared[0]}: want no SyncBatchNorm behind a dropout, through which losses depend on the masks of other"
                    " processes; use LayerNorm or GroupNorm there, or put the dropout behind the last one"
                )
            if coupled:
                warnings.warn(
                    "the loss of one example depends on the masks of others (BatchNorm in training mode behind a dropout,"
                    " or a batch_dim that is not the examples' axis): using the difference of batch totals, which is"
                    " exact but noisier",
                    stacklevel=4,
                )
        return self._coupled_in[mode]

    def __repr__(self) -> str:
        return f"Objective({self.rule!r}, estimator={self.estimator.name!r}, layers={list(self.layers)})"


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def parameter_groups(model: nn.Module, rate_lr: float | None = None, **options: Any) -> list[dict[str, Any]]:
    """Parameter groups, weights and rates: rates are not weights, so they get no weight decay.

    Rates that follow held-out data are moved by their rule, and have no gradient. The responses of
    :class:`~lbdrop.rules.selftuning.SelfTuning` are a third group, which learns like the rates.

    Args:
        model: a model with learned dropouts.
        rate_lr: learning rate of the logits, and of the responses under self-tuning; by default the optimiser's.
        options: settings of the weights' group, such as ``lr`` or ``weight_decay``.
    """
    logits = {id(layer.logit): layer.logit for layer in noise_layers(model).values() if layer.learns}
    rates: dict[str, Any] = {"params": list(logits.values()), "weight_decay": 0.0}
    if rate_lr is not None:
        rates["lr"] = rate_lr
    answers = {
        id(p): p for layer in noise_layers(model).values() if layer.responses for p in layer.responses.parameters()
    }
    weights = [p for p in model.parameters() if id(p) not in logits and id(p) not in answers]
    groups = [{"params": weights, **options}, rates]
    if answers:  # relative changes per logit, so of the rates' scale whatever that of the weights is
        groups.append({**rates, "params": list(answers.values())})
    return groups
