"""Each torch internal behaves as its name in ``lbdrop/_torch.py`` says; those of modules are in a file of their own."""

import math
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

from lbdrop import _torch as internals

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


# ---------------------------------------------------------------------------------------------------------------- wrappers


def test_uncompiled_gives_back_what_was_compiled() -> None:
    model = nn.Linear(2, 2)
    assert internals.uncompiled(torch.compile(model)) is model
    assert internals.uncompiled(model) is model


def test_compiled_modules_are_told_from_others() -> None:
    model, in_place = nn.Linear(2, 2), nn.Linear(2, 2)
    in_place.compile(backend="eager")
    assert [internals.has_compiled_call(each) for each in (model, torch.compile(model), in_place)] == [
        False,
        True,
        True,
    ]


def test_functions_are_unseen_by_modes() -> None:
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.rand(1)
        with internals.functions_unseen():
            torch.rand(1)
    assert seen == [torch.rand]


def test_ordinary_models_are_neither_sharded_nor_divided() -> None:
    """What is so is tested in two processes."""
    assert not internals.is_sharded(nn.Linear(2, 2))
    assert not internals.is_divided(nn.Linear(2, 2).weight)


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


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("preserve", [True, False])
def test_checkpoint_tells_whether_it_restores_randomness(preserve: bool, reentrant: bool) -> None:
    seen: list[bool] = []

    def block(x: Tensor) -> Tensor:
        seen.append(internals.checkpoint_restores_randomness())
        return x * 2

    x = torch.ones(2, requires_grad=True)
    checkpoint(block, x, use_reentrant=reentrant, preserve_rng_state=preserve)
    assert seen == [preserve]
    assert internals.checkpoint_restores_randomness()  # outside there is none
