"""The contract of a rule: how rates are learned. The smallest rule is one class with one method, :meth:`Rule.loss`.

A rule owns its state. Layers hold rates and nothing of a rule; :class:`lbdrop.Objective` saves the state of its rule.
"""

from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from lbdrop.rules.evaluation import Evaluation

__all__ = ["HeldOutRule", "Phase", "Rule", "StatefulRule"]

Phase = Literal["warm-up", "measuring", "frozen"]
"""Where a rule that moves rates by itself stands: rates only rise; rates follow measurements; rates stay what they are."""


@runtime_checkable
class Rule(Protocol):
    """The scalar to minimise, from the losses of one batch. The one place to add a way of learning rates."""

    def loss(self, evaluation: Evaluation) -> Float[Tensor, ""]: ...


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
