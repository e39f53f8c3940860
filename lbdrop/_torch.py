"""Every torch internal that the package uses, one function each, and the indicator that masks are made of.

A private name of torch may change with any release. No other file uses one; ``tests/test_torch_internals*.py`` check how
each behaves, under the oldest and the newest torch that ``pyproject.toml`` allows.
"""

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from types import FunctionType
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree, checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "OperationMode",
    "after_backward",
    "any_autocast_enabled",
    "attention_has_one_weight",
    "autocast_disabled",
    "autocast_operations",
    "bare_module",
    "buffers_of",
    "checkpoint_restores_randomness",
    "children_of",
    "clamp_many",
    "clamp_min_with_gradient",
    "compilation_ends_at",
    "copy_many",
    "ddp_is_active",
    "ddp_parameters",
    "fabric_forward_module",
    "functions_unseen",
    "has_compiled_call",
    "has_forward_pre_hooks",
    "indicator",
    "inside_backward",
    "inside_non_reentrant_checkpoint",
    "inside_transform",
    "is_batched",
    "is_divided",
    "is_sharded",
    "norms_of_many",
    "parameters_of",
    "remove_forward_hooks",
    "set_attention_has_one_weight",
    "set_recurrent_weights",
    "slow_lanes_unreported",
    "transparent",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
    "uncompiled",
    "write_count",
]

Module = TypeVar("Module", bound=nn.Module)
Function = TypeVar("Function", bound=Callable[..., Any])


# ---------------------------------------------------------------------------------------------------- torch.func, autocast


def inside_transform() -> bool:
    """Whether a transform of ``torch.func``, such as ``vmap``, runs: some calls have no rule under one."""
    return torch._C._are_functorch_transforms_active()


def is_batched(tensor: Tensor) -> bool:
    """Whether a tensor has an axis that only ``vmap`` sees: it depends on the mask, and dies with the transform."""
    return torch._C._functorch.is_batchedtensor(tensor)  # pyright: ignore[reportAttributeAccessIssue]


_unreported_lock, _unreported = threading.Lock(), [0]


@contextmanager
def slow_lanes_unreported() -> Iterator[None]:
    """Do not warn about operations that ``vmap`` runs lane by lane; the switch is one for all threads, so they are counted."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    with _unreported_lock:
        _unreported[0] += 1
        functorch._set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        with _unreported_lock:
            _unreported[0] -= 1
            functorch._set_vmap_fallback_warning_enabled(not _unreported[0])


def any_autocast_enabled() -> bool:
    """Whether autocast is on for any device; torch's public question is about one device."""
    return torch._C._is_any_autocast_enabled()


def autocast_disabled() -> AbstractContextManager[object]:
    """Switch autocast off for every device, with less overhead than ``torch.autocast(enabled=False)`` for each."""
    return torch._C._DisableAutocast()


def autocast_operations(device: str) -> set[str]:
    """The names of all operations that torch casts under autocast on a device; torch publishes no list."""
    if not torch.amp.is_autocast_available(device):
        return set()
    names = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device.upper()}")
    return {name.removeprefix("aten::").partition(".")[0] for name in names if name.startswith("aten::")}


@cache
def transparent(func: Any) -> Callable[..., Any] | None:
    """A copy of a torch function written in Python, such as ``F.softmax``, whose inner calls reach a mode one by one.

    Such a function first asks ``has_torch_function``, and hands itself over whole if so; in the copy the answer is no.
    ``None`` stands for a function that does not ask.
    """
    if not isinstance(func, FunctionType):
        return None
    questions = {name for name in func.__code__.co_names if name.startswith("has_torch_function")} & set(
        func.__globals__
    )
    if not questions:
        return None
    names = func.__globals__ | dict.fromkeys(questions, _never)
    copy = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _never(*_: object) -> bool:
    return False


def functions_unseen() -> AbstractContextManager[object]:
    """While open, calls of torch functions go by all modes that watch or answer them, and take half the time."""
    return torch._C.DisableTorchFunction()


class OperationMode(TorchDispatchMode):
    """A mode that sees every operation below autograd, whatever function of torch led to it."""


# ---------------------------------------------------------------------------------------------------------------- autograd


def after_backward(callback: Callable[[], None]) -> None:
    """From a hook in a backward pass: call this when all of the pass is queued, which is before any optimiser step."""
    engine: Any = torch.autograd.Variable._execution_engine  # pyright: ignore[reportAttributeAccessIssue]
    engine.queue_callback(callback)


def inside_backward() -> bool:
    """Whether the caller runs in a backward pass, as a checkpointed block does when it is computed again."""
    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportAttributeAccessIssue]


def inside_non_reentrant_checkpoint() -> bool:
    """Whether the caller runs in a block of ``checkpoint(use_reentrant=False)``, shown by its hooks for saved tensors."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore[reportAttributeAccessIssue]
    return hooks is not None and hooks[0].__qualname__.startswith(checkpoint._checkpoint_hook.__name__)


def checkpoint_restores_randomness() -> bool:
    """Whether the checkpointed block that the caller stands in is computed again with the random numbers of its first run."""
    code = inspect.unwrap(checkpoint.checkpoint).__code__
    frame = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is None or bool(frame.f_locals.get("preserve", True))


def write_count(tensor: Tensor) -> int:
    """How often a tensor was written in place: two counts that differ show a write between them."""
    return tensor._version


# ----------------------------------------------------------------------------------------------------------------- modules


def parameters_of(module: nn.Module) -> Mapping[str, Tensor | None]:
    """The table of a module's own parameters, without its children's; faster than ``named_parameters`` and with ``None``s."""
    return module._parameters if isinstance(module._parameters, dict) else dict(module._parameters.items())


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """The table of a module's own buffers, which can be put back: public functions only read it."""
    return (
        module._buffers if isinstance(module._buffers, dict) else dict(module._buffers.items())
    )  # of a scripted module


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """The table of a module's children, in which one that stands there twice is listed twice and can be replaced."""
    return module._modules if isinstance(module._modules, dict) else dict(module._modules.items())


def has_forward_pre_hooks(module: nn.Module) -> bool:
    """Whether something runs before the module's forward, as the old ``weight_norm`` and ``spectral_norm`` do."""
    return bool(module._forward_pre_hooks)


def remove_forward_hooks(module: nn.Module, *functions: Callable[..., Any]) -> None:
    """Take these functions out of a module's forward hooks: a copied module has them, but not the handles to remove them by."""
    for table in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, hook in table.items() if hook in functions]:
            del table[key]
            module._forward_hooks_always_called.pop(key, None)
            module._forward_hooks_with_kwargs.pop(key, None)


def bare_module(kind: type[Module], like: nn.Module, without: Collection[str] = ()) -> Module:
    """A module of class ``kind`` that shares the attributes, parameters and children of ``like``, by no ``__init__``.

    Args:
        kind: the class; its ``__init__``, which would draw new weights, does not run.
        like: the module to share with. The new one has tables of its own: either can replace a parameter or child alone.
        without: names of attributes and children to leave out.
    """
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    module.__dict__.update({name: value for name, value in like.__dict__.items() if name not in without})
    module._parameters = dict(like._parameters)
    module._modules = {name: child for name, child in like._modules.items() if name not in without}
    return module


def attention_has_one_weight(attention: nn.MultiheadAttention) -> bool:
    """Whether query, key and value share one projection weight; they have a weight each where their widths differ."""
    return attention._qkv_same_embed_dim


def set_attention_has_one_weight(attention: nn.MultiheadAttention, shared: bool) -> None:
    """Say so or deny it: ``False`` keeps ``nn.TransformerEncoderLayer`` off its fused path, which calls no submodule."""
    attention._qkv_same_embed_dim = shared


def set_recurrent_weights(layer: nn.RNNBase, weights: Mapping[str, Tensor | None] | None = None) -> None:
    """Give a recurrent layer weights of these names, by default those it has, and the flat lists that its kernels read."""
    if weights is None:
        layer._init_flat_weights()
        return
    layer._parameters = {}
    layer._flat_weights_names = list(weights)
    layer._all_weights = [layer._flat_weights_names]
    layer._flat_weights = list(weights.values())  # pyright: ignore[reportAttributeAccessIssue]
    for name, weight in weights.items():
        setattr(layer, name, weight)
    references: Any = [weakref.ref(weight) for weight in weights.values() if weight is not None]
    layer._flat_weight_refs = references


# ---------------------------------------------------------------------------------------------------------------- wrappers


def compilation_ends_at(function: Function) -> Function:
    """Graphs break before a call of it, as with ``torch.compiler.disable``, which takes longer to import than torch."""
    function._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def uncompiled(model: nn.Module) -> nn.Module:
    """The model that ``torch.compile`` was given; any other model as it is."""
    return getattr(model, "_orig_mod", model)


def has_compiled_call(module: nn.Module) -> bool:
    """Whether a module runs compiled: one that ``torch.compile`` gave back, or one compiled in place."""
    return uncompiled(module) is not module or module._compiled_call_impl is not None


def fabric_forward_module(model: nn.Module) -> nn.Module | None:
    """What a wrapper of Lightning's Fabric calls, DDP among others; ``None`` for any other module."""
    return getattr(model, "_forward_module", None)


def ddp_is_active() -> bool:
    """Whether the caller runs in the forward pass of a ``DistributedDataParallel``, as a Lightning training step does."""
    return DistributedDataParallel._active_ddp_module is not None


def is_sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` has divided the model, or a part of it, among processes."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # which takes seconds to import
    return fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in model.modules())


def is_divided(tensor: Tensor) -> bool:
    """Whether a tensor is a ``DTensor``, of which each process has a part."""
    return hasattr(tensor, "placements")


def ddp_parameters(wrapper: DistributedDataParallel) -> list[nn.Parameter]:
    """The parameters that a wrapper averages gradients of: those that the model had when it was wrapped."""
    return list(wrapper._module_parameters)


# ------------------------------------------------------------------------------------------------------------ many tensors


def clamp_many(tensors: Sequence[Tensor], low: Sequence[float], high: Sequence[float]) -> None:
    """Hold each tensor between its own two bounds, in place, in two kernels for all of them."""
    torch._foreach_clamp_min_(list(tensors), list(low))
    torch._foreach_clamp_max_(list(tensors), list(high))


def clamp_min_with_gradient(values: Tensor, low: float) -> Tensor:
    """``values.clamp(min=low)`` with gradient 1 at the bound: since torch 2.15 it is 0, and a rate could not leave it."""
    return torch.where(values < low, low, values)


def copy_many(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target in one kernel: small copies take longer to launch than to run."""
    torch._foreach_copy_(list(targets), list(sources))


def norms_of_many(tensors: Sequence[Tensor], order: float) -> list[Tensor]:
    """The norm of each tensor, in one kernel for all of them; none of no tensors."""
    return list(torch._foreach_norm(list(tensors), order)) if tensors else []


class _Explained(str):
    """A name that is equal to what it was, and in a message has a word behind it."""

    word = ""

    def __format__(self, spec: str) -> str:
        return f"{str.__format__(self, spec)} ({self.word})"


def explain_missing(arguments: Sequence[Any], name: str, word: str) -> None:
    """At the end of ``_load_from_state_dict``, of its ``arguments`` behind the prefix: say more of a name that is missing."""
    missing: list[str] = arguments[2]
    if missing and missing[-1] == name:
        missing[-1] = _Explained(name)
        missing[-1].word = word


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of nested tuples, lists and dicts, and their structure; knows the containers that libraries register."""
    return _pytree.tree_flatten(tree)


def tree_unflatten(leaves: Sequence[Any], structure: Any) -> Any:
    """Put leaves back into a structure that :func:`tree_flatten` gave."""
    return _pytree.tree_unflatten(leaves, structure)


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to every leaf, or to the leaves at the same place of several trees."""
    return _pytree.tree_map(function, tree, *others)


# --------------------------------------------------------------------------------------------------------------- indicator


def indicator(
    compare: Callable[..., Tensor], values: Float[Tensor, "*shape"], to: Tensor | float
) -> Float[Tensor, "*shape"]:
    """1 where ``values`` compare so and 0 elsewhere, in their precision; ``to`` broadcasts against them, no gradient.

    >>> indicator(torch.lt, torch.tensor([0.2, 0.9]), 0.5)
    tensor([1., 0.])
    """
    if inside_transform():  # no rule for writing into a tensor
        return compare(values, to).to(values.dtype)
    # Written as numbers at once: a CPU makes booleans one by one, and to convert them takes as long again.
    with torch.no_grad():
        return compare(values, to, out=torch.empty_like(values))
