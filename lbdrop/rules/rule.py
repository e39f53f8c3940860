"""The contract of a rule: how rates are learned. The smallest rule is one class with one method, :meth:`Rule.loss`.

A rule owns its state. Layers hold rates and nothing of a rule; :class:`lbdrop.Objective` saves the state of its rule.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from lbdrop.dropout import NoiseLayer
from lbdrop.rules.evaluation import Evaluation

__all__ = ["HeldOutRule", "Phase", "ReportingRule", "Rule", "StatefulRule", "numbers"]

Phase = Literal["warm-up", "measuring", "frozen"]
"""Where a rule that moves rates by itself stands: rates only rise; rates follow measurements; rates stay what they are."""


@runtime_checkable
class Rule(Protocol):
    """The scalar to minimise, from the losses of one batch. The one place to add a way of learning rates."""

    def loss(self, evaluation: Evaluation) -> Float[Tensor, ""]: ...


@runtime_checkable
class ReportingRule(Rule, Protocol):
    """A rule that has numbers for a logger."""

    @property
    def report(self) -> dict[str, Tensor]:
        """By name: ``kl``, what the rule has added to the loss; or what it has measured. Nothing waits for a device."""
        ...


@runtime_checkable
class StatefulRule(Rule, Protocol):
    """A rule that remembers something from step to step, so that a resumed run needs its state."""

    @property
    def phase(self) -> Phase: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class HeldOutRule(StatefulRule, Protocol):
    """A rule whose rates follow held-out data. The rule alone moves them: they have no gradient and need no optimiser."""

    @property
    def held_out(self) -> Any: ...

    def restart(self) -> None:
        """Start the held-out data anew, as at the start of an epoch: a resumed run then sees the same batches."""
        ...


def numbers(rule: Rule, loss: Float[Tensor, ""], layers: Mapping[str, NoiseLayer]) -> dict[str, float]:
    """``loss`` as it was returned, ``kl``, the rule's part of it, and ``plain_loss``, the rest; each layer's mean rate.

    A rule with held-out data has what it measured last: ``plain_loss`` without masks, ``held_out_loss``, ``gap``, ``cost``.
    NaN before there is something.
    """
    report = rule.report if isinstance(rule, ReportingRule) else {}
    found = {"loss": loss, "plain_loss": loss - report.get("kl", 0.0)} | report
    return {name: float(value) for name, value in found.items()} | {
        f"rates/{name}": layer.p for name, layer in layers.items()
    }
