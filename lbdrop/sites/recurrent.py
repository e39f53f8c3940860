"""``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` whose dropout between stacked layers has learned rates."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

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
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.__dict__.update(original.__dict__)
        module._modules = dict(original._modules)
        module.original = type(original)
        module.dropout = 0.0
        module.between = nn.ModuleList(dropouts)
        module.flatten_parameters()
        return module

    def flatten_parameters(self) -> None:
        """Lay out each level's weights in one piece, as cuDNN wants them; torch calls this when the module moves."""
        for level in range(self.num_layers):
            self._level(level).flatten_parameters()

    def plain(self) -> nn.RNNBase:
        """Back to the torch layer, dropout off; an unscaled mask's mean goes into the weights that follow it."""
        module = self.original.__new__(self.original)
        nn.Module.__init__(module)
        module.__dict__.update({k: v for k, v in self.__dict__.items() if k != "original"})
        module._parameters = dict(self._parameters)
        module._modules = {k: v for k, v in self._modules.items() if k != "between"}
        for level, dropout in enumerate(self.between, start=1):
            assert isinstance(dropout, NoiseLayer)
            for suffix in ("", "_reverse") if self.bidirectional else ("",):
                name = f"weight_ih_l{level}{suffix}"
                setattr(module, name, nn.Parameter(getattr(self, name).detach() * dropout.gain()))
        module._init_flat_weights()
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
        """One level as a layer of torch's own, over the same parameters."""
        layer = self.original.__new__(self.original)
        nn.Module.__init__(layer)
        layer.__dict__.update({k: v for k, v in self.__dict__.items() if k != "original"})
        layer._modules, layer._parameters, layer.num_layers = {}, {}, 1
        if level:
            layer.input_size = (self.proj_size or self.hidden_size) * (2 if self.bidirectional else 1)
        names = [n for n in self._parameters if n.removesuffix("_reverse").endswith(f"_l{level}")]
        layer._flat_weights_names = [name.replace(f"_l{level}", "_l0") for name in names]
        layer._all_weights = [layer._flat_weights_names]
        for name, plain in zip(names, layer._flat_weights_names, strict=True):
            setattr(layer, plain, self._parameters[name])
        layer._flat_weights = [self._parameters[name] for name in names]
        layer._flat_weight_refs = [weakref.ref(weight) for weight in layer._flat_weights if weight is not None]
        return layer


def _drop(dropout: nn.Module, sequence: Any, batch_first: bool) -> Tensor | PackedSequence:
    if not isinstance(sequence, PackedSequence):
        if sequence.dim() == 2:  # one sequence without a batch axis
            return dropout(sequence.unsqueeze(1 - batch_first)).squeeze(1 - batch_first)
        return dropout(sequence)
    # Rows of a packed sequence belong to no one example: unpack, so that each mask has its example's axis.
    padded, lengths = pad_packed_sequence(sequence, batch_first=batch_first)
    return pack_padded_sequence(dropout(padded), lengths, batch_first=batch_first, enforce_sorted=False)
