"""Several processes, as ``torchrun`` starts them: which one this is, its device, and a step under ``DistributedDataParallel``.

Every process draws its own masks. Gradients of weights and rates are averaged over the processes by the wrapper, which does
so for one forward pass of the wrapped model. An objective calls the model many times in a step, so the whole step takes the
place of that one pass.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lbdrop._torch import (
    after_backward,
    ddp_is_active,
    ddp_parameters,
    fabric_forward_module,
    is_divided,
    is_sharded,
    uncompiled,
)
from lbdrop.errors import DropoutError

__all__ = [
    "averaged_parameters",
    "call_through_wrapper",
    "check_agreement",
    "check_wrapper",
    "count",
    "device_of_this_process",
    "is_first",
    "per_process_randomness",
    "rank",
    "several",
    "train_together",
    "unwrap",
    "warn_if_alone",
    "with_zero_gradients",
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
    """The device of this process: ``device``, or a GPU if there is one; of several GPUs, each process has one to itself."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type != "cuda" or count() == 1:
        return chosen
    local_rank, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if local_rank >= gpus:
        raise DropoutError(
            f"processes: want at most one for each of the {gpus} GPUs of this machine, got number {local_rank + 1}; start"
            " fewer with --nproc-per-node, or pass the device cpu"
        )
    return torch.device("cuda", local_rank)


@contextmanager
def per_process_randomness(device: torch.device) -> Iterator[int | None]:
    """Draw other random numbers in each process: they follow from its rank and the global random state, alike in all or not.

    Gives the seed that follows from that state alone; ``None`` where there is one process.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        yield None
        return
    seed = int(torch.randint(2**62, ()))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed + dist.get_rank())
        yield seed


def check_agreement(epochs: int, checkpoints: Path, device: torch.device) -> None:
    """An error where processes would resume from different epochs: they would wait for each other for ever."""
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
    """The model as it was written, and the wrapper that shares it between processes: DDP, Fabric's module, or ``None``."""
    model, wrapper = uncompiled(model), None
    while isinstance(model, DistributedDataParallel) or fabric_forward_module(model) is not None:
        wrapper = wrapper or model
        model = model.module  # pyright: ignore[reportAssignmentType]
    return uncompiled(model), wrapper


def averaged_parameters(wrapper: nn.Module) -> set[int] | None:
    """By ``id``, the parameters whose gradients a wrapper averages; ``None`` where it averages none."""
    for module in (wrapper, fabric_forward_module(wrapper)):
        if isinstance(module, DistributedDataParallel):
            return {id(parameter) for parameter in ddp_parameters(module)}
    return None


def check_wrapper(model: nn.Module, wrapper: nn.Module | None) -> None:
    """An error about parameters that were added to a model after it was wrapped: their gradients are not averaged."""
    averaged = None if wrapper is None else averaged_parameters(wrapper)
    if divided := [name for name, p in model.named_parameters() if name.endswith("logit") and is_divided(p)]:
        raise DropoutError(
            f"{divided[0]}: want rates that every process has as a whole, got one divided by fully_shard; give it"
            " ignored_params={layer.logit for layer in lbdrop.dropout.noise_layers(model).values()}"
        )
    missing = [name for name, p in model.named_parameters() if averaged is not None and id(p) not in averaged]
    if missing:
        raise DropoutError(
            f"model: want one that was wrapped with all its parameters, got {missing[:4]} added since, which no process"
            " would share; convert the model and make its objective first, wrap it then, and set objective.model to it"
        )


def train_together(model: nn.Module, wrapper: nn.Module | None) -> bool:
    """Whether several processes train a model together: wrapped, sharded, or in a step inside its wrapper's forward."""
    return several() and (wrapper is not None or ddp_is_active() or is_sharded(model))


def several() -> bool:
    """Whether this is one of several processes in an initialised group."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def warn_if_alone() -> None:
    """For a model without a wrapper: a warning if there are other processes all the same."""
    if several():
        warnings.warn(
            f"one of {dist.get_world_size()} processes, but nothing averages gradients over them: give the objective the"
            " wrapped model, as in Objective(DistributedDataParallel(model), …), unless each process trains a model of"
            " its own or you average by hand",
            stacklevel=4,
        )


def with_zero_gradients(loss: Tensor, parameters: Sequence[nn.Parameter], forget: bool = False) -> Tensor:
    """The loss, from which these parameters do not learn: their gradients are 0, as other processes expect in every step.

    Args:
        loss: what will be differentiated.
        parameters: some may be frozen since the model was wrapped; the wrapper waits for them all the same.
        forget: take the gradients away when the backward pass is over: an optimiser may decay what has one.
    """
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    loss = _Unlearned.apply(loss, *parameters)  # pyright: ignore[reportAssignmentType]
    for parameter in frozen:
        parameter.requires_grad_(False)

    def clear() -> None:
        for parameter in parameters:
            parameter.grad = None

    if forget:  # behind the wrapper's own callback, which is queued during the pass
        loss.register_hook(lambda _: after_backward(lambda: after_backward(clear)))
    return loss


class _Unlearned(torch.autograd.Function):
    """A place in the graph for parameters that a loss does not depend on."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        ctx.parameters = [parameter.detach() for parameter in parameters]
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, ...]:
        return grad_outputs[0], *map(torch.zeros_like, ctx.parameters)


def call_through_wrapper(wrapper: nn.Module | None, step: Callable[[], Result]) -> Result:
    """Run a step in place of the wrapped model's forward pass: what the wrapper does around a pass, it does around the step."""
    if wrapper is None or not torch.is_grad_enabled():  # no gradient to average, and perhaps only one process calls
        return step()
    inner: nn.Module = wrapper.module  # pyright: ignore[reportAssignmentType]
    instance_forward = vars(inner).get("forward")  # of this one object, beside its class's

    def restore() -> None:
        if instance_forward is None:
            vars(inner).pop("forward", None)
        else:
            vars(inner)["forward"] = instance_forward

    def run_step(run: Callable[[], Result]) -> Result:
        restore()  # the step itself calls the model's own forward
        return run()

    vars(inner)["forward"] = run_step
    try:
        return wrapper(step)
    finally:
        restore()
