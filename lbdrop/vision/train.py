"""Training an image classifier under an objective, by Lightning: precision, devices, resuming and progress are its own."""

import math
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn

from lbdrop.dropout import noise_layers
from lbdrop.objective import Objective, parameter_groups
from lbdrop.selftuning import SelfTuning

__all__ = ["Classifier", "Schedule", "fit"]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train: Adam, a linear warm-up, then a half cosine to zero, or a constant rate."""

    epochs: int
    lr: float
    rate_lr: float
    """Learning rate of the dropout logits."""
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
        # Masks and batches by epoch, so that a run taken up again draws what it would have drawn.
        seed = self.seed * 1_000_003 + self.current_epoch
        torch.manual_seed(seed)
        if self.batch_generator is not None:
            self.batch_generator.manual_seed(seed)
        if self.objective is not None and isinstance(self.objective.rule, SelfTuning):
            self.objective.rule.restart()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        # Without an objective, the plain loop that everybody writes: what time is compared with.
        if self.objective is None:
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

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # it is there already


class _History(Callback):
    """Loss, mean rates and seconds of every epoch; one look at the device per epoch."""

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
                "loss": float(torch.stack(self.losses).mean()),
                "rates": {name: layer.p for name, layer in layers.items()},
            }
        )

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]


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

    Args:
        network: the model.
        objective: the objective over it; ``None`` trains on the plain mean loss.
        batches: an iterable of (images, labels) with a length, on the network's device, such as
            :class:`lbdrop.vision.batches.Batches`; its generator, if it has one, is seeded anew for each epoch.
        schedule: epochs and learning rates.
        seed: draws the masks.
        checkpoints: folder for the state after each epoch; ``None`` keeps none.
        progress: show a bar.
    """
    history = _History()
    callbacks: list[Any] = [history]
    last = None
    if checkpoints is not None:
        callbacks.append(
            ModelCheckpoint(dirpath=checkpoints, filename="last", save_top_k=1, enable_version_counter=False)
        )
        last = checkpoints / "last.ckpt"
    device = next(network.parameters()).device
    trainer = L.Trainer(
        max_epochs=schedule.epochs,
        accelerator=device.type,
        devices=1,
        precision="bf16-mixed" if device.type == "cuda" else "32-true",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=checkpoints is not None,
        enable_progress_bar=progress,
        enable_model_summary=False,
    )
    steps = len(batches) * schedule.epochs  # pyright: ignore[reportArgumentType]
    module = Classifier(network, objective, schedule, steps, seed)
    module.batch_generator = getattr(batches, "generator", None)
    module.train()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Checkpoint directory")  # it is there to be taken up again
        warnings.filterwarnings("ignore", message=".*does not have many workers")  # batches are cut on the device
        trainer.fit(module, batches, ckpt_path=str(last) if last is not None and last.exists() else None)
    network.to(device)  # a trainer that has finished leaves its module on the CPU
    return history.epochs
