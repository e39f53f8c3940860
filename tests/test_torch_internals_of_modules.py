"""Each torch internal of modules behaves as its name in ``lbdrop/_torch.py`` says."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lbdrop import _torch as internals


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.child = nn.Parameter(torch.ones(2)), nn.Linear(2, 2)
        self.twin = self.child
        self.register_parameter("bias", None)
        self.register_buffer("mean", torch.zeros(2))


def test_tables_of_a_module_hold_its_own_entries() -> None:
    module = Small()
    assert internals.parameters_of(module).keys() == {"scale", "bias"}
    assert internals.buffers_of(module).keys() == {"mean"}
    assert internals.children_of(module).keys() == {"child", "twin"}


def test_tables_of_buffers_and_children_can_be_changed() -> None:
    module, mean, twin = Small(), torch.ones(2), nn.Identity()
    internals.buffers_of(module)["mean"] = mean
    internals.children_of(module)["twin"] = twin
    assert module.mean is mean
    assert module.twin is twin
    assert module.child is not twin


def test_has_forward_pre_hooks_finds_a_spectral_norm() -> None:
    assert not internals.has_forward_pre_hooks(nn.Linear(2, 2))
    assert internals.has_forward_pre_hooks(nn.utils.spectral_norm(nn.Linear(2, 2)))


class Doubled(nn.Linear):
    def __init__(self) -> None:
        raise AssertionError("bare_module runs no __init__")

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_bare_module_shares_parameters_and_leaves_the_original_alone() -> None:
    original, x = nn.Linear(3, 2), torch.randn(4, 3)
    module = internals.bare_module(Doubled, original)
    assert torch.equal(module(x), 2 * original(x))
    assert module.weight is original.weight
    weight = original.weight
    module.weight = nn.Parameter(torch.zeros(2, 3))
    module.extra = nn.Identity()
    assert original.weight is weight
    assert not list(original.children())


def test_bare_module_leaves_out_what_is_named() -> None:
    original = Small()
    original.note = "text"
    module = internals.bare_module(Small, original, without=("twin", "note"))
    assert internals.children_of(module).keys() == {"child"}
    assert not hasattr(module, "note")
    assert internals.children_of(original).keys() == {"child", "twin"}


class StandIn(nn.MultiheadAttention):
    """Attention that passes its input on."""

    def forward(self, query: Tensor, *_: object, **__: object) -> tuple[Tensor, None]:
        return query, None


def test_attention_has_one_weight_unless_widths_differ_or_it_is_denied() -> None:
    attention = nn.MultiheadAttention(8, 2)
    assert internals.attention_has_one_weight(attention)
    assert not internals.attention_has_one_weight(nn.MultiheadAttention(8, 2, kdim=4))
    internals.set_attention_has_one_weight(attention, False)
    assert not internals.attention_has_one_weight(attention)


def test_encoder_layer_calls_its_attention_only_if_one_weight_is_denied() -> None:
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)
    layer.self_attn = StandIn(8, 2, batch_first=True).eval()
    with torch.no_grad():
        fused = layer(x)
        internals.set_attention_has_one_weight(layer.self_attn, False)
        called = layer(x)
    expected = layer.norm1(2 * x)
    expected = layer.norm2(expected + layer.linear2(torch.relu(layer.linear1(expected))))
    torch.testing.assert_close(called, expected)
    assert not torch.allclose(fused, expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layer_computes_with_the_weights_it_was_given(kind) -> None:
    first, second, x = kind(3, 4), kind(3, 4), torch.randn(5, 2, 3)
    layer = internals.bare_module(kind, first)
    internals.set_recurrent_weights(layer, dict(internals.parameters_of(second)))
    assert torch.equal(layer(x)[0], second(x)[0])
    assert not torch.equal(first(x)[0], second(x)[0])
    layer(x)[0].sum().backward()
    assert second.weight_ih_l0.grad is not None
    assert first.weight_ih_l0.grad is None


def test_recurrent_layer_computes_with_weights_that_replaced_others() -> None:
    first, x = nn.GRU(3, 4), torch.randn(5, 2, 3)
    layer = internals.bare_module(nn.GRU, first)
    layer.weight_ih_l0 = nn.Parameter(torch.zeros_like(first.weight_ih_l0))
    internals.set_recurrent_weights(layer)
    layer.flatten_parameters()
    assert torch.equal(layer(x)[0], layer(2 * x)[0])  # the input has no effect any more


def test_forward_hooks_are_removed_by_their_functions_from_a_copy_too() -> None:
    calls: list[str] = []

    def before(*_: Any) -> None:
        calls.append("before")

    def after(*_: Any) -> None:
        calls.append("after")

    module = nn.Linear(2, 2)
    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, always_call=True)
    twin = copy.deepcopy(module)
    internals.remove_forward_hooks(twin, before, after)
    twin(torch.randn(1, 2))
    assert calls == []
    module(torch.randn(1, 2))
    assert calls == ["before", "after"]
