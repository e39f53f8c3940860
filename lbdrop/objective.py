r"""From per-example losses to one loss whose backward pass serves weights and rates together.

$$ \mathcal{L} = \frac1M \sum_{i=1}^{M} \mathbb{E}_{z_i}\big[\mathcal{E}_i(z_i)\big] + \frac1N\,\mathrm{KL} $$

is the paper's equation 3 divided by $N$. Weights get their gradient by autograd, averaged over all masks drawn; logits get
theirs from an estimator, at the end of the same backward pass, when every loss and every slope $\partial f/\partial z$ is
known. :class:`Objective` runs the model and checks what comes back; *how* rates are learned is a :class:`Rule`.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop import estimators
from lbdrop.dropout import LearnableDropout, learned_layers
from lbdrop.errors import DropoutError
from lbdrop.graph import neighbours
from lbdrop.passes import run
from lbdrop.priors import bernoulli_kl, gaussian_kl, outgoing_norms
from lbdrop.watch import functional_dropout

__all__ = ["Bound", "Objective", "Rule", "parameter_groups"]

DEFAULT_ESTIMATOR = "double-cv"


class _Use:
    """One use of a layer in a step: what was drawn there, and which units were active."""

    def __init__(self, layer: LearnableDropout, draw: estimators.Draw, keep: Tensor, stack: Tensor):
        self.layer, self.draw, self.keep, self.stack = layer, draw, keep, stack
        self.active: Tensor | None = None
        self.slope: Tensor | None = None

    def see(self, x: Tensor) -> None:
        """A unit whose activation is 0 under every mask has no influence: its true gradient is 0, an estimate noise."""
        if self.layer.scale == "alpha":
            return  # there a dropped unit is not 0
        active = x != 0
        mask_dims = self.draw.z.dim() - 1
        if active.dim() > mask_dims:
            active = active.any(0)
        if self.layer.channels:
            spans = tuple(axis for axis, size in enumerate(self.draw.z.shape[1:]) if size == 1 != active.shape[axis])
            active = active.any(spans, keepdim=True) if spans else active
        self.active = active if self.active is None else self.active | active


class _Step:
    """The masks of one step, and the gradient of their logits once the losses are known."""

    def __init__(
        self,
        layers: Mapping[str, LearnableDropout],
        estimator: estimators.Estimator,
        generator: torch.Generator | None,
    ):
        self.estimator = estimator
        self.generator = generator
        self.logits = list({id(layer.logit): layer.logit for layer in layers.values()}.values())
        self.losses: Tensor
        self.weights: Tensor
        self.coupled = False
        self.begin()

    def begin(self) -> None:
        self.uses: list[_Use] = []
        tokens = _Logits.apply(self, *self.logits)
        self.tokens = {id(logit): token for logit, token in zip(self.logits, tokens, strict=True)}

    def draw(self, layer: LearnableDropout, shape: tuple[int, ...], x: Tensor) -> Tensor:
        keep = layer.spread(layer.keep.detach(), len(shape))
        draw = self.estimator.draw(keep, self.estimator.masks, shape, self.generator)
        use = _Use(layer, draw, keep, draw.z)
        use.see(x)
        use.stack = _Masks.apply(use, draw.z.to(x.dtype), self.tokens[id(layer.logit)])
        self.uses.append(use)
        return use.stack

    def seen(self, use: int, x: Tensor) -> None:
        self.uses[use].see(x)

    def couples(self, losses: Tensor) -> bool:
        """Whether the loss of the first or last example has a slope in the masks of any other."""
        stacks = [use.stack for use in self.uses]
        for example in {0, losses.shape[1] - 1}:
            slopes = torch.autograd.grad(losses[0, example], stacks, retain_graph=True, allow_unused=True)
            for use, slope in zip(self.uses, slopes, strict=True):
                if slope is None:
                    continue
                rows = slope[0].movedim(use.layer.batch_dim, 0).flatten(1).ne(0).any(1)
                own = torch.zeros_like(rows)
                own[example : example + 1] = True  # a slice: the axis may be shorter than the batch
                if bool((rows & ~own).any()):
                    return True
        return False

    def release(self) -> None:
        """Let go of the graph: a node that holds its own output is never freed."""
        self.tokens = {}
        for use in self.uses:
            del use.stack

    def site(self, use: _Use) -> estimators.Site:
        # The losses as this backward pass weighs them: loss scaling, accumulation, anything done to the result counts.
        n = self.losses.shape[0]
        losses = (self.losses * self.weights * n).to(use.draw.z.dtype)
        axes = tuple(range(1, use.draw.z.dim()))
        if self.coupled:
            losses = losses.sum(1, keepdim=True)
        else:
            axes = tuple(axis for axis in axes if axis != use.layer.batch_dim % (use.draw.z.dim() - 1) + 1)
        shape = [n, *(1 for _ in use.draw.z.shape[1:])]
        if not self.coupled:
            shape[use.layer.batch_dim % (use.draw.z.dim() - 1) + 1] = losses.shape[1]
        slope = None if use.slope is None else use.slope.to(use.draw.z.dtype) * n
        return estimators.Site(use.draw, use.keep, slope, losses.view(shape), lambda t: t.sum(axes, keepdim=True))

    def logit_gradients(self) -> list[Tensor]:
        gradients = {id(logit): torch.zeros_like(logit) for logit in self.logits}
        uses = [use for use in self.uses if use.slope is not None]  # a mask without influence has none
        for use, gradient in zip(uses, self.estimator.gradients([self.site(use) for use in uses]), strict=True):
            if use.active is not None:
                gradient = gradient * use.active
            logit = use.layer.logit
            if logit.dim():
                gradient = gradient.movedim(use.layer.unit_dim, -1).flatten(0, -2).sum(0)
            gradients[id(logit)] += gradient.sum() if not logit.dim() else gradient
        return [gradients[id(logit)] for logit in self.logits]


class _Logits(torch.autograd.Function):
    """Hands each layer its logits; backward runs after every mask's, and returns what the estimator makes of them."""

    @staticmethod
    def forward(ctx: Any, step: _Step, *logits: Tensor) -> tuple[Tensor, ...]:
        ctx.step = step
        return tuple(logit.view_as(logit) for logit in logits)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.step.logit_gradients()


class _Masks(torch.autograd.Function):
    """The masks of one layer; backward notes the slope ∂f/∂z and leaves the gradient to :class:`_Logits`."""

    @staticmethod
    def forward(ctx: Any, use: _Use, z: Tensor, token: Tensor) -> Tensor:
        ctx.use = use
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, None, Tensor]:
        (ctx.use.slope,) = grad_outputs
        return None, None, torch.zeros_like(ctx.use.layer.logit)


class _Losses(torch.autograd.Function):
    """Notes how the caller's backward pass weighs each loss."""

    @staticmethod
    def forward(ctx: Any, step: _Step, losses: Tensor) -> Tensor:
        ctx.step = step
        return losses.view_as(losses)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, Tensor]:
        (ctx.step.weights,) = grad_outputs
        return None, grad_outputs[0]


class Evaluation:
    """What a rule works with: the layers, and the losses of one batch under masks of its choice."""

    def __init__(self, objective: "Objective", losses: Callable[[nn.Module], Tensor]):
        self.layers = objective.layers
        self._objective = objective
        self._losses = losses

    def losses(self, estimator: estimators.Estimator | None = None) -> Float[Tensor, "masks batch"]:
        """Per-example losses under each mask, with gradients for weights and logits behind them."""
        return self._objective.evaluate(self._losses, estimator)


@runtime_checkable
class Rule(Protocol):
    """How rates are learned: the scalar to minimise, from the losses of one batch. The one place to add a way."""

    def loss(self, evaluation: Evaluation) -> Float[Tensor, ""]: ...


class Bound:
    """The paper's objective: the expected loss plus the KL of the masks, in units of loss per example.

    Args:
        model: the converted model.
        examples: how many examples the training set has, the paper's N.
        s: standard deviation of the Gaussian prior on the weights that a dropped unit feeds.
        prior_keep: keep rate of the Bernoulli prior, for dropouts that feed no weights that are known.
        weight: multiplies the KL; 1 is the bound itself, 0 the training loss alone.
    """

    def __init__(self, model: nn.Module, examples: int, s: float = 1.0, prior_keep: float = 0.5, weight: float = 1.0):
        if examples < 1:
            raise DropoutError(f"examples: want the size of the training set, at least 1, got {examples}")
        if s <= 0 or not 0 < prior_keep < 1 or weight < 0:
            raise DropoutError(
                f"prior: want s > 0, prior_keep in (0, 1) and weight ≥ 0, got s={s}, prior_keep={prior_keep},"
                f" weight={weight}"
            )
        self.examples, self.s, self.prior_keep, self.weight = examples, s, prior_keep, weight
        self.consumers = {
            name: [model.get_submodule(consumer) for consumer in found.consumers]
            for name, found in neighbours(model).items()
        }
        self.last_kl: Tensor | None = None

    def loss(self, evaluation: Evaluation) -> Float[Tensor, ""]:
        expected = evaluation.losses().mean()
        if not self.weight:
            return expected
        kl = self.kl(evaluation.layers)
        self.last_kl = kl.detach()
        return expected + self.weight / self.examples * kl

    def kl(self, layers: Mapping[str, LearnableDropout]) -> Float[Tensor, ""]:
        """The KL of all layers, up to a constant."""
        return torch.stack([self._layer_kl(name, layer) for name, layer in layers.items()]).sum()

    def _layer_kl(self, name: str, layer: LearnableDropout) -> Float[Tensor, ""]:
        units = layer.units or layer.width
        assert units is not None, "the KL is asked for after a forward pass"
        # An alpha-dropped unit is not zero, so its weights are never switched off: only the mask has a prior.
        if self.consumers.get(name) and layer.scale != "alpha":
            norms = torch.stack([outgoing_norms(consumer, units) for consumer in self.consumers[name]]).sum(0)
            return gaussian_kl(layer, norms, self.s)
        return bernoulli_kl(layer.logit, self.prior_keep).sum() * (1 if layer.units else units)

    def __repr__(self) -> str:
        priors = {name: f"Gaussian, s={self.s}" if found else f"Bernoulli, keep={self.prior_keep}"
                  for name, found in self.consumers.items()}  # fmt: skip
        return f"Bound(examples={self.examples}, weight={self.weight}, priors={priors})"


class Objective:
    """Per-example losses in, one loss out: its ``backward()`` gives weights and rates their gradients.

    Args:
        model: a model with learned dropouts (see :func:`lbdrop.convert`).
        rule: how rates are learned; by default :class:`Bound`, which wants ``examples``.
        examples: how many examples the training set has.
        estimator: ``"double-cv"``, ``"arm"``, ``"disarm"``, ``"rloo-4"``, ``"arms-4"``, … (:mod:`lbdrop.estimators`).
        coupled: whether the loss of one example depends on the masks of others, as BatchNorm in training mode makes it;
            ``None`` finds out by itself. Where it does, the difference of batch totals replaces that of single examples.
        unreached: ``"error"`` or ``"warn"``, about dropouts that a pass does not reach.
        check: look at every loss for NaN and infinity before anything is changed; on a GPU this waits for the step.
        generator: draws the masks.

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
        examples: int | None = None,
        estimator: str = DEFAULT_ESTIMATOR,
        coupled: bool | None = None,
        unreached: str = "error",
        check: bool = True,
        generator: torch.Generator | None = None,
    ):
        self.model = model
        # A compiled model is run as it was written: masks share their prefix by vmap, which compiled code does not see.
        self.core: nn.Module = getattr(model, "_orig_mod", model)
        self.layers = learned_layers(self.core)
        if rule is None:
            if examples is None:
                raise DropoutError(
                    "examples: want the size of the training set, as in Objective(model, examples=50_000)"
                )
            rule = Bound(self.core, examples)
        self.rule = rule
        self.estimator = estimators.get(estimator)
        self.coupled = coupled
        self.unreached = unreached
        self.check = check
        self.generator = generator
        self._coupled_in: dict[int, bool] = {}
        self._looked_at = False

    def __call__(self, losses: Callable[[nn.Module], Tensor]) -> Float[Tensor, ""]:
        """The loss of one batch; ``losses`` takes the model and returns one loss per example."""
        return self.rule.loss(Evaluation(self, losses))

    def evaluate(
        self, losses: Callable[[nn.Module], Tensor], estimator: estimators.Estimator | None = None
    ) -> Float[Tensor, "masks batch"]:
        """Run the model under the estimator's masks; what every rule is made of."""
        step = _Step(self.layers, estimator or self.estimator, self.generator)
        if self._looked_at:
            result, reached = run(self.core, lambda: losses(self.core), step.estimator.masks, step)
        else:
            with functional_dropout(self.core, self.unreached):
                result, reached = run(self.core, lambda: losses(self.core), step.estimator.masks, step)
            self._report_unreached(reached)
        self._check_losses(result)
        if torch.is_grad_enabled() and result.requires_grad:
            step.losses = result.detach()
            self._check_batch(step, result)
            step.coupled = self._is_coupled(step, result)
            result = _Losses.apply(step, result)
        step.release()
        self._looked_at = True
        return result

    def _report_unreached(self, reached: set[LearnableDropout]) -> None:
        missing = [name for name, layer in self.layers.items() if layer not in reached]
        if missing:
            message = (
                f"dropout never reached in a pass: {missing}; the model's forward goes around it, so its rate cannot be"
                " learned. Call the layer in forward, or allow it with unreached='warn'"
            )
            if self.unreached == "error":
                raise DropoutError(message)
            warnings.warn(message, stacklevel=4)

    def _check_losses(self, result: Any) -> None:
        if not isinstance(result, Tensor):
            raise DropoutError(f"loss: want a tensor of one loss per example, got {type(result).__name__}")
        if result.dim() != 2 or not result.shape[1]:
            raise DropoutError(
                f"loss: want one loss per example, shape (batch,), got {tuple(result.shape[1:])}; use reduction='none',"
                " and .flatten(1).mean(1) where an example has several losses"
            )
        if self.check and not bool(torch.isfinite(result).all()):
            bad = (~torch.isfinite(result)).any(0).nonzero().flatten().tolist()
            raise DropoutError(
                f"loss: want finite numbers, got NaN or infinity for examples {bad[:8]} of this batch; look at their"
                " inputs, or lower the learning rate. No parameter has been changed"
            )

    def _check_batch(self, step: _Step, result: Tensor) -> None:
        if self.coupled:
            return
        for use in step.uses:
            batch = use.draw.z.shape[1:][use.layer.batch_dim]
            if batch != result.shape[1]:
                name = next(name for name, layer in self.layers.items() if layer is use.layer)
                raise DropoutError(
                    f"loss: want one loss for each of the {batch} examples that reach dropout {name!r}, got"
                    f" {result.shape[1]}; sum or average the losses of each example, name the examples' axis by"
                    " batch_dim, or pass coupled=True to use batch totals"
                )

    def _is_coupled(self, step: _Step, result: Tensor) -> bool:
        """Exact, at the cost of one extra backward pass through the part behind the masks, once for each mode."""
        if self.coupled is not None:
            return self.coupled
        mode = sum(module.training for module in self.core.modules())
        if mode not in self._coupled_in:
            self._coupled_in[mode] = coupled = step.couples(result)
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


def parameter_groups(model: nn.Module, rate_lr: float | None = None, **options: Any) -> list[dict[str, Any]]:
    """Two parameter groups, weights and rates: rates are not weights, so they get no weight decay.

    Args:
        model: a model with learned dropouts.
        rate_lr: learning rate of the logits; by default the optimiser's.
        options: settings of the weights' group, such as ``lr`` or ``weight_decay``.
    """
    logits = {id(layer.logit): layer.logit for layer in learned_layers(model).values()}
    rates: dict[str, Any] = {"params": list(logits.values()), "weight_decay": 0.0}
    if rate_lr is not None:
        rates["lr"] = rate_lr
    return [{"params": [p for p in model.parameters() if id(p) not in logits], **options}, rates]
