"""Training a network for images under an objective, by Lightning: precision, devices, resuming and progress are its own.

Under ``torchrun`` each process takes its share of every batch and draws masks of its own; gradients of weights and rates are
averaged over all (DDP), so that the batch, and with it the schedule, is the same for any number of processes.
"""

import math
import os
import signal
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

from experiments.rival_rules.self_tuning import SelfTuning, parameter_groups
from lbdrop.dropout import noise_layers
from lbdrop.errors import DropoutError, first_line
from lbdrop.guards import processes
from lbdrop.io.files import replacing
from lbdrop.objective import Objective
from lbdrop.rules.rule import HeldOutRule

__all__ = ["Classifier", "Schedule", "fit", "train"]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train: Adam, a linear warm-up, then a half cosine to zero, or a constant rate."""

    epochs: int
    lr: float
    rate_lr: float
    """Learning rate of the dropout logits; a rule that follows held-out data moves these itself."""
    warmup: float = 0.05
    """Share of all steps; the whole schedule is constant if ``constant``."""
    constant: bool = False

    def factor(self, step: int, steps: int) -> float:
        """What the learning rates are multiplied by at one of ``steps`` steps."""
        if self.constant:
            return 1.0
        rise = max(1, round(self.warmup * steps))
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One loss per image."""
    return F.cross_entropy(model(x), y, reduction="none")


class Classifier(L.LightningModule):
    """A network, its objective and its schedule; one training step is the objective's two lines."""

    def __init__(self, network: nn.Module, objective: Objective | None, schedule: Schedule, steps: int, seed: int):
        super().__init__()
        self.network, self.objective, self.schedule = network, objective, schedule
        self.steps, self.seed = steps, seed
        self.batch_generator: torch.Generator | None = None

    def on_train_epoch_start(self) -> None:
        # Masks, batches and held-out data by epoch, so that a run taken up again draws what it would have drawn.
        seed = self.seed * 1_000_003 + self.current_epoch
        torch.manual_seed(seed)
        if self.batch_generator is not None:
            self.batch_generator.manual_seed(seed)
        if self.objective is not None and isinstance(self.objective.rule, HeldOutRule):
            self.objective.rule.restart()
            held_out = getattr(self.objective.rule.held_out.batches, "generator", None)
            if held_out is not None:
                held_out.manual_seed(seed)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        # Without an objective, the plain loop that everybody writes: what time is compared with.
        if self.objective is None:
            with processes.per_process_randomness(batch[0].device):
                return losses(self.network, *batch).mean()
        return self.objective(losses, *batch)

    def configure_optimizers(self) -> Any:
        fused = next(self.network.parameters()).is_cuda
        if self.objective is None:
            groups: Any = self.network.parameters()
        else:
            groups = [g for g in parameter_groups(self.network, self.schedule.rate_lr) if g["params"]]
        optimizer = torch.optim.Adam(groups, lr=self.schedule.lr, fused=fused)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.schedule.factor(step, self.steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.objective is not None:
            checkpoint["objective"] = self.objective.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.objective is not None:
            self.objective.load_state_dict(checkpoint["objective"])

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # it is there already


class _History(Callback):
    """Loss, mean rates and seconds of every epoch; the device is read once an epoch."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []
        self.start = 0.0

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.losses: list[Tensor] = []
        _wait(pl_module.network)
        self.start = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(outputs["loss"].detach())

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        _wait(pl_module.network)
        layers = noise_layers(pl_module.network) if pl_module.objective is not None else {}
        self.epochs.append(
            {
                "epoch": trainer.current_epoch,
                "seconds": time.perf_counter() - self.start,
                "loss": float(trainer.strategy.reduce(torch.stack(self.losses).mean(), reduce_op="mean")),
                "rates": {name: layer.p for name, layer in layers.items()},
            }
        )

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]


class _Saved(Checkpoint):
    """The whole state after every so many epochs and the last, in one file that is always the latest."""

    def __init__(self, path: Path, every: int, done: int):
        self.path, self.every, self.done = path, every, done

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        processes.check_agreement(self.done, self.path.parent, trainer.strategy.root_device)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        done = trainer.current_epoch + 1
        if done % self.every == 0 or done == trainer.max_epochs:
            # All processes take part in saving, one writes.
            with replacing(self.path) if trainer.is_global_zero else nullcontext(self.path) as path:
                trainer.save_checkpoint(path)
            trainer.strategy.barrier()  # from here on the file exists for every process


class _Share:
    """What one of several processes takes of every batch; all of them draw the same batches."""

    def __init__(self, batches: Iterable[Any], rank: int, ranks: int):
        self.batches, self.rank, self.ranks = batches, rank, ranks

    def __len__(self) -> int:
        return len(self.batches)  # pyright: ignore[reportArgumentType]

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for batch in self.batches:
            if len(batch[0]) % self.ranks:
                raise DropoutError(
                    f"batches: want a multiple of the {self.ranks} processes, which each take a share, got a batch of"
                    f" {len(batch[0])}; change the batch, or leave out the last one if it is smaller (drop_last)"
                )
            yield tuple(part[self.rank :: self.ranks] for part in batch)


def _epochs_done(path: Path, module: nn.Module) -> int:
    """Of the state in a file, which is numbers, and nothing in it runs; one line if it is damaged, or another network's."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        saved = {name: tuple(tensor.shape) for name, tensor in found["state_dict"].items()}
        missing = {"epoch", "global_step", "loops", "callbacks", "optimizer_states", "lr_schedulers"} - found.keys()
    except Exception as error:  # a damaged file can fail in any way at all
        raise DropoutError(
            f"{path}: want the state of a run, got {first_line(error)}; delete it to start anew"
        ) from error
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    differing = sorted(name for name in wanted.keys() | saved.keys() if wanted.get(name) != saved.get(name))
    if missing or differing:
        what = f"nothing of {min(missing)}" if missing else f"{differing[0]} of shape {saved.get(differing[0])}"
        raise DropoutError(f"{path}: want the state of this run, got {what}; delete it to start anew")
    return found["epoch"] + 1  # saved at the end of it, counted from 0


def _wait(network: nn.Module) -> None:
    if next(network.parameters()).is_cuda:
        torch.cuda.synchronize()


def fit(
    network: nn.Module,
    objective: Objective | None,
    batches: Iterable[Any],
    schedule: Schedule,
    *,
    seed: int = 0,
    checkpoints: Path | None = None,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Train ``network`` in place and return its history; with ``checkpoints``, go on where an earlier run stopped.

    Under ``torchrun`` all processes call this with the same arguments, and only the first writes and shows anything.

    Args:
        network: the model, on this process's device (:func:`lbdrop.guards.processes.device_of_this_process`).
        objective: the objective over it; ``None`` trains on the plain mean loss.
        batches: an iterable of (images, labels) with a length, on the network's device, such as
            :class:`experiments.vision.batches.Batches`; its generator, if it has one, is seeded anew for each epoch. Processes
            share each batch among them.
        schedule: epochs and learning rates.
        seed: draws the masks.
        checkpoints: folder for the state after each epoch; ``None`` keeps none.
        progress: show a bar.
    """
    steps = len(batches) * schedule.epochs  # pyright: ignore[reportArgumentType]
    module = Classifier(network, objective, schedule, steps, seed)
    return train(module, batches, checkpoints=checkpoints, progress=progress)


def train(
    module: Classifier,
    batches: Iterable[Any],
    *,
    checkpoints: Path | None = None,
    save_every: int = 1,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """What :func:`fit` does, of a module of one's own; its state is kept after every ``save_every`` epochs."""
    history = _History()
    callbacks: list[Any] = [history]
    last = there = None
    if checkpoints is not None:
        last = checkpoints / "last.ckpt"
        there = str(last) if last.exists() else None
        callbacks.append(_Saved(last, save_every, _epochs_done(last, module) if there else 0))
    network = module.network
    device = next(network.parameters()).device
    ranks, here = processes.count(), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    # Responses of self-tuning have no gradient once rates are frozen.
    tuned = module.objective is not None and isinstance(module.objective.rule, SelfTuning)
    trainer = L.Trainer(
        max_epochs=module.schedule.epochs,
        accelerator=device.type,
        devices=here if ranks > 1 or device.index is None else [device.index],
        num_nodes=max(ranks // here, 1),
        strategy=DDPStrategy(find_unused_parameters=tuned) if ranks > 1 else "auto",
        precision="bf16-mixed" if device.type == "cuda" else "32-true",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=checkpoints is not None,
        enable_progress_bar=progress,
        enable_model_summary=False,
    )
    module.batch_generator = getattr(batches, "generator", None)
    module.train()
    shares = batches if ranks == 1 else _Share(batches, processes.rank(), ranks)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers")  # batches are cut on the device
        handler = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit(module, shares, ckpt_path=there, weights_only=True)  # a state is numbers: nothing in it may run
        except SystemExit:  # Lightning's answer to Ctrl-C, which it ignores from then on
            signal.signal(signal.SIGINT, handler)
            kept = (
                "nothing is kept"
                if last is None or not last.exists()
                else f"{last} is kept: the same call goes on from there"
            )
            raise KeyboardInterrupt(f"stopped in epoch {trainer.current_epoch + 1}; {kept}") from None
    network.to(device)  # a trainer that has finished leaves its module on the CPU
    return history.epochs
