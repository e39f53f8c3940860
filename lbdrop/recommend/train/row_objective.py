"""A step of the VAE on the library's engine: its losses per user, the bound, and an estimator for the rates.

:class:`lbdrop.Objective` does here what it does for any model. The rates learn in a share of the steps; which, is said from
outside, because a recorded step (:mod:`lbdrop.recommend.train.cuda_graphs`) cannot decide while it runs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop.objective import Objective
from lbdrop.recommend.data.rows import Batch
from lbdrop.recommend.model.row_dropout import on_rows
from lbdrop.recommend.model.vae import VAE
from lbdrop.rules.balanced import Balanced
from lbdrop.rules.bound import Bound

__all__ = ["Losses", "RowObjective"]


class Losses(NamedTuple):
    """One step's losses, each a mean over users; ``total`` gives the gradients of weights and rates."""

    total: Float[Tensor, ""]
    nll: Float[Tensor, ""]
    """Under the last of the masks, as the latent's KL."""
    kl: Float[Tensor, ""]
    """The latent's, before its weight."""
    mask_kl: Float[Tensor, ""]
    """The masks', before its weight."""


class RowObjective:
    """The loss of a batch of rows; ``total.backward()`` leaves gradients in the weights and in the rates' logits.

    Args:
        model: the model.
        held_out: rows of users that are not trained on, for balanced noise.
        steps: how many steps the run has, for balanced noise.

    Example:
        >>> from scipy.sparse import csr_array
        >>> from lbdrop.recommend.data.rows import Rows
        >>> from lbdrop.recommend.model.settings import method
        >>> batch = Rows.from_csr(csr_array([[1, 0, 1], [0, 1, 1]])).batch([0, 1])
        >>> model = VAE(3, method("sivae-lbd", hidden=8, latent=2))
        >>> RowObjective(model)(batch, beta=0.2).total.backward()
        >>> model.masks.logit.grad.shape
        torch.Size([3])
    """

    def __init__(self, model: VAE, held_out: Sequence[Batch] = (), steps: int = 1):
        s = model.settings
        self.model, self.weight, self.learned = model, s.mask_kl, s.dropout == "learned" and s.rates == "bound"
        self.balanced, self.bound = None, Bound(model, 1, weight=s.mask_kl)
        if s.rates == "balanced":
            self.balanced = Balanced(model, [(batch.number, batch) for batch in held_out], steps=steps)
        # One user's loss never depends on another's mask; what is not finite is found by the training's own guard.
        self.engine = Objective(
            model,
            self.balanced or self.bound,
            estimator=s.estimator,
            coupled=False if self.learned else None,
            check=False,
        )

    def wrap(self, wrapper: nn.Module) -> None:
        """Train through a wrapper that averages gradients over processes."""
        self.engine.model = wrapper

    def share(self, batch: Batch, beta: float | Tensor) -> float:
        """The share of the steps in which rates learn; the first batch decides, by what its operations cost."""
        if not self.learned:
            return 0.0
        with on_rows(batch):
            return self.engine.runner.plan_of(lambda model: model.losses(batch, beta).total).share

    def __call__(
        self, batch: Batch, beta: float | Tensor, generator: torch.Generator | None = None, learn: bool = True
    ) -> Losses:
        """The loss of a step.

        Args:
            batch: training rows.
            beta: weight of the latent's KL; the settings' ``gamma`` replaces it, if set.
            generator: draws masks and latent noise.
            learn: whether rates learn too, where they do so in a share of the steps.
        """
        self.share(batch, beta)  # before anything is drawn by the generator
        seen: dict[str, Tensor] = {}

        def losses(model: VAE, number: Tensor | None = None, batch: Batch = batch) -> Tensor:
            found = model.losses(batch, beta, generator)
            if torch.is_grad_enabled() or not seen:  # not where a rule measures
                seen.update(nll=batch.mean(found.nll.detach()), kl=batch.mean(found.kl.detach()))
            return found.total

        runner = self.engine.runner
        runner.generator, runner.toss = generator, lambda: 0.0 if learn else 1.0
        if self.balanced is not None:
            self.balanced.generator = generator
            total = self.engine(losses, batch.number, batch)
        else:
            with on_rows(batch):
                total = self.engine(losses)
        mask_kl = self.bound.report["kl"] / self.weight if self.weight else total.new_zeros(())
        return Losses(total, seen["nll"], seen["kl"], mask_kl)
