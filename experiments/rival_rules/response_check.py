"""Responses that do not learn are an error: rates that follow held-out data through them would stand still unnoticed."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from experiments.rival_rules.responding import RespondingDropout
from lbdrop.errors import DropoutError

__all__ = ["ResponseCheck"]

# So many times weights have to be seen to have moved: an optimiser may step rarely.
MOVES = 3


class ResponseCheck:
    """Checks now and then whether responses have moved, until they have.

    Args:
        model: whose weights are to move as well.
        layers: the dropouts that have responses, by name.
        logits: their rates, which no optimiser moves.
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, RespondingDropout], logits: Sequence[Tensor]):
        self.watched = {
            f"{name}.responses.{inner}": p
            for name, layer in layers.items()
            if layer.responses is not None
            for inner, p in layer.responses.named_parameters()
            if p.requires_grad
        }
        self.before = {name: p.detach().clone() for name, p in self.watched.items()}
        self.model, self.logits = model, logits
        self._weight: Tensor | None = None
        self._moves = 0

    def check(self, measurements: int) -> None:
        """An error where a response has not moved though weights have, after so many measurements; waits for the device."""
        ours = {id(p) for p in (*self.watched.values(), *self.logits)}
        weights = (p for p in self.model.parameters() if p.requires_grad and id(p) not in ours)
        weight = min(weights, key=lambda p: p.numel(), default=None)
        if not self.before or weight is None:
            return
        moved = self._weight is not None and not bool((weight.detach() == self._weight).all())
        self._weight, self._moves = weight.detach().clone(), self._moves + moved
        if self._moves < MOVES:
            return
        unmoved = [name for name, p in self.watched.items() if bool((p.detach() == self.before[name].to(p)).all())]
        if unmoved:
            raise DropoutError(
                f"self-tuning: want responses that learn, got {unmoved[:6]} where they began after {measurements} batches of"
                " held-out data, while weights have moved; make the optimiser after the rule, with all parameters, as"
                " self_tuning.parameter_groups(model) does"
            )
        self.before = {}  # all have moved: no need to check again
