"""Learned dropout of attention weights in Hugging Face models, through the attention function that users may register."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lbdrop.dropout import NoiseLayer
from lbdrop.errors import DropoutError

__all__ = ["attention_modules", "reaches", "route_attention", "unroute_attention"]

NAME = "lbdrop"
# Arguments of a model's attention call that do not change what `attend` computes: the mask contains them already, or they are
# for fused kernels or other layers. Any other argument may change the result, and is refused.
WITHOUT_EFFECT = {
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "cu_seqlens", "is_causal", "max_length_k", "max_length_q",
    "num_items_in_batch", "output_attentions", "output_hidden_states", "output_router_logits", "position_embeddings",
    "position_ids", "return_dict", "sliding_window", "use_cache",
}  # fmt: skip


class Attention(NamedTuple):
    """An attention module and the attribute in which it keeps its dropout."""

    name: str
    attribute: str
    rate: float
    heads: int


def attention_modules(model: nn.Module) -> list[Attention]:
    """Attention modules that call the registered attention function and have a dropout, by name."""
    found = []
    for name, module in model.named_modules():
        if _backbone(model, name) is None:
            continue
        if type(module).__module__.startswith("transformers.") and _calls_registered_attention(type(module)):
            for attribute in ("attention_dropout", "attn_dropout", "dropout"):
                value = getattr(module, attribute, None)
                rate = value.p if isinstance(value, nn.Dropout) else value
                if isinstance(rate, float) and 0 < rate < 1:
                    found.append(Attention(name, attribute, rate, _heads(module)))
                    break
    return found


def _backbone(model: nn.Module, name: str) -> Any:
    """The outermost Hugging Face model around a module: the one whose attention function can be chosen."""
    path = ""
    for part in ("", *name.split(".")):
        path = f"{path}.{part}" if path else part
        outer = model.get_submodule(path)
        if hasattr(outer, "set_attn_implementation"):
            return outer
    return None


def reaches(site: str, attention: list[Attention]) -> bool:
    """Whether the registered function replaces this functional site."""
    return any(site.startswith(f"{a.name} (") for a in attention)


def _calls_registered_attention(cls: type) -> bool:
    names = getattr(getattr(cls, "forward", None), "__code__", None)
    return names is not None and "ALL_ATTENTION_FUNCTIONS" in names.co_names


def _heads(module: nn.Module) -> int:
    config: Any = module.config
    return int(getattr(module, "num_heads", None) or getattr(module, "num_attention_heads", None)
               or config.num_attention_heads)  # fmt: skip


def route_attention(model: Any, attention: list[Attention], make: Callable[[Any], Callable[..., NoiseLayer]]) -> None:
    """Give each attention module a learned dropout, and make the model call our attention function."""
    if not attention:
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    for site in attention:
        # Under a new name: the module still passes its old rate, which `attend` ignores.
        module = model.get_submodule(site.name)
        learned = make(site)(site.heads, unit_dim=1).to(next(module.parameters()).device)
        module.learned_attention_dropout = learned.train(module.training)
        module.attention_before_lbdrop = _backbone(model, site.name).config._attn_implementation
    for backbone in {id(b): b for b in (_backbone(model, site.name) for site in attention)}.values():
        backbone.set_attn_implementation(NAME)


def unroute_attention(model: Any) -> None:
    """Undo :func:`route_attention`; in the deterministic pass nothing has to replace it."""
    restored: dict[int, tuple[Any, str]] = {}
    for name, module in model.named_modules():
        learned = getattr(module, "learned_attention_dropout", None)
        if isinstance(learned, NoiseLayer):
            if learned.scale != "inverted":
                raise DropoutError(
                    f"{name}: want scale='inverted' to bake the attention of a Hugging Face model, got"
                    f" {learned.scale!r}; convert it with scale='inverted', since its gain has no weight to go into"
                )
            backbone = _backbone(model, name)
            restored[id(backbone)] = backbone, module.attention_before_lbdrop
            del module.learned_attention_dropout, module.attention_before_lbdrop
    for backbone, implementation in restored.values():
        backbone.set_attn_implementation(implementation)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Attention step by step, its weights dropped by the module's learned rate."""
    unknown = sorted(name for name, value in others.items() if value is not None and name not in WITHOUT_EFFECT)
    if unknown:
        raise DropoutError(
            f"{type(module).__name__}: want attention by scores, mask and softmax alone, got {', '.join(unknown)} too, which"
            " its learned dropout would leave out and so change the model; set the config's attention dropout to 0 before"
            " the model is made, then lbdrop.convert(model) learns its other dropouts"
        )
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask[..., : key.shape[-2]]
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    if (learned := getattr(module, "learned_attention_dropout", None)) is not None:
        weights = learned(weights)
    return (weights @ value).transpose(1, 2).contiguous(), weights
