r"""One step's masks, and the gradient of their logits at the end of the step's own backward pass.

Three nodes in the autograd graph do it. Losses note how the caller weighs them (loss scaling, accumulation); each layer's
masks note their slopes $\partial f/\partial z$; and the logits, which autograd reaches last, ask the estimator for their
gradients when all of that is known. So one ``backward()`` serves weights and rates, and any optimiser follows.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lbdrop import estimators
from lbdrop._torch import indicator
from lbdrop.dropout import LearnableDropout, NoiseLayer
from lbdrop.masks import layout_of
from lbdrop.passes.drawer import Drawer

__all__ = ["Step"]


class _Use:
    """One use of a layer in a step: what was drawn there, and which units were active."""

    def __init__(self, layer: LearnableDropout, draw: estimators.Draw, keep: Tensor, stack: Tensor):
        self.layer, self.draw, self.keep, self.stack = layer, draw, keep, stack
        self.layout = layout_of(layer)
        self.active: Tensor | None = None
        self.slope: Tensor | None = None

    def see(self, x: Tensor) -> None:
        """A unit whose activation is 0 under every mask has no influence: its true gradient is 0, an estimate noise."""
        if self.layer.scale == "alpha":
            return  # there a dropped unit is not 0
        active = indicator(torch.ne, x, 0.0)
        mask_dims = self.draw.z.dim() - 1
        if active.dim() > mask_dims:
            active = active.amax(0)
        spans = tuple(axis for axis, size in enumerate(self.draw.z.shape[1:]) if size == 1 != active.shape[axis])
        active = active.amax(spans, keepdim=True) if spans else active
        self.active = active if self.active is None else torch.maximum(self.active, active)


class Step(Drawer):
    """The masks of one step, and the gradient of their logits once the losses are known."""

    def __init__(
        self,
        layers: Mapping[str, LearnableDropout],
        estimator: estimators.Estimator,
        generator: torch.Generator | None,
        masks: int = 1,
        share: float = 1.0,
    ):
        self.estimator, self.generator, self.share = estimator, generator, share
        self.masks = estimator.masks if layers else masks  # without learned rates one mask will do
        self.logits = list({id(layer.logit): layer.logit for layer in layers.values()}.values())
        self.losses: Tensor
        self.weights: Tensor
        self.coupled = False
        self.begin()

    def begin(self) -> None:
        self.uses: list[_Use | None] = []  # in the order of the pass; None for a rival's
        tokens = _Logits.apply(self, *self.logits) if self.logits else ()
        self.tokens = {id(logit): token for logit, token in zip(self.logits, tokens, strict=True)}

    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        if not isinstance(layer, LearnableDropout):  # a rival: its gradient, if any, goes through the mask itself
            self.uses.append(None)
            return layer.draw(self.masks, shape, x, self.generator)
        keep = layer.spread(layer.keep.detach(), len(shape))
        draw = self.estimator.draw(keep, self.masks, shape, self.generator)
        use = _Use(layer, draw, keep, draw.z)
        use.see(x)
        use.stack = _Masks.apply(use, draw.z.to(x.dtype), self.tokens[id(layer.logit)])
        self.uses.append(use)
        return use.stack

    def seen(self, use: int, x: Tensor) -> None:
        if (noted := self.uses[use]) is not None:
            noted.see(x)

    @property
    def learned(self) -> list[_Use]:
        return [use for use in self.uses if use is not None]

    def logit(self, layer: NoiseLayer) -> Tensor:  # whose path through 1/keep is weighed with the rest
        return layer.logit if self.share == 1 else self.tokens.get(id(layer.logit), layer.logit)

    def weigh(self, losses: Tensor) -> Tensor:
        """The losses, watched: their weights in the backward pass are what the estimator multiplies them by."""
        self.losses = losses.detach()
        return _Losses.apply(self, losses, *self.tokens.values())

    def release(self) -> None:
        """Let go of the graph: a node that holds its own output is never freed."""
        self.tokens = {}
        for use in self.learned:
            del use.stack

    def site(self, use: _Use) -> estimators.Site:
        # The losses as this backward pass weighs them: loss scaling, accumulation, anything done to the result counts.
        z = use.draw.z
        losses = (self.losses * self.weights).to(z.dtype)
        shape, examples, axis = [len(losses), *(1 for _ in z.shape[1:])], losses.shape[1], 0
        if self.coupled:
            losses, examples = losses.sum(1, keepdim=True), 1
        else:
            axis = use.layout.axis % (z.dim() - 1) + 1
            shape[axis] = z.shape[axis]
        others = tuple(each for each in range(1, z.dim()) if each != axis)

        def spread(values: Tensor) -> Tensor:
            return (use.layout.spread(values, shape[axis]) if axis else values).view(shape)

        def per_example(values: Tensor) -> Tensor:
            return use.layout.group(values.sum(others).view(len(values), -1), examples)

        # No slope: the mask is behind a step that cannot be differentiated, which does not matter to a loss difference.
        slope = torch.zeros_like(z) if use.slope is None else use.slope.to(z.dtype)
        return estimators.Site(use.draw, use.keep, slope, spread(losses), per_example, spread)

    def logit_gradients(self, *paths: Tensor) -> list[Tensor]:
        """For each logit; ``paths`` is what autograd brings: 0, or the path through 1/keep if that is weighed here."""
        gradients = {id(logit): path.clone() for logit, path in zip(self.logits, paths, strict=True)}
        sites = [self.site(use) for use in self.learned]  # none where the step trains weights alone
        for use, gradient in zip(self.learned, self.estimator.gradients(sites) if sites else (), strict=True):
            if use.active is not None:
                gradient = gradient * use.active
            # A mask's loss has an n-th of the weight that the mean over masks has, and estimators want that.
            gradients[id(use.layer.logit)] += self.masks * use.layout.collect(gradient, use.layer)
        return [gradients[id(logit)] / self.share for logit in self.logits]


class _Logits(torch.autograd.Function):
    """Hands each layer its logits; backward runs after every mask's, and returns what the estimator makes of them."""

    @staticmethod
    def forward(ctx: Any, step: Step, *logits: Tensor) -> tuple[Tensor, ...]:
        ctx.step = step
        return tuple(logit.view_as(logit) for logit in logits)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.step.logit_gradients(*grad_outputs)


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
    def forward(ctx: Any, step: Step, losses: Tensor, *tokens: Tensor) -> Tensor:
        # The logits are inputs so that their gradient is asked for even where no mask can be differentiated.
        ctx.step = step
        return losses.view_as(losses)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (ctx.step.weights,) = grad_outputs
        return None, grad_outputs[0], *(torch.zeros_like(logit) for logit in ctx.step.logits)
