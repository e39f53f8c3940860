"""Finds the first step with a NaN or infinite loss or gradient, and keeps the optimiser from changing parameters after it.

A fused optimiser skips its update while a flag on the device is set; gradient scalers use the same flag. The first loss or
gradient that is NaN or infinite sets the flag, and it stays set. The numbers of that step are kept beside it. So no step waits
for the device, recorded graphs included, and the model stays as it was before the bad step.

On a GPU only the gradients of biases, norms and rates are checked. A NaN in a backward pass reaches the bias of every layer on
its way, and reading the large tables at every step takes time (LOG.md). A NaN in a table alone, as from a product that
overflows, does change the table. The next loss that uses the table finds it, at the latest the end of the epoch.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop._torch import norms_of_many
from lbdrop.errors import DropoutError
from lbdrop.guards.diagnosis import nonfinite_parameters
from lbdrop.guards.finite import Answer
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.row_objective import Losses

__all__ = ["StepGuard"]


class StepGuard:
    """Checks the steps of one epoch after another.

    Args:
        model: with the parameters that are trained.
        optimizer: a fused one.
        device: where the steps run.
        tables: check the gradients of tables, of two axes, at every step too; the default is to do so on a CPU only.
    """

    def __init__(self, model: VAE, optimizer: torch.optim.Optimizer, device: torch.device, tables: bool | None = None):
        self.model, self.optimizer, self.epoch = model, optimizer, 0
        self.tables = device.type != "cuda" if tables is None else tables
        self.checked = [p for g in optimizer.param_groups for p in g["params"] if self.tables or p.dim() <= 1]
        self.broken, self.all_finite = torch.zeros((), device=device), torch.ones((), dtype=torch.bool, device=device)
        self.zero, self.one = torch.zeros((), device=device), torch.ones((), device=device)
        # Whether an earlier step was bad; 1; loss, nll, kl, mask_kl; the largest gradient of each checked parameter.
        # A NaN in a sum stays there; the first two sums count the steps after the bad one, and all steps.
        self.numbers, self.sums = (torch.zeros(6 + len(self.checked), device=device) for _ in range(2))
        self.pending: Answer | None = None
        optimizer.found_inf = self.broken  # pyright: ignore[reportAttributeAccessIssue]

    def begin(self, epoch: int) -> None:
        self.epoch = epoch
        self.sums[:2].zero_()
        self.begin_sums()

    def begin_sums(self) -> None:
        """Restart the sums of losses; a NaN stays, because NaN × 0 is NaN."""
        self.sums[2:] *= 0

    @property
    def losses(self) -> Float[Tensor, "4"]:
        """The sums of loss, nll, kl and mask_kl over the steps."""
        return self.sums[2:6]

    def record(self, losses: Losses) -> None:
        """Record a step between its backward pass and the optimiser's update; on a CPU a bad step raises at once."""
        # As few and small kernels as possible: a step of a small model is not much longer than they are.
        gradients = [p.grad for p in self.checked if p.grad is not None]
        norms = iter(norms_of_many(gradients, math.inf))
        largest = [self.zero if p.grad is None else next(norms) for p in self.checked]
        now = torch.stack([self.broken, self.one, *(each.detach().float() for each in (*losses, *largest))])
        torch.where(self.all_finite, now, self.numbers, out=self.numbers)
        self.sums += now
        torch.lt(torch.linalg.vector_norm(self.sums, math.inf), math.inf, out=self.all_finite)
        torch.logical_not(self.all_finite, out=self.broken)
        if not self.broken.is_cuda and self.broken.numpy() > 0:  # in memory of the host: nothing to wait for
            self.raise_if_broken()

    def poll(self) -> None:
        """Raise if an earlier answer of the device says that a step was bad, and ask again; never waits."""
        if self.pending is not None and self.pending.ready:
            if not self.pending.read():
                self.raise_if_broken()
            self.pending = None
        if self.pending is None:
            self.pending = Answer(self.broken == 0)

    def end(self) -> None:
        """Raise if anything in the epoch was NaN or infinite; waits for the device."""
        self.raise_if_broken()
        if not self.tables and (bad := nonfinite_parameters(self.model)):
            raise DropoutError(
                f"training: want finite numbers, got NaN or infinity in {', '.join(bad[:4])} after epoch {self.epoch}, though"
                f" all losses were finite. Lower the learning rates (now {self._learning_rates()}), and train"
                " from the epoch before"
            )

    def raise_if_broken(self) -> None:
        """Raise if there was a bad step; waits for the device."""
        _, _, loss, nll, kl, mask_kl, *_ = self.numbers.tolist()
        if not float(self.broken):
            return
        step = float(self.sums[1] - self.sums[0])
        gradient = float(self.numbers[6:].max())  # max treats NaN as the largest
        reason = f"gradient is {gradient}" if all(map(math.isfinite, (loss, nll, kl, mask_kl))) else f"loss is {loss}"
        bad = nonfinite_parameters(self.model)
        where = f"not finite before it: {', '.join(bad[:4])}" if bad else self._bad_gradients()
        raise DropoutError(
            f"training: want finite numbers, got a step whose {reason} (nll {nll:g}, kl {kl:g}, mask KL {mask_kl:g}): step"
            f" {step:.0f} of epoch {self.epoch}{'; ' + where if where else ''}. No parameter has been changed by it; lower the"
            f" learning rates (now {self._learning_rates()})"
        )

    def _learning_rates(self) -> str:
        return ", ".join(f"{group.get('name', 'parameters')} {group['lr']:g}" for group in self.optimizer.param_groups)

    def _bad_gradients(self) -> str:
        found = nonfinite_parameters(self.model, gradients=True)
        return f"gradients of {', '.join(found[:4])}" if found else ""
