r"""The training loop, on Lightning Fabric: nothing in it waits for the device before the end of an epoch.

$$ \beta_t = \min(\beta_{\text{cap}},\, t / T) $$

Batches are made on the device, a step is one backward pass and one fused Adam step, and losses are read once an epoch. A step
with a NaN or infinity is recorded on the device and changes no parameter (:mod:`lbdrop.recommend.train.step_guard`). The order
and noise of an epoch come from the seed and the epoch's number, so a resumed run has the same draws. Fabric gives precision
(bf16 on a GPU, float32 elsewhere) and, under ``torchrun``, several processes: each takes its share of every batch, with its own
noise, and gradients of weights and rates are averaged.

Shenbin et al., RecVAE, WSDM 2020 (encoder and decoder in turn).
"""

import os
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.guards.logit_range import clamp_logits
from lbdrop.guards.optimizers import parameter_groups
from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.networks import LARGE_CATALOGUE
from lbdrop.recommend.model.settings import Settings
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.cuda_graphs import GraphRecorder
from lbdrop.recommend.train.row_objective import RowObjective
from lbdrop.recommend.train.step_guard import StepGuard

__all__ = ["Loop", "launch"]

Part = Literal["both", "encoder", "decoder"]


class Loop:
    """The state of training: data, model, optimiser, and the number of steps."""

    def __init__(
        self,
        model: VAE,
        rows: Rows,
        settings: Settings,
        fabric: Any,
        *,
        seed: int = 0,
        recorded: bool | None = None,
        held_out: Rows | None = None,
    ):
        self.model, self.rows, self.settings, self.fabric = model, rows, settings, fabric
        # Recording does not help a large catalogue, where a step takes much longer than its launches.
        recordable = fabric.device.type == "cuda" and fabric.world_size == 1 and model.items <= LARGE_CATALOGUE
        recordable = recordable and settings.rates == "bound"  # another rule decides on the host
        self.seed, self.recorded = seed, recordable if recorded is None else recorded
        weights, rates = parameter_groups(model, settings.rate_lr, weight_decay=settings.weight_decay)
        groups = [{"name": "weights", **weights}, {"name": "rates", **rates}]
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            groups if rates["params"] else groups[:1], lr=settings.lr, fused=True, capturable=self.recorded
        )
        self.lrs = [float(group["lr"]) for group in self.optimizer.param_groups]
        if self.recorded and settings.final_lr < 1:  # tensors, so that a recording reads their current values
            for group in self.optimizer.param_groups:
                group["lr"] = torch.tensor(group["lr"], device=fabric.device)
        self.guard = StepGuard(model, self.optimizer, fabric.device)
        self.step = 0
        if settings.rates == "balanced" and held_out is None:
            raise DropoutError(
                "rates: want validation users for 'balanced', who say how much noise helps, got none; use rates='bound'"
            )
        steps = settings.epochs * rows.steps(self._size, fabric.world_size)
        others = [] if held_out is None else list(held_out.batches(self._size, shuffle=False))
        self.objective = RowObjective(model, others, steps)
        self.share: float | None = None
        if fabric.world_size > 1:  # the wrapper averages gradients over processes
            self.objective.wrap(fabric.setup_module(model))
        self.recorder = GraphRecorder(self._step, self.optimizer, rows, settings.batch) if self.recorded else None

    def epoch(self, number: int, advance: Callable[[float], None] = lambda share: None) -> dict[str, Any]:
        """One epoch; encoder and decoder in turn where the settings say so."""
        start = time.perf_counter()
        encoder: list[Part] = ["encoder"]
        parts: list[Part] = [*encoder * self.settings.alternate, "decoder"] if self.settings.alternate else ["both"]
        order, noise = self._generators(number)
        self.model.train()
        self._set_learning_rates(number)
        self.guard.begin(number)
        try:
            for index, part in enumerate(parts):
                if self.settings.alternate:
                    self.model.train_only(part)
                if part == "decoder":
                    self.model.end_of_epoch()  # so that the decoder learns under the prior of the current encoder
                self.guard.begin_sums()
                self._pass(part, order, noise, lambda share, i=index: advance((i + share) / len(parts)))
        finally:
            if self.settings.alternate:
                self.model.train_only("both")
        if not self.settings.alternate:
            self.model.end_of_epoch()
        clamp_logits([self.model.masks])  # as before every step
        total = self.guard.losses / self.rows.steps(self._size, self.fabric.world_size)
        self.guard.end()
        means = self.fabric.all_reduce(total, reduce_op="mean").tolist()  # the only wait of the epoch
        return {
            "epoch": number,
            "seconds": time.perf_counter() - start,
            **dict(zip(("loss", "nll", "kl", "mask_kl"), means, strict=True)),
            "beta": self.settings.beta(self.step - 1),
            "keep": float(self.model.keep.mean()),
            "validation": None,
        }

    def _pass(
        self,
        part: Part,
        order: torch.Generator,
        noise: torch.Generator | None,
        advance: Callable[[float], None],
    ) -> None:
        """Every user once."""
        fabric, size = self.fabric, self._size
        steps = self.rows.steps(size, fabric.world_size)
        batches = self.rows.batches(
            size, shuffle=True, generator=order, rank=fabric.global_rank, ranks=fabric.world_size
        )
        # The whole schedule at once: a Python number in each step would be a copy to the device in each step.
        betas = torch.tensor([self.settings.beta(self.step + i) for i in range(steps)], device=fabric.device).unbind()
        if self.share is None:  # by the same batch in all processes, and in a resumed run
            first = next(self.rows.in_order(torch.arange(min(size, self.rows.users)), size))
            self.share = self.objective.share(first, 0.0)
        tosses = torch.rand(steps, generator=order).tolist() if self.objective.learned else [1.0] * steps
        for index, (batch, beta, toss) in enumerate(zip(batches, betas, tosses, strict=True)):
            learn = toss < self.share
            if self.recorder is not None:
                self.recorder((part, learn), batch, beta)
            else:
                self._step(batch, beta, learn, noise)
            if index % 32 == 31:
                self.guard.poll()
                advance((index + 1) / steps)
        self.step += steps

    def _step(self, batch: Batch, beta: Tensor, learn: bool, noise: torch.Generator | None = None) -> None:
        with self.fabric.autocast():
            loss = self.objective(batch, beta, noise, learn)
        self.fabric.backward(loss.total)
        self.guard.record(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _set_learning_rates(self, epoch: int) -> None:
        for lr, group in zip(self.lrs, self.optimizer.param_groups, strict=True):
            now = lr * self.settings.lr_share(epoch)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(now)
            else:
                group["lr"] = now

    @property
    def _size(self) -> int:
        """Users a batch in each process."""
        return -(-self.settings.batch // self.fabric.world_size)

    def _generators(self, number: int) -> tuple[torch.Generator, torch.Generator | None]:
        """Generators of the order, equal in all processes, and of the noise, different in each."""
        rank = self.fabric.global_rank
        order, noise = np.random.SeedSequence([self.seed, number]).generate_state(2, np.uint64).tolist()
        seeds = [order % 2**63, (noise + rank) % 2**63]
        if self.recorded:  # a graph replays the global generator
            torch.manual_seed(seeds[1])
        return (
            torch.Generator().manual_seed(seeds[0]),
            None if self.recorded else torch.Generator(self.fabric.device).manual_seed(seeds[1]),
        )


def launch(device: torch.device | str | None = None, precision: Any = None, uneven: bool = False) -> Any:
    """One process on the device, or, under torchrun, one of several.

    Args:
        device: the default is a GPU, if there is one.
        precision: Fabric's; the default is bf16-mixed on a GPU and 32-true elsewhere.
        uneven: whether some parameters get no gradient in some steps, which several processes must know.
    """
    try:  # here, because it takes seconds to import, and a model that only recommends does not need it
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import DDPStrategy
    except ModuleNotFoundError as error:
        raise DropoutError(f"{error.name}: package not found; pip install 'lbdrop[recommend]'") from error
    if precision in ("bf16-true", "16-true", "16-mixed"):
        raise DropoutError(
            f"precision: want 'bf16-mixed', '32-true' or '64-true', got {precision!r}; in half precision parameters and their"
            " small steps would be lost, and float16 has no room for the loss of a long row"
        )
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    ranks, here = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    fabric = Fabric(
        accelerator=device.type,
        devices=here if ranks > 1 or device.index is None or device.type == "cpu" else [device.index],
        num_nodes=max(ranks // here, 1),
        strategy=DDPStrategy(find_unused_parameters=uneven) if ranks > 1 else "auto",
        precision=precision or ("bf16-mixed" if device.type == "cuda" else "32-true"),
    )
    if ranks > 1:
        fabric.launch()
    return fabric
