r"""Self-tuning: rates that follow the held-out loss, through weights that know how they would answer to other rates.

Each example draws offsets $\epsilon \sim \mathcal{N}(0, \sigma^2)$ to the logits $\alpha$ of all rates, and its masks at
those rates. Behind each mask a :class:`~lbdrop.response.Response` takes up what the best weights would do there:

$$ y = (x \odot z)\,(1 + \epsilon G) + \epsilon H, \qquad z \sim \mathrm{Ber}(\sigma(\alpha + \epsilon)) $$

Weights, $G$ and $H$ follow the training loss. The rates follow the loss of held-out examples, without dropout, as a function
of $\epsilon + \alpha$: plain backpropagation through $G$ and $H$. It is not short-sighted as a look one step ahead is: rates
fall while the network learns, and rise once it begins to over-fit.

MacKay et al., Self-Tuning Networks, ICLR 2019; here with the response inside the dropout layers, so that any converted model
has it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lbdrop.dropout import NoiseLayer, learned_layers
from lbdrop.errors import DropoutError
from lbdrop.masks import deterministic, use
from lbdrop.rules import Evaluation

__all__ = ["SelfTuning"]

# After so many looks at held-out data an optimiser that has the parameters has moved them.
PATIENCE = 50


class SelfTuning:
    """Rates from held-out data, as one of :mod:`lbdrop.rules`. Made before the optimiser: it adds the responses' parameters.

    Args:
        model: the converted model.
        held_out: batches of held-out data, again and again; a ``DataLoader``, or a list of batches.
        spread: σ, how far around the present rates the network learns to answer, in logits.
        every: how many training steps to one look at held-out data.
        masks: through how many masks the weights are trained in each step.
        example: a batch of inputs to run once, where the widths of the dropouts are not known yet; by default the first
            held-out batch's first element.
        generator: draws offsets and masks.
    """

    def __init__(
        self,
        model: nn.Module,
        held_out: Iterable[Any],
        *,
        spread: float = 1.0,
        every: int = 2,
        masks: int = 1,
        example: Any = None,
        generator: torch.Generator | None = None,
    ):
        if spread <= 0 or every < 1 or masks < 1:
            raise DropoutError(f"self-tuning: want spread > 0, every ≥ 1, masks ≥ 1, got {spread}, {every}, {masks}")
        self.model, self.held_out = model, held_out
        self.spread, self.every, self.masks, self.generator = spread, every, masks, generator
        self.layers = learned_layers(model)
        self.logits = list({id(layer.logit): layer.logit for layer in self.layers.values()}.values())
        if not self.logits:
            raise DropoutError("self-tuning: want a model with learned dropouts; call lbdrop.convert(model) first")
        self._batches = self._again_and_again()
        self._first: Any = None
        self.steps = self.looks = 0
        self.start = [logit.detach().clone() for logit in self.logits]
        self.last_held_out: Tensor | None = None
        self._answer(example)

    # ------------------------------------------------------------------------------------------------------ one step

    def loss(self, evaluation: Evaluation) -> Float[Tensor, ""]:
        around = _Around(self)
        with around.opened():
            expected = evaluation.sampled(around, self.masks).mean()
        self.steps += 1
        if not torch.is_grad_enabled() or self.steps % self.every:
            return expected
        slopes = self.slopes(evaluation)
        self.looks += 1
        if self.looks == PATIENCE:
            self._check_alive(slopes)
        # Of value 0, and of the gradient that the held-out loss has: one backward() serves weights and rates.
        for logit, slope in zip(self.logits, slopes, strict=True):
            expected = expected + ((logit - logit.detach()) * slope).sum()
        return expected

    def slopes(self, evaluation: Evaluation) -> tuple[Tensor, ...]:
        """The gradient of the held-out loss for each logit, through the responses alone."""
        batch = next(self._batches)
        around = _Around(self, follow=True)
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()  # running statistics, and dropout that is not ours, as at test
        try:
            with around.opened(), use(self.model, around):
                held_out = evaluation.elsewhere(batch).mean()
        finally:
            for module in training:
                module.training = True
        self.last_held_out = held_out.detach()
        slopes = torch.autograd.grad(held_out, self.logits, allow_unused=True)
        return tuple(torch.zeros_like(a) if s is None else s.detach() for a, s in zip(self.logits, slopes, strict=True))

    def _check_alive(self, slopes: tuple[Tensor, ...]) -> None:
        """An error where nothing learns: the one look at the device that this takes is spent once."""
        responses = [layer.response for layer in self.layers.values() if layer.response is not None]
        if not any(bool(p.any()) for response in responses for p in response.parameters()):
            raise DropoutError(
                f"self-tuning: want responses that learn, got all of them at 0 after {PATIENCE} looks; make the optimiser"
                " after the objective, which adds their parameters, or add them: lbdrop.parameter_groups(model)"
            )
        still = [bool((a.detach() == b.to(a.device)).all()) for a, b in zip(self.logits, self.start, strict=True)]
        if all(still) and any(bool(slope.any()) for slope in slopes):
            raise DropoutError(
                f"self-tuning: want rates that learn, got all of them where they began after {PATIENCE} looks; give the"
                " optimiser their logits: lbdrop.parameter_groups(model)"
            )

    def restart(self) -> None:
        """Begin the held-out data anew, as at the start of an epoch: a run taken up again then sees what it would have."""
        self._batches, self._first, self.steps = self._again_and_again(), None, 0

    # --------------------------------------------------------------------------------------------------- preparations

    def _answer(self, example: Any) -> None:
        unknown = [name for name, layer in self.layers.items() if layer.width is None or layer.dims is None]
        if unknown:
            if example is None:
                self._first = next(self._batches)
                example = self._first[0]
            training = [module for module in self.model.modules() if module.training]
            self.model.eval()
            try:
                with torch.no_grad(), deterministic(self.model):
                    self.model(**example) if isinstance(example, dict) else self.model(example)
            except Exception as error:
                raise DropoutError(
                    f"example: want inputs that the model can be called with, got {error}; pass example=x, or convert the"
                    " model with example=x"
                ) from error
            finally:
                for module in training:
                    module.training = True
        place = {id(logit): index for index, logit in enumerate(self.logits)}
        for name, layer in self.layers.items():
            if layer.width is None or layer.dims is None:
                raise DropoutError(f"dropout that the example does not reach: {name}; its rate cannot be learned")
            layer.rate_index = place[id(layer.logit)]
            layer.answer(len(self.logits))

    def _again_and_again(self) -> Iterator[tuple[Any, ...]]:
        while True:
            if self._first is not None:
                first, self._first = self._first, None
                yield first
            empty = True
            for batch in self.held_out:
                empty = False
                parts = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
                yield tree_map(lambda t: t.to(self.logits[0].device) if isinstance(t, Tensor) else t, parts)
            if empty:
                raise DropoutError(
                    "held_out: want batches that can be gone through again and again, got none; give a DataLoader or a"
                    " list, not a generator"
                )

    def rates(self) -> dict[str, float]:
        """The mean rate of each layer as it is now."""
        return {name: layer.p for name, layer in self.layers.items()}

    def __repr__(self) -> str:
        return f"SelfTuning({len(self.logits)} rates, spread={self.spread}, every={self.every}, masks={self.masks})"


class _Around:
    """The offsets of one pass, drawn when the first layer shows how many examples there are."""

    def __init__(self, rule: SelfTuning, follow: bool = False):
        self.rule, self.follow = rule, follow
        self.offsets: Tensor | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        try:
            yield
        finally:
            for layer in self.rule.layers.values():
                layer.offsets = None

    def begin(self) -> None:
        self.offsets = None

    def look(self, layer: NoiseLayer, examples: int) -> None:
        if self.offsets is None:
            logits = self.rule.logits
            dtype, device = torch.promote_types(logits[0].dtype, torch.float32), logits[0].device
            size = (examples, len(logits))
            noise = torch.empty(size, dtype=dtype, device=device).normal_(generator=self.rule.generator)
            self.offsets = noise * self.rule.spread
            if self.follow:
                self.offsets = self.offsets + torch.stack([(a - a.detach()).mean() for a in logits])
        if len(self.offsets) != examples:
            raise DropoutError(
                f"self-tuning: want the same examples at every dropout, got {len(self.offsets)} and {examples}; name the"
                " examples' axis by batch_dim"
            )
        layer.offsets = self.offsets

    # As a Drawer: masks at the shifted rates.
    def draw(self, layer: NoiseLayer, shape: tuple[int, ...], x: Tensor) -> Tensor:
        if layer.rate_index < len(self.rule.logits) and layer.response is not None:
            self.look(layer, shape[layer.batch_dim])
        return layer.draw(self.rule.masks, shape, x, self.rule.generator)

    def seen(self, use: int, x: Tensor) -> None:
        pass

    # As a MaskSource: no masks, but the offsets.
    def mask(self, layer: NoiseLayer, x: Tensor) -> None:
        if layer.response is not None:
            self.look(layer, x.shape[layer.batch_dim])
        return None
