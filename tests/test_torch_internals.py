"""Each torch internal behaves as its name in ``lbdrop/_torch.py`` says, and no other file of the package uses one."""

import ast
import copy
import math
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import lbdrop
from lbdrop import _torch as internals

PACKAGE = Path(lbdrop.__file__).parent


# ---------------------------------------------------------------------------------------------------- torch.func, autocast


def test_inside_transform_is_true_under_vmap_alone() -> None:
    answers: list[bool] = []

    def ask(x: Tensor) -> Tensor:
        answers.append(internals.inside_transform())
        return x

    ask(torch.zeros(2))
    torch.func.vmap(ask)(torch.zeros(2))
    ask(torch.zeros(2))
    assert answers == [False, True, False]


def test_is_batched_tells_what_depends_on_the_mapped_axis() -> None:
    shared = torch.ones(3)
    answers: list[bool] = []

    def ask(x: Tensor) -> Tensor:
        answers.extend(map(internals.is_batched, (x, x + shared, shared, shared * 2)))
        return x

    torch.func.vmap(ask)(torch.zeros(4, 3))
    assert answers == [True, True, False, False]
    assert not internals.is_batched(shared)


def test_any_autocast_enabled_follows_the_context() -> None:
    assert not internals.any_autocast_enabled()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert internals.any_autocast_enabled()
        with torch.autocast("cpu", enabled=False):
            assert not internals.any_autocast_enabled()


def test_autocast_disabled_keeps_float32_inside_autocast() -> None:
    x = torch.randn(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with internals.autocast_disabled():
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_operations_name_what_is_cast_and_nothing_else(device: str) -> None:
    names = internals.autocast_operations(device)
    assert {"linear", "conv2d", "mm", "bmm", "matmul"} <= names
    assert not {"add", "mul", "relu", "max_pool2d"} & names
    assert not [name for name in names if ":" in name or "." in name]


def test_autocast_operations_of_an_unknown_device_are_none() -> None:
    assert internals.autocast_operations("meta") == set()


# ---------------------------------------------------------------------------------------------------------------- autograd


def test_after_backward_calls_when_all_gradients_are_there() -> None:
    weight = torch.ones(2, requires_grad=True)
    seen: list[Tensor | None] = []
    loss = (weight * 3).sum()
    loss.register_hook(lambda _: internals.after_backward(lambda: seen.append(weight.grad)))
    assert not seen
    loss.backward()
    assert len(seen) == 1
    assert seen[0] is not None
    assert seen[0].tolist() == [3, 3]


def test_after_backward_passes_an_error_on_to_the_caller() -> None:
    loss = torch.ones(2, requires_grad=True).sum()

    def refuse() -> None:
        raise ValueError("refused")

    loss.register_hook(lambda _: internals.after_backward(refuse))
    with pytest.raises(ValueError, match="refused"):
        loss.backward()


def test_inside_non_reentrant_checkpoint_is_true_in_the_block_alone() -> None:
    answers: list[bool] = []

    def ask(x: Tensor) -> Tensor:
        answers.append(internals.inside_non_reentrant_checkpoint())
        return x * 2

    x = torch.ones(2, requires_grad=True)
    ask(x)
    checkpoint(ask, x, use_reentrant=False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):  # another use of the same hooks
        ask(x)
    assert answers == [False, True, False]


def test_write_count_grows_with_writes_and_not_with_reads() -> None:
    tensor = torch.zeros(3)
    before = internals.write_count(tensor)
    _ = tensor + 1
    assert internals.write_count(tensor) == before
    tensor[:2].add_(1)  # through a view
    assert internals.write_count(tensor) > before


# ----------------------------------------------------------------------------------------------------------------- modules


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


# ---------------------------------------------------------------------------------------------------------------- wrappers


def test_uncompiled_gives_back_what_was_compiled() -> None:
    model = nn.Linear(2, 2)
    assert internals.uncompiled(torch.compile(model)) is model
    assert internals.uncompiled(model) is model


def test_compilation_ends_at_a_marked_function() -> None:
    states = [1.0]

    @internals.compilation_ends_at
    def state() -> float:
        return states[-1]

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * state()

    with pytest.raises(RuntimeError, match="disable"):
        torch.compile(scaled, backend="eager", fullgraph=True)(torch.ones(1))
    compiled = torch.compile(scaled, backend="eager")
    assert compiled(torch.ones(1)) == 1
    states.append(5.0)
    assert compiled(torch.ones(1)) == 5


class LikeFabric(nn.Module):
    """Names its module as Fabric's wrapper does; the real one is tested with Lightning."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._forward_module = module


def test_fabric_forward_module_is_what_the_wrapper_calls() -> None:
    model = nn.Linear(2, 2)
    assert internals.fabric_forward_module(LikeFabric(model)) is model
    assert internals.fabric_forward_module(model) is None


@contextmanager
def one_process_group(folder: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'group'}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_ddp_is_active_in_its_forward_pass_alone_and_names_its_parameters(tmp_path: Path) -> None:
    class Asks(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            answers.append(internals.ddp_is_active())
            return super().forward(input)

    answers: list[bool] = []
    model = Asks(2, 2)
    with one_process_group(tmp_path):
        wrapper = DistributedDataParallel(model)
        wrapper(torch.zeros(1, 2)).sum().backward()
        model(torch.zeros(1, 2))
        model.late = nn.Parameter(torch.zeros(1))
        assert {id(p) for p in internals.ddp_parameters(wrapper)} == {id(model.weight), id(model.bias)}
    assert answers == [True, False]


# ------------------------------------------------------------------------------------------------------------ many tensors


def test_clamp_many_holds_each_tensor_between_its_own_bounds() -> None:
    tensors = [torch.tensor([-5.0, 0.5, 5.0]), torch.tensor([[-5.0], [5.0]])]
    internals.clamp_many(tensors, [-1.0, 0.0], [1.0, 2.0])
    assert tensors[0].tolist() == [-1, 0.5, 1]
    assert tensors[1].tolist() == [[0], [2]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_clamp_min_with_gradient_has_one_at_the_bound_and_none_below(dtype: torch.dtype) -> None:
    values = torch.tensor([-2.0, 0.5, 3.0, math.nan], dtype=dtype, requires_grad=True)
    clamped = internals.clamp_min_with_gradient(values, 0.5)
    clamped[:3].sum().backward()
    assert clamped.dtype == dtype
    assert torch.equal(clamped[:3].detach(), values.detach()[:3].clamp(min=0.5))
    assert bool(clamped[3].isnan())
    assert values.grad is not None
    assert values.grad.tolist() == [0, 1, 1, 0]


def test_copy_many_fills_each_target() -> None:
    targets = [torch.zeros(3), torch.zeros(2, dtype=torch.int64)]
    whole = torch.zeros(4)
    internals.copy_many([*targets, whole[:2]], [torch.arange(3.0), torch.tensor([4, 5]), torch.ones(2)])
    assert [each.tolist() for each in targets] == [[0, 1, 2], [4, 5]]
    assert whole.tolist() == [1, 1, 0, 0]


def test_norms_of_many_are_one_for_each_tensor() -> None:
    tensors = [torch.tensor([3.0, -4.0]), torch.tensor([[math.nan]]), torch.tensor([-math.inf, 1.0])]
    largest = internals.norms_of_many(tensors, math.inf)
    assert float(largest[0]) == 4
    assert math.isnan(largest[1])
    assert float(largest[2]) == math.inf
    assert float(internals.norms_of_many(tensors[:1], 2.0)[0]) == 5
    assert internals.norms_of_many([], 2.0) == []


def test_tree_goes_to_leaves_and_back() -> None:
    tree = {"a": [torch.ones(1), (2, None)], "b": OrderedDict(c=torch.zeros(2))}
    leaves, structure = internals.tree_flatten(tree)
    assert [leaf for leaf in leaves if not isinstance(leaf, Tensor)] == [2, None] or 2 in leaves
    assert len([leaf for leaf in leaves if isinstance(leaf, Tensor)]) == 2
    back = internals.tree_unflatten(leaves, structure)
    assert back.keys() == tree.keys()
    assert back["a"][0] is tree["a"][0]
    assert isinstance(back["b"], OrderedDict)


def test_tree_map_takes_the_leaves_of_several_trees_together() -> None:
    trees = [{"a": (torch.tensor(n), [torch.tensor(10 * n)])} for n in (1, 2)]
    stacked = internals.tree_map(lambda *each: torch.stack(each), *trees)
    assert stacked["a"][0].tolist() == [1, 2]
    assert stacked["a"][1][0].tolist() == [10, 20]


def test_tree_flatten_and_map_agree_on_structures() -> None:
    same = internals.tree_flatten((1, [2]))[1]
    assert internals.tree_flatten((3, [4]))[1] == same
    assert internals.tree_flatten(([3], 4))[1] != same


# --------------------------------------------------------------------------------------------------------------- indicator


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("compare", [torch.lt, torch.gt, torch.ge, torch.ne])
def test_indicator_is_the_comparison_in_the_precision_of_its_values(compare, dtype) -> None:
    values = torch.tensor([[0.0, 0.5, 1.0], [-0.0, math.nan, math.inf]], dtype=dtype)
    thresholds = torch.tensor([0.5, 0.5, 2.0])
    ones = internals.indicator(compare, values, thresholds)
    assert ones.dtype == dtype
    assert torch.equal(ones, compare(values, thresholds).to(dtype))


def test_indicator_leaves_its_values_and_has_no_gradient() -> None:
    values, threshold = torch.rand(4, 3), torch.tensor(0.5, requires_grad=True)
    before = values.clone()
    assert not internals.indicator(torch.lt, values, threshold).requires_grad
    assert torch.equal(values, before)


def test_indicator_works_under_vmap_whichever_side_has_the_lanes() -> None:
    values, thresholds = torch.rand(5, 3), torch.rand(4)
    expected = (values < thresholds[:, None, None]).float()
    ones = torch.func.vmap(lambda threshold: internals.indicator(torch.lt, values, threshold))(thresholds)
    assert torch.equal(ones, expected)


# ------------------------------------------------------------------------------------------------------------ architecture

OF_STRINGS = {"_orig_mod", "_forward_module"}
"""Private names that are read by ``getattr``; elsewhere such a string may be the name of an operation."""


def private_names() -> set[str]:
    """Attributes of torch's own objects that begin with one underscore."""
    objects = (
        torch, torch.Tensor, torch._C, torch.autograd, torch.autograd.Variable, torch.utils.checkpoint, nn, nn.functional,
        nn.Module(), nn.LSTM(1, 1), nn.MultiheadAttention(2, 1), DistributedDataParallel, torch.optim.Adam([torch.zeros(1)]),
        torch.func, torch.cuda, torch.overrides, torch.amp, torch.distributed, torch.fx.Graph(),
    )  # fmt: skip
    names = {name for each in objects for name in dir(each) if name.startswith("_") and not name.startswith("__")}
    return names | OF_STRINGS | {"_active_ddp_module", "_module_parameters"}


def uses_of_internals(source: str, names: set[str]) -> list[str]:
    tree = ast.parse(source)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
                and ast.unparse(n.value) == "self"}  # fmt: skip
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names - defined:
            found.append(ast.unparse(node))
        if isinstance(node, ast.Constant) and node.value in OF_STRINGS:
            found.append(repr(node.value))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += [ast.unparse(node)] if any(part.startswith("_") for part in parts) else []
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("torch.") and "._" in a.name]
    return found


@pytest.mark.parametrize(
    "source",
    ["torch._foreach_norm(x)", "m._parameters", "getattr(m, '_orig_mod', m)", "from torch.utils._pytree import tree_map",
     "import torch._dynamo", "from torch import _C", "x._version", "torch._C._functorch.is_batchedtensor(x)"],
)  # fmt: skip
def test_internals_are_found_in_source(source: str) -> None:
    assert uses_of_internals(source, private_names())


@pytest.mark.parametrize(
    "source",
    [
        "m.weight",
        "self._own()\ndef _own(self): ...",
        "self._version = 1\nself._version",
        "'_convolution'",
        "m.__dict__",
    ],
)
def test_public_and_own_names_are_no_internals(source: str) -> None:
    assert not uses_of_internals(source, private_names())


def test_package_uses_internals_in_one_file_alone() -> None:
    names = private_names()
    found = {
        str(path.relative_to(PACKAGE)).replace(os.sep, "/"): uses
        for path in PACKAGE.rglob("*.py")
        if (uses := uses_of_internals(path.read_text(encoding="utf-8"), names))
    }
    assert found.pop("_torch.py")
    assert found == {}


def test_every_internal_has_a_name_that_says_what_it_is() -> None:
    for name in internals.__all__:
        assert getattr(internals, name).__doc__, name


def test_transparent_copy_of_a_function_shows_its_inner_calls() -> None:
    class Seen(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.functions: list[Any] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.functions.append(func)
            return func(*args, **(kwargs or {}))

    x, inside = torch.randn(2, 3), internals.transparent(F.softmax)
    assert inside is not None
    with Seen() as whole:
        expected = F.softmax(x, dim=-1)
    with Seen() as opened:
        found = inside(x, dim=-1)
    assert torch.equal(found, expected)
    # The function itself, and then its tensor method.
    assert len(whole.functions) == len(opened.functions) == 1
    assert whole.functions[0] is F.softmax
    assert opened.functions[0] is not F.softmax
    assert internals.transparent(torch.add) is None


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


def test_operation_mode_sees_what_a_function_ends_in() -> None:
    class Seen(internals.OperationMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Seen() as seen:
        F.dropout(torch.ones(4), 0.5)
    assert any("bernoulli" in name or "dropout" in name for name in seen.names)
