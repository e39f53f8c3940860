r"""Training a segmentation network under an objective, by Lightning: recorded steps on a GPU, checkpoints of half the bytes.

$$ f_i = \frac{1}{|P_i|}\sum_{p \in P_i} -\log p(y_p \mid x_i), \qquad P_i \text{ its pixels that are not void} $$

A network of a hundred thin layers launches thousands of small kernels a step, and waits for the host between them. On a GPU the
step (both masks, backward pass, optimiser) is therefore recorded once as a CUDA graph and replayed.
"""

import gc
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from experiments.networks.tiramisu import dense_kernels
from experiments.vision.camvid import VOID
from experiments.vision.muon import Muon
from experiments.vision.train import Classifier, Schedule
from lbdrop import masks
from lbdrop.errors import DropoutError
from lbdrop.guards import processes
from lbdrop.guards.optimizers import parameter_groups
from lbdrop.objective import Objective

__all__ = ["Recorded", "SegmentationSchedule", "Segmenter", "compact", "image_losses", "re_estimate"]

# What the docs of torch.cuda.graph ask for, so that libraries and the optimiser have set themselves up.
WARM_UP = 3


@dataclass(frozen=True)
class SegmentationSchedule(Schedule):
    """A warm-up and a half cosine with AdamW, with or without Muon, or RMSProp whose rate falls by a factor each epoch."""

    optimizer: Literal["adamw", "muon", "rmsprop"] = "adamw"
    """Under "muon" the kernels of dense layers follow :class:`~experiments.vision.muon.Muon`, and AdamW has the rest."""
    weight_decay: float = 0.0
    kernel_lr: float = 0.02
    """Muon's, as is what follows."""
    kernel_decay: float = 0.01
    decay: float = 0.995
    """RMSProp's learning rate is multiplied by it after each epoch."""

    def factor(self, step: int, steps: int) -> float:
        if self.optimizer == "rmsprop":
            return self.decay ** (step * self.epochs // steps)
        return super().factor(step, steps)


def image_losses(
    model: nn.Module, x: Float[Tensor, "batch 3 h w"], y: Int[Tensor, "batch h w"]
) -> Float[Tensor, "batch"]:
    """One loss per image: the mean over its pixels that are not void; 0 where all are."""
    losses = F.cross_entropy(model(x).float(), y, ignore_index=VOID, reduction="none").flatten(1)
    return losses.sum(1) / (y != VOID).flatten(1).sum(1).clamp(min=1)


class Segmenter(Classifier):
    """A network, its objective and its schedule.

    Kernels and their optimiser state are kept in bfloat16, and training goes on from what was kept: so a run taken up again
    equals one that never stopped.

    Args:
        network: the model.
        objective: the objective over it, with ``check=False`` if steps are recorded; ``None`` trains on the mean loss.
        schedule: epochs and learning rates.
        steps: training steps of all epochs.
        seed: draws the masks.
        recorded: whether to replay a CUDA graph; by default on a GPU, but for RMSProp.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective | None,
        schedule: SegmentationSchedule,
        steps: int,
        seed: int = 0,
        recorded: bool | None = None,
    ):
        super().__init__(network, objective, schedule, steps, seed)
        if processes.count() > 1:  # no wrapper sees the backward pass of a step that is made here
            raise DropoutError(
                f"processes: want 1 to train a segmentation network, got {processes.count()}; start it alone"
            )
        self.plan = schedule
        self.automatic_optimization = False  # a recording holds the backward pass and the optimiser too
        on_gpu = next(network.parameters()).is_cuda
        self.recorded = on_gpu and schedule.optimizer != "rmsprop" if recorded is None else recorded
        self.step: Callable[[Tensor, Tensor], Tensor] = self._step
        self.settled = objective is None

    def configure_optimizers(self) -> Any:
        plan, on_gpu = self.plan, next(self.network.parameters()).is_cuda
        kernels = dense_kernels(self.network) if plan.optimizer == "muon" else []
        own = {id(kernel) for kernel in kernels}
        options = {"lr": plan.lr, "weight_decay": plan.weight_decay}
        groups: list[dict[str, Any]] = [{"params": [*self.network.parameters()], **options}]
        if self.objective is not None:
            groups = parameter_groups(self.network, plan.rate_lr, **options)
        groups = [group | {"params": [p for p in group["params"] if id(p) not in own]} for group in groups]
        groups = [{**group, "base_lr": group["lr"]} for group in groups if group["params"]]
        if plan.optimizer == "rmsprop":
            return torch.optim.RMSprop(groups)
        adamw = torch.optim.AdamW(groups, fused=on_gpu, capturable=self.recorded)
        if plan.optimizer == "adamw":
            return adamw
        if not kernels:
            raise DropoutError(
                "optimizer: want a network with dense layers for muon, got one without; train it by adamw instead"
            )
        of_kernels = [{"params": kernels, "base_lr": plan.kernel_lr}]
        return [adamw, Muon(of_kernels, plan.kernel_lr, weight_decay=plan.kernel_decay)]

    def on_train_start(self) -> None:
        if self.recorded:
            for group in self._groups():  # a number would be part of the recording
                group["lr"] = torch.tensor(float(group["lr"]), device=self.device)
            self.step = Recorded(self._step, self.network)

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.total = torch.zeros((), device=self.device)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Any:
        done = self.current_epoch * (self.steps // self.schedule.epochs) + index
        factor = self.schedule.factor(done, self.steps)
        for group in self._groups():
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["base_lr"] * factor)
            else:
                group["lr"] = group["base_lr"] * factor
        if not self.settled:
            self._settle(*batch)
        loss = self.step(*batch)
        self.total += loss
        return {"loss": loss}

    @torch.no_grad()
    def _settle(self, x: Tensor, y: Tensor) -> None:
        """Let the objective choose how it runs its masks. It tries, which draws masks; here they count for nothing.

        Otherwise the first step of a run that is taken up again would draw other masks than the same step of a whole one.
        """
        assert self.objective is not None
        before = {name: value.clone() for name, value in self.network.named_buffers()}
        with torch.random.fork_rng([x.device] if x.is_cuda else []), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "objective: want gradients on")
            self.objective(image_losses, x, y)
        for name, value in self.network.named_buffers():
            value.copy_(before[name])
        self.settled = True

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        if x.is_cuda:
            x = x.contiguous(memory_format=torch.channels_last)
        objective = self.objective
        loss = image_losses(self.network, x, y).mean() if objective is None else objective(image_losses, x, y)
        with torch.autocast(x.device.type, enabled=False):  # Lightning's context is for the forward pass
            loss.backward()
            for optimizer in self._optimizers():
                optimizer.step()
        self.network.zero_grad()
        return loss.detach()

    def on_train_epoch_end(self) -> None:
        if not math.isfinite(self.total):  # asked once an epoch: a recording cannot stop half way
            raise DropoutError(
                f"the loss of epoch {self.current_epoch} is not finite; lower lr (now {self.plan.lr:g}) or rate_lr (now"
                f" {self.plan.rate_lr:g}). What was kept of earlier epochs is as it was"
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        # New mappings: the optimiser's own are in the checkpoint as they are.
        checkpoint["state_dict"] = _round(checkpoint["state_dict"])
        for optimizer in checkpoint["optimizer_states"]:
            optimizer["state"] = {key: _round(state) for key, state in optimizer["state"].items()}

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        found: Any = self.optimizers(use_pl_optimizer=False)
        return found if isinstance(found, list) else [found]

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers() for group in optimizer.param_groups]


def compact(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same with kernels in bfloat16; vectors, a hundredth of the bytes and rates among them, stay as they are."""

    def small(value: Any) -> Any:
        kernel = isinstance(value, Tensor) and value.dim() > 1 and value.is_floating_point()
        return value.bfloat16() if kernel else value

    return {name: small(value) for name, value in state.items()}


def _round(live: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`compact` keeps, and the same values where they came from."""
    kept = compact(live)
    for name, value in kept.items():
        if value is not live[name]:
            live[name].data.copy_(value)
    return kept


class Recorded:
    """Runs a training step, and after a few records it to replay it from then on; batches have one shape.

    Args:
        step: losses, backward pass and optimiser; draws from torch's global generator, which a graph can replay.
        network: its gradients are let go before and after the recording, whose own they then are.
    """

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor], network: nn.Module):
        self.step, self.network = step, network
        self.side = torch.cuda.Stream()
        self.seen = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.x: Tensor
        self.y: Tensor
        self.loss: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if self.graph is None and self.seen < WARM_UP:
            self.seen += 1
            # On a stream of its own: gradients made on the default one could not be recorded later.
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                loss = self.step(x, y)
            torch.cuda.current_stream().wait_stream(self.side)
            return loss
        if self.graph is None:
            self.x, self.y = x.clone(), y.clone()
            self.network.zero_grad(set_to_none=True)
            gc.collect()  # an earlier run's graph, freed in the middle of this recording, would spoil it
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self.step(self.x, self.y)
            self.network.zero_grad(set_to_none=True)
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.loss.clone()


@torch.no_grad()
def re_estimate(
    network: nn.Module, batches: Iterable[Tensor], *, sampled: bool = True, generator: torch.Generator | None = None
) -> None:
    """Gather BatchNorm's running statistics anew, as means over ``batches``, in the state that the network predicts in.

    There fixed dropout is off, while masks are drawn if ``sampled``: activations spread less than in training.
    """
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    training = network.training
    network.eval()
    try:
        with masks.drawn(network, generator) if sampled else masks.deterministic(network):
            for norm in norms:
                norm.training = True
            for count, x in enumerate(batches, 1):
                for norm in norms:
                    norm.momentum = 1 / count  # a plain mean, step by step
                network(x)
    finally:
        network.train(training)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
