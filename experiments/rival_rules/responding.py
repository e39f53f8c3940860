"""A learned dropout whose units respond to rates other than their own, as self-tuning needs it."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from experiments.rival_rules.response import Response
from lbdrop.dropout import LearnableDropout
from lbdrop.errors import DropoutError

__all__ = ["RespondingDropout", "replace_dropouts"]


class RespondingDropout(LearnableDropout):
    """Another learned dropout, with the same rate and settings, that can respond to offsets of all rates of the model."""

    earlier_state: ClassVar[tuple[str, ...]] = tuple(n for n in LearnableDropout.earlier_state if n != "responses")

    def __init__(self, layer: LearnableDropout):
        super().__init__(
            layer.units, channels=layer.channels, unit_dim=layer.unit_dim, batch_dim=layer.batch_dim, scale=layer.scale,
            logit=layer.logit, generator=layer.generator,
        )  # fmt: skip
        self.width, self.dims, self.training = layer.width, layer.dims, layer.training
        # Only in a pass around the rates: each example's offsets to the logits of all rates of the model.
        self.offsets: Float[Tensor, "batch rates"] | None = None
        self.cached_keep: tuple[Tensor, Tensor] | None = None  # at some offsets, wanted by a mask and its scale
        self.rate_index = 0
        # By the number of units, since a layer may be called in several places; None keeps it a leaf of the model.
        self.responses: nn.ModuleDict | None = None

    def keep_for(self, dims: int) -> Tensor:
        """The keep rates; each example's own in a pass around the rates."""
        if self.offsets is None:
            return super().keep_for(dims)
        if self.cached_keep is None or self.cached_keep[0] is not self.offsets or self.cached_keep[1].dim() != dims:
            shape = [1] * dims
            shape[self.batch_dim] = len(self.offsets)
            offset = self.offsets[:, self.rate_index].view(shape)
            self.cached_keep = self.offsets, torch.sigmoid(self.spread(self.logit.detach(), dims) + offset)
        return self.cached_keep[1]

    def masked(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = super().masked(x, mask)
        if self.offsets is None or self.responses is None:
            return y
        axis = self._width_dim(x)
        width = x.shape[axis]
        if str(width) not in self.responses:
            raise DropoutError(
                f"self-tuning: want inputs of {' or '.join(self.responses)} units at a dropout, as in the example, got {width};"
                " give an example of every width, and no dropout of its own to weights of attention between sequences of"
                " different lengths"
            )
        # On three axes the units may be features, or other positions that a causal mask has set to zero.
        shifted = x != 0 if x.dim() > 2 and not self.channels else None
        return self.responses[str(width)](y, self.offsets, axis, self.batch_dim, shifted)

    def respond(self, rates: int, width: int, dims: int) -> None:
        """Give inputs of ``width`` units and ``dims`` axes a response to the offsets of all ``rates`` rates of the model."""
        if self.responses is None:
            self.responses = nn.ModuleDict()
        if str(width) in self.responses:
            response = self.responses[str(width)]
            if isinstance(response, Response) and tuple(response.stretch.shape) == (rates, width):
                return  # learned already: a rule made anew, or a resumed model
        # Single elements dropped from four axes may be weights of attention, where a masked zero has to stay zero.
        shift = dims < 4 or self.channels
        self.responses[str(width)] = Response(rates, width, shift).to(self.logit.device)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        for key in [key for key in state_dict if key.startswith(f"{prefix}responses.") and key.endswith(".stretch")]:
            width = key.removeprefix(f"{prefix}responses.").removesuffix(".stretch")
            if self.responses is None:
                self.responses = nn.ModuleDict()
            if width not in self.responses:
                shift = f"{prefix}responses.{width}.shift" in state_dict
                self.responses[width] = Response(*state_dict[key].shape, shift=shift).to(self.logit.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"  # one line, whatever responses it has


def replace_dropouts(model: nn.Module) -> None:
    """Every learned dropout of a model becomes a responding one, in place."""
    found: dict[LearnableDropout, RespondingDropout] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # by every name that a child has
            if isinstance(child, LearnableDropout) and not isinstance(child, RespondingDropout):
                found.setdefault(child, RespondingDropout(child))
                setattr(parent, name, found[child])
