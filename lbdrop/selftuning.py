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
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lbdrop.dropout import NoiseLayer, learned_layers
from lbdrop.errors import DropoutError
from lbdrop.masks import use
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
        self.last_held_out: Tensor | None = None
        self._answer(example)
        self._weight: Tensor | None = None
        self._moves = 0
        self._watched = {name: p for name, p in self._parameters() if p.requires_grad}
        self._before = {name: p.detach().clone() for name, p in self._watched.items()}

    # ------------------------------------------------------------------------------------------------------ one step

    def loss(self, evaluation: Evaluation) -> Float[Tensor, ""]:
        around = _Around(self)
        with around.opened():
            expected = evaluation.sampled(around, self.masks).mean()
        if not torch.is_grad_enabled():
            return expected
        self.steps += 1
        if self.steps % self.every:
            return expected
        self.looks += 1
        if self.looks % PATIENCE == 0 and self._before:
            self._check_alive()
        # Of value 0, and of the gradient that the held-out loss has: one backward() serves weights and rates.
        for logit, slope in zip(self.logits, self.slopes(evaluation), strict=True):
            if logit.requires_grad:
                expected = expected + ((logit - logit.detach()) * slope).sum()
        return expected

    def slopes(self, evaluation: Evaluation) -> tuple[Tensor, ...]:
        """The gradient of the held-out loss for each logit, through the responses alone."""
        batch = next(self._batches)
        around = _Around(self, follow=True)
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()  # running statistics, and dropout that is not ours, as at test
        try:
            with around.opened(), use(self.model, around), _recurrent_by_hand(self.model):
                held_out = evaluation.elsewhere(batch).mean()
        finally:
            for module in training:
                module.training = True
        self.last_held_out = held_out.detach()
        learning = [logit for logit in self.logits if logit.requires_grad]
        found = torch.autograd.grad(held_out, learning, allow_unused=True) if learning else ()
        slopes = {id(logit): slope for logit, slope in zip(learning, found, strict=True) if slope is not None}
        return tuple(slopes.get(id(logit), torch.zeros_like(logit)).detach() for logit in self.logits)

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What has to learn, by name: each rate and each response."""
        names = {id(layer.logit): f"{name}.logit" for name, layer in self.layers.items()}
        yield from ((names[id(logit)], logit) for logit in self.logits)
        for name, layer in self.layers.items():
            assert layer.responses is not None
            yield from ((f"{name}.responses.{inner}", p) for inner, p in layer.responses.named_parameters())

    def _check_alive(self) -> None:
        """An error where a rate or a response has not moved though weights have; asks the device once."""
        ours = {id(p) for p in self._watched.values()}
        weight = min((p for p in self.model.parameters() if p.requires_grad and id(p) not in ours),
                     key=lambda p: p.numel(), default=None)  # fmt: skip
        if weight is None:
            return
        moved = self._weight is not None and not bool((weight.detach() == self._weight).all())
        self._weight, self._moves = weight.detach().clone(), self._moves + moved
        if self._moves < 3:  # an optimiser may step rarely, and rates begin to move a step after their responses
            return
        still = [name for name, p in self._watched.items() if bool((p.detach() == self._before[name].to(p)).all())]
        if still:
            raise DropoutError(
                f"self-tuning: want parameters that learn, got {still[:6]} where they began after {self.looks} looks at"
                " held-out data, while weights have moved; make the optimiser after the objective, with all of them, as"
                " lbdrop.parameter_groups(model) does, and rates that do not learn with requires_grad=False"
            )
        self._before = {}  # all alive: no need to ask again

    def restart(self) -> None:
        """Begin the held-out data anew, as at the start of an epoch: a run taken up again then sees what it would have."""
        self._batches, self._first, self.steps = self._again_and_again(), None, 0

    # --------------------------------------------------------------------------------------------------- preparations

    def _answer(self, example: Any) -> None:
        """Run an example to see how many units reach each dropout, everywhere it is called, and give them responses."""
        if example is None:
            self._first = next(self._batches)
            example = self._first[0]
        seen = _Widths()
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with torch.no_grad(), use(self.model, seen):
                self.model(**example) if isinstance(example, dict) else self.model(example)
        except Exception as error:
            # Where the model was converted with an example, what was seen then will do.
            seen.found = {
                (layer, layer.width, layer.dims) for layer in self.layers.values() if layer.width and layer.dims
            }
            if len(seen.found) < len(self.layers):
                raise DropoutError(
                    f"example: want inputs that the model can be called with, got {error}; pass example=x, or convert the"
                    " model with example=x"
                ) from error
        finally:
            for module in training:
                module.training = True
        place = {id(logit): index for index, logit in enumerate(self.logits)}
        for name, layer in self.layers.items():
            if not any(layer is reached for reached, _, _ in seen.found):
                raise DropoutError(f"dropout that the example does not reach: {name}; its rate cannot be learned")
            layer.rate_index = place[id(layer.logit)]
        for layer, width, dims in seen.found:
            if layer in self.layers.values():
                layer.answer(len(self.logits), width, dims)

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


class _Widths:
    """A source of no masks that notes who asks, and with how many units."""

    def __init__(self) -> None:
        self.found: set[tuple[NoiseLayer, int, int]] = set()

    def mask(self, layer: NoiseLayer, x: Tensor) -> None:
        assert layer.width is not None
        self.found.add((layer, layer.width, x.dim()))


@contextmanager
def _recurrent_by_hand(model: nn.Module) -> Iterator[None]:
    """cuDNN's recurrent layers have no backward pass in eval mode; torch's own have."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    with torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext():
        yield


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
        if layer.responses is not None:
            self.look(layer, shape[layer.batch_dim])
        return layer.draw(self.rule.masks, shape, x, self.rule.generator)

    def seen(self, use: int, x: Tensor) -> None:
        pass

    # As a MaskSource: no masks, but the offsets.
    def mask(self, layer: NoiseLayer, x: Tensor) -> None:
        if layer.responses is not None:
            self.look(layer, x.shape[layer.batch_dim])
        return None
