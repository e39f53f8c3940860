"""``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` whose dropout between stacked layers has learned rates."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lbdrop._torch import bare_module, parameters_of, set_recurrent_weights
from lbdrop.dropout import NoiseLayer

__all__ = ["LearnableRecurrent"]


class LearnableRecurrent(nn.RNNBase):
    """The same parameters and call as the stacked layer it replaces, run one level at a time with dropout between.

    Layers keep their names (``weight_ih_l0`` …), so checkpoints of the original still load.
    """

    between: nn.ModuleList
    original: type[nn.RNNBase]

    @classmethod
    def of(cls, original: nn.RNNBase, dropouts: list[NoiseLayer]) -> "LearnableRecurrent":
        """Take over the parameters of ``original``, which keep their names."""
        module = bare_module(cls, original)
        module.original = type(original)
        module.dropout = 0.0
        module.between = nn.ModuleList(dropouts)
        module.flatten_parameters()
        return module

    def flatten_parameters(self) -> None:
        """Put the weights of each level in one block of memory for cuDNN; torch calls this when the module moves."""
        for level in range(self.num_layers):
            self._level(level).flatten_parameters()

    def plain(self) -> nn.RNNBase:
        """A plain torch layer with dropout off; the mean of an unscaled mask goes into the weights that follow it."""
        module = bare_module(self.original, self, without=("original", "between"))
        for level, dropout in enumerate(self.between, start=1):
            assert isinstance(dropout, NoiseLayer)
            for suffix in ("", "_reverse") if self.bidirectional else ("",):
                name = f"weight_ih_l{level}{suffix}"
                setattr(module, name, nn.Parameter(getattr(self, name).detach() * dropout.gain()))
        set_recurrent_weights(module)
        module.flatten_parameters()
        return module

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        states = []
        for level in range(self.num_layers):
            if level:
                input = _drop(self.between[level - 1], input, self.batch_first)
            input, state = self._level(level)(input, self._initial(hx, level))
            states.append(state)
        if isinstance(states[0], tuple):
            return input, tuple(torch.cat(each) for each in zip(*states, strict=True))
        return input, torch.cat(states)

    def _initial(self, hx: Any, level: int) -> Any:
        if hx is None:
            return None
        directions = 2 if self.bidirectional else 1
        part = slice(level * directions, (level + 1) * directions)
        return tuple(h[part] for h in hx) if isinstance(hx, tuple) else hx[part]

    def _level(self, level: int) -> nn.RNNBase:
        """One level as a one-level layer of torch's own, with the same parameters."""
        layer = bare_module(self.original, self, without=("original", "between"))
        layer.num_layers = 1
        if level:
            layer.input_size = (self.proj_size or self.hidden_size) * (2 if self.bidirectional else 1)
        weights = {
            name.replace(f"_l{level}", "_l0"): weight
            for name, weight in parameters_of(self).items()
            if name.removesuffix("_reverse").endswith(f"_l{level}")
        }
        set_recurrent_weights(layer, weights)
        return layer


def _drop(dropout: nn.Module, sequence: Any, batch_first: bool) -> Tensor | PackedSequence:
    if not isinstance(sequence, PackedSequence):
        if sequence.dim() == 2:  # one sequence without a batch axis
            return dropout(sequence.unsqueeze(1 - batch_first)).squeeze(1 - batch_first)
        return dropout(sequence)
    # A row of a packed sequence mixes examples: unpacked, masks have an axis of examples.
    padded, lengths = pad_packed_sequence(sequence, batch_first=batch_first)
    return pack_padded_sequence(dropout(padded), lengths, batch_first=batch_first, enforce_sorted=False)
