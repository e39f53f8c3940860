"""The first step whose loss or gradient is no number: noted on the device, and from then on no parameter changes.

A fused optimiser leaves all parameters alone while a flag on the device says so (what a gradient scaler uses, too). The flag
goes up with the first loss or gradient that is NaN or infinite and stays up, and the numbers of that step stay beside it.
So nothing has to wait for the device at any step, recorded graphs included, and yet the step is known and the model is
as it was before it.

On a GPU the gradients of biases, norms and rates stand for all: what is no number in a backward pass goes on to the bias of
every layer it reaches, and to read the large tables at every step takes time (LOG.md). What spoils a table alone, as
a product that overflows would, has changed it; it is found in the next loss that the table takes part in, and at the end of
the epoch at the latest.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop._torch import norms_of_many
from lbdrop.errors import DropoutError
from lbdrop.guards.diagnosis import nonfinite_parameters
from lbdrop.guards.finite import Answer
from lbdrop.recommend.vae import VAE, Losses

__all__ = ["StepWatch"]


class StepWatch:
    """Watches the steps of one epoch after another.

    Args:
        model: whose parameters are trained.
        optimizer: a fused one.
        device: where the steps run.
        tables: whether to look at the gradients of tables too, of two axes, at every step; on a CPU unless told.
    """

    def __init__(self, model: VAE, optimizer: torch.optim.Optimizer, device: torch.device, tables: bool | None = None):
        self.model, self.optimizer, self.epoch = model, optimizer, 0
        self.tables = device.type != "cuda" if tables is None else tables
        self.watched = [p for g in optimizer.param_groups for p in g["params"] if self.tables or p.dim() <= 1]
        self.broken, self.whole = torch.zeros((), device=device), torch.ones((), dtype=torch.bool, device=device)
        self.nothing, self.one = torch.zeros((), device=device), torch.ones((), device=device)
        # Whether an earlier step was broken; 1; loss, nll, kl, mask_kl; the largest gradient of each parameter that is watched.
        # Sums that were spoiled once stay so; the first two count the steps after the broken one, and all.
        self.numbers, self.sums = (torch.zeros(6 + len(self.watched), device=device) for _ in range(2))
        self.asked: Answer | None = None
        optimizer.found_inf = self.broken  # pyright: ignore[reportAttributeAccessIssue]

    def begin(self, epoch: int) -> None:
        self.epoch = epoch
        self.sums[:2].zero_()
        self.begin_sums()

    def begin_sums(self) -> None:
        """A part of an epoch whose losses are summed from here on; what is no number times 0 is none."""
        self.sums[2:] *= 0

    @property
    def losses(self) -> Float[Tensor, "4"]:
        """The sums of loss, nll, kl and mask_kl over the steps."""
        return self.sums[2:6]

    def look(self, losses: Losses) -> None:
        """Note a step between its backward pass and the optimiser's turn. A CPU is told at once, a GPU not waited for."""
        # As few and small kernels as may be: a step of a small model is not much longer than they are.
        gradients = [p.grad for p in self.watched if p.grad is not None]
        norms = iter(norms_of_many(gradients, math.inf))
        largest = [self.nothing if p.grad is None else next(norms) for p in self.watched]
        now = torch.stack([self.broken, self.one, *(each.detach().float() for each in (*losses, *largest))])
        torch.where(self.whole, now, self.numbers, out=self.numbers)
        self.sums += now
        torch.lt(torch.linalg.vector_norm(self.sums, math.inf), math.inf, out=self.whole)
        torch.logical_not(self.whole, out=self.broken)
        if not self.broken.is_cuda and self.broken.numpy() > 0:  # memory of the host: nothing to wait for
            self.refuse()

    def ask(self) -> None:
        """Now and then: whether all is well so far, without a wait for the answer."""
        if self.asked is not None and self.asked.ready:
            if not self.asked.read():
                self.refuse()
            self.asked = None
        if self.asked is None:
            self.asked = Answer(self.broken == 0)

    def end(self) -> None:
        """Of an epoch: the error, if anything was spoiled in it; waits for the device."""
        self.refuse()
        if not self.tables and (bad := nonfinite_parameters(self.model)):
            raise DropoutError(
                f"training: want finite numbers, got NaN or infinity in {', '.join(bad[:4])} after epoch {self.epoch}, though"
                f" all losses were finite. Lower the learning rates (now {self._rates()}), and train"
                " from the epoch before"
            )

    def refuse(self) -> None:
        """The error, if there was such a step; waits for the device."""
        _, _, loss, nll, kl, mask_kl, *_ = self.numbers.tolist()
        if not float(self.broken):
            return
        step = float(self.sums[1] - self.sums[0])
        gradient = float(self.numbers[6:].max())  # NaN is the largest there is
        what = f"gradient is {gradient}" if all(map(math.isfinite, (loss, nll, kl, mask_kl))) else f"loss is {loss}"
        bad = nonfinite_parameters(self.model)
        where = f"not finite before it: {', '.join(bad[:4])}" if bad else self._bad_gradients()
        raise DropoutError(
            f"training: want finite numbers, got a step whose {what} (nll {nll:g}, kl {kl:g}, mask KL {mask_kl:g}): step"
            f" {step:.0f} of epoch {self.epoch}{'; ' + where if where else ''}. No parameter has been changed by it; lower the"
            f" learning rates (now {self._rates()})"
        )

    def _rates(self) -> str:
        return ", ".join(f"{group.get('name', 'parameters')} {group['lr']:g}" for group in self.optimizer.param_groups)

    def _bad_gradients(self) -> str:
        found = nonfinite_parameters(self.model, gradients=True)
        return f"gradients of {', '.join(found[:4])}" if found else ""
