r"""From per-example losses to one loss whose backward pass serves weights and rates together.

*How* rates are learned is a :class:`~lbdrop.rules.rule.Rule`; how their gradients come about, :mod:`lbdrop.step`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop import estimators
from lbdrop.dropout import NoiseLayer, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.guards import processes, threads
from lbdrop.guards.compiled import compiled_form
from lbdrop.guards.logit_range import clamp_logits
from lbdrop.guards.losses import check_losses
from lbdrop.passes.price import DEFAULT_BUDGET
from lbdrop.rules.choice import check_arguments, default_rule, look_around
from lbdrop.rules.evaluation import Evaluation, Runner
from lbdrop.rules.rule import HeldOutRule, Rule, StatefulRule, numbers

__all__ = ["Objective"]


class Objective:
    """Per-example losses in, one loss out: its ``backward()`` gives weights and rates their gradients.

    Args:
        model: a model with learned dropouts (see :func:`lbdrop.convert`).
        rule: how rates are learned; by default balanced noise with held-out data, else the bound, which wants ``examples``.
        held_out: batches for the rates to follow, as a ``DataLoader`` has; losses are then ``objective(losses, *batch)``.
        steps: with ``held_out``, how many training steps the run has.
        examples: how many there are in training; if given, those held out join training once rates are frozen.
        budget: what a step may cost on average, in plain steps, by default 1.25 (:mod:`lbdrop.passes.price`).
        estimator: instead, in every step: ``"double-cv-4"`` (four masks), ``"double-cv"`` (two), ``"arm"`` (the paper's),
            ``"disarm"``, ``"rloo-4"``, ``"arms-4"``, … (:mod:`lbdrop.estimators`), or one of your own.
        masks: through how many masks weights are trained where no rate learns by an estimator, which has its own number.
        coupled: whether the loss of one example depends on the masks of others, as BatchNorm in training mode makes it;
            ``None`` finds out by itself. Where it does, the difference of batch totals replaces that of single examples.
        unreached: ``"error"`` or ``"warn"``, about dropouts that a pass does not reach.
        check: refuse losses and gradients that are NaN or infinite, and name them (:mod:`lbdrop.guards.finite`).
        generator: draws the masks; by default they follow from the global random state and the number of the process.

    Example:
        >>> model = lbdrop.convert(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 2)), verbose=False)
        >>> objective = Objective(model, examples=100)
        >>> x, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
        >>> objective(lambda m: torch.nn.functional.cross_entropy(m(x), y, reduction="none")).backward()
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
        budget: float | None = None,
        estimator: str | estimators.Estimator | None = None,
        masks: int | None = None,
        coupled: bool | None = None,
        unreached: str = "error",
        check: bool = True,
        generator: torch.Generator | None = None,
    ):
        self.core, _ = processes.unwrap(model)
        noise_layers(self.core)
        check_arguments(
            self.core, rule, held_out=held_out, steps=steps, examples=examples, budget=budget, estimator=estimator,
            masks=masks, coupled=coupled, unreached=unreached, generator=generator,
        )  # fmt: skip
        self.rule = rule or default_rule(self.core, held_out, steps, examples, masks or 1, generator)
        price = estimators.get(estimator) if estimator else float(budget or DEFAULT_BUDGET)
        self.runner = Runner(self.core, price, masks or 1, coupled, unreached, check, generator)
        self.model = model
        self._last, self._optimizers = torch.tensor(float("nan")), None

    @property
    def layers(self) -> Mapping[str, NoiseLayer]:
        return self.runner.layers

    @property
    def model(self) -> nn.Module:
        """The model, or what wraps it for several processes: give it here if it was wrapped after the objective was made."""
        return self._model

    @model.setter
    def model(self, model: nn.Module) -> None:
        core, wrapper = processes.unwrap(model)
        if core is not self.core:
            raise DropoutError("model: want the objective's own, wrapped; got another one; make an objective for that")
        processes.check_wrapper(core, wrapper)
        self._model, self._wrapper, self.runner.called = model, wrapper, compiled_form(model)

    def __call__(self, losses: Callable[..., Tensor], *batch: Any) -> Float[Tensor, ""]:
        """The loss of one batch; ``losses`` takes the model, and the batch if given, and returns one loss per example."""
        learning, watch = torch.is_grad_enabled(), self.runner.watch
        if self.runner.first_pass:
            check_losses(losses, self.core, batch)
        if learning:
            self._optimizers = self._optimizers or look_around(self.core, self.rule, self.shared)
            if not isinstance(self.rule, HeldOutRule):  # which keeps them in their range by itself
                clamp_logits(self.layers.values())
        watch.in_step = learning
        try:
            device = next(iter(self.layers.values())).logit.device
            with threads.training(self.core), processes.per_process_randomness(device) as self.runner.seed:
                evaluation = self.evaluation(losses, *batch)
                result = processes.call_through_wrapper(self._wrapper, lambda: self._loss(evaluation))
        finally:
            watch.in_step = False
        watch.backward(result)
        self._last = result.detach() if learning else self._last
        return result

    def _loss(self, evaluation: Evaluation) -> Tensor:
        loss = self.rule.loss(evaluation)
        if not (evaluation.shared and torch.is_grad_enabled() and isinstance(self.rule, HeldOutRule)):
            return loss
        logits = [layer.logit for layer in self.layers.values() if isinstance(layer.logit, nn.Parameter)]
        return processes.with_zero_gradients(loss, logits, forget=True)  # a wrapper waits for every gradient

    @property
    def last(self) -> dict[str, float]:
        """The last training step's numbers, for any logger (:func:`lbdrop.rules.rule.numbers`); waits for the device."""
        return numbers(self.rule, self._last, self.layers)

    def evaluation(self, losses: Callable[..., Tensor], *batch: Any) -> Evaluation:
        """One batch as a rule sees it."""
        return Evaluation(self.runner, losses, batch, self.shared)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beside the states of model and optimiser: the state of the rule."""
        state = self.rule.state_dict() if isinstance(self.rule, StatefulRule) else {}
        return {"rule": type(self.rule).__name__, "state": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`; load the states of model and optimiser as well."""
        rule = type(self.rule).__name__
        if state.get("rule") != rule:
            raise DropoutError(
                f"state: want that of an objective with the rule {rule}, got {state.get('rule', 'another kind of state')};"
                " make the objective with the rule that the saved run had"
            )
        if isinstance(self.rule, StatefulRule):
            self.rule.load_state_dict(state["state"])

    @property
    def shared(self) -> bool:
        """Whether several processes train this model together."""
        return processes.train_together(self.core, self._wrapper)

    def __repr__(self) -> str:
        return f"Objective({self.rule!r}, {self.runner}, layers={list(self.layers)})"
