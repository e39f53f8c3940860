"""Several processes, as ``torchrun`` starts them: which one this is, where it works, and one step under their wrapper.

Masks are independent in every process and gradients, those of the rates like those of the weights, are averaged over all of
them: the work of ``DistributedDataParallel``, as long as a step is a forward pass of the wrapped model. An objective calls
the model many times in a step, so the whole step takes the place of that one pass.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lbdrop.errors import DropoutError

__all__ = [
    "averaged_parameters",
    "call_through_wrapper",
    "check_agreement",
    "count",
    "device_of_this_process",
    "is_first",
    "per_process_randomness",
    "rank",
    "unwrap",
]

Result = TypeVar("Result")


def count() -> int:
    """How many processes work together; 1 outside ``torchrun``."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", 1))


def rank() -> int:
    """The number of this process among all of them, from 0."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", 0)) if count() > 1 else 0


def is_first() -> bool:
    """Whether this is the process that writes files and talks to the user."""
    return rank() == 0


def device_of_this_process(device: torch.device | str | None = None) -> torch.device:
    """The device of this process: the one told, or a GPU if there is one; of several GPUs each process has its own."""
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if place.type != "cuda" or count() == 1:
        return place
    here, there = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if here >= there:
        raise DropoutError(
            f"processes: want at most one for each of the {there} GPUs of this machine, got number {here + 1}; start fewer"
            " with --nproc-per-node, or pass the device cpu"
        )
    return torch.device("cuda", here)


@contextmanager
def per_process_randomness(device: torch.device) -> Iterator[None]:
    """Draws of this process alone: they follow from the global random state, which may be the same in all, and the rank."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        yield
        return
    seed = int(torch.randint(2**62, ()))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed + dist.get_rank())
        yield


def check_agreement(epochs: int, checkpoints: Path, device: torch.device) -> None:
    """An error where processes would go on from different epochs: they would wait for each other for ever."""
    if count() == 1:
        return
    mean = torch.tensor(float(epochs), device=device)
    dist.all_reduce(mean)
    mean = float(mean) / count()
    if mean != epochs:
        raise DropoutError(
            f"{checkpoints}: want a folder that all processes see, got one that holds {epochs} epochs for this process and"
            f" {mean:.2f} on average; put it on a file system that all machines share"
        )


# ------------------------------------------------------------------------------------------------------------ wrappers


def unwrap(model: nn.Module) -> tuple[nn.Module, nn.Module | None]:
    """The model as it was written, and what wraps it for several processes: DDP, Fabric's module, or nothing."""
    model = getattr(model, "_orig_mod", model)  # torch.compile's
    wrapper = None
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_forward_module"):
        wrapper = wrapper or model
        model = model.module  # pyright: ignore[reportAssignmentType]
    return getattr(model, "_orig_mod", model), wrapper


def averaged_parameters(wrapper: nn.Module) -> set[int] | None:
    """By identity, the parameters whose gradients a wrapper averages; None where it has no need to."""
    for module in (wrapper, getattr(wrapper, "_forward_module", None)):
        if isinstance(module, DistributedDataParallel):
            return {id(p) for p in module._module_parameters}
    return None


def call_through_wrapper(wrapper: nn.Module | None, step: Callable[[], Result]) -> Result:
    """A step in place of the wrapped model's forward pass: what the wrapper does around one, it does around the step."""
    if wrapper is None or not torch.is_grad_enabled():  # nothing to average: and one process may look by itself
        return step()
    inner: nn.Module = wrapper.module  # pyright: ignore[reportAssignmentType]
    own = vars(inner).get("forward")

    def back() -> None:
        if own is None:
            vars(inner).pop("forward", None)
        else:
            vars(inner)["forward"] = own

    def once(run: Callable[[], Result]) -> Result:
        back()  # inside the step the model is itself
        return run()

    vars(inner)["forward"] = once
    try:
        return wrapper(step)
    finally:
        back()
