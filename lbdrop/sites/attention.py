"""``nn.MultiheadAttention`` whose attention weights are dropped by a learned rate."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lbdrop._torch import attention_has_one_weight, bare_module, set_attention_has_one_weight
from lbdrop.dropout import NoiseLayer

__all__ = ["LearnableAttention"]


class LearnableAttention(nn.MultiheadAttention):
    """The same parameters and call as ``nn.MultiheadAttention``, computed step by step so that dropout can be a layer.

    Weights of attention (batch, heads, targets, sources) are dropped one by one; ``per="unit"`` gives a rate per head.
    """

    attention_dropout: NoiseLayer | None
    one_weight: bool
    """Whether query, key and value share one projection weight."""

    @classmethod
    def of(cls, original: nn.MultiheadAttention, dropout: NoiseLayer | None) -> "LearnableAttention":
        """Take over the parameters of ``original``, which keep their names."""
        module = bare_module(cls, original)
        module.attention_dropout = dropout
        module.dropout = 0.0
        module.one_weight = attention_has_one_weight(original)
        # nn.TransformerEncoderLayer checks this before it takes its fused path, which ignores our dropout.
        set_attention_has_one_weight(module, False)
        return module

    def plain(self) -> nn.MultiheadAttention:
        """A plain ``nn.MultiheadAttention`` with dropout off; the mean of an unscaled mask goes into the output projection."""
        module = bare_module(nn.MultiheadAttention, self, without=("attention_dropout", "one_weight"))
        set_attention_has_one_weight(module, self.one_weight)
        if self.attention_dropout is not None:
            gain = self.attention_dropout.gain()
            per_feature = gain.repeat_interleave(self.head_dim) if gain.dim() else gain
            module.out_proj.weight = nn.Parameter(module.out_proj.weight.detach() * per_feature)
        return module

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        unbatched = query.dim() == 2
        if unbatched:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = self._project(query, key, value)
        bias = self._bias(attn_mask, key_padding_mask, q, k, is_causal)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        weights = torch.softmax(scores if bias is None else scores + bias, -1)
        if self.attention_dropout is not None:
            weights = self.attention_dropout(weights)
        output = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        returned = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
        if unbatched:
            return output.squeeze(0), None if returned is None else returned.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), returned

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.one_weight:
            weights: Any = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (F.linear(t, w, b) for t, w, b in zip((query, key, value), weights, biases, strict=True))
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.expand(k.shape[0], 1, -1)], 1)
            v = torch.cat([v, self.bias_v.expand(v.shape[0], 1, -1)], 1)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for t in (q, k, v))
        return q, k, v

    def _bias(
        self, attn_mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor, is_causal: bool
    ) -> Tensor | None:
        if attn_mask is None and is_causal:
            attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        parts = []
        if attn_mask is not None:
            additive = _additive(attn_mask, q.dtype)
            parts.append(additive.unflatten(0, (-1, self.num_heads)) if additive.dim() == 3 else additive)
        if padding is not None:
            parts.append(_additive(padding, q.dtype)[:, None, None, :])
        # Attention to positions appended by bias_k and add_zero_attn is always allowed.
        parts = [F.pad(part, (0, k.shape[-2] - part.shape[-1])) for part in parts]
        return sum(parts[1:], parts[0]) if parts else None


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Scores to add: a boolean mask is true where attention is not allowed, as in ``nn.MultiheadAttention``."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, float("-inf"))
