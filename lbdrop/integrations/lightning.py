"""Learned rates for any LightningModule, by a callback: its ``training_step`` returns one loss per example, and no more.

The callback converts the module's dropouts, runs ``training_step`` under the objective's masks, and gives the rates an Adam of
their own that steps whenever the module's optimiser does. So no optimiser or schedule has to know of them.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lbdrop.dropout import learned_layers
from lbdrop.errors import DropoutError
from lbdrop.integrations.rates import (
    RATE_LR,
    Whole,
    Writer,
    check_rate_lr,
    converted,
    objective_scalars,
    rate_parameters,
    say_start,
    warn_if_not_frozen,
    write_rates,
)
from lbdrop.objective import Objective
from lbdrop.rules.rule import HeldOutRule, Rule, StatefulRule

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback  # the same, under its older name
        except ImportError as missing:
            raise DropoutError("Lightning is not installed; pip install 'lbdrop[vision]'") from missing

__all__ = ["LearnedRates"]


class LearnedRates(Callback):
    """Learn the dropout rates of a LightningModule: ``Trainer(callbacks=[LearnedRates()])``.

    ``training_step`` has to return a loss for each example, ``F.cross_entropy(..., reduction="none")`` say, alone or as
    ``"loss"`` of a dict. What it logs is averaged over the masks. Validation, test and prediction stay as they are: without
    masks, unless :func:`lbdrop.predict` draws them.

    Args:
        rate_lr: learning rate of the rates' Adam; it falls where a schedule of the module's optimiser does. ``None`` leaves
            the rates to the module's own optimiser. Refused with ``held_out``, where the rule moves the rates.
        examples: the size of the training set; by default that of the training loader's dataset. With ``held_out`` nothing is
            guessed: if given, held-out examples are trained on too, at their share, once rates are frozen; their batches must
            then fit behind those of training, along the first axis.
        held_out: a loader of data that weights are not trained on while rates follow it (:class:`lbdrop.Balanced`). The
            steps of the run are the trainer's, so it has to have an end: ``max_epochs`` or ``max_steps``.
        rule: makes another rule, as in ``lambda module: lbdrop.Bound(module, examples=1000, weight=0.1)``.
        estimator: as for :class:`lbdrop.Objective`.

    A module without learned dropouts is converted with a rate per layer. For anything else call :func:`lbdrop.convert` on it
    first. Rates are logged as ``rates/<layer>`` at every logged step, with histograms where a logger can draw them.
    """

    def __init__(
        self,
        rate_lr: float | None = RATE_LR,
        *,
        examples: int | None = None,
        held_out: Iterable[Any] | None = None,
        rule: Callable[[nn.Module], Rule] | None = None,
        estimator: str | None = None,
    ):
        self.rate_lr, self.examples, self.held_out, self.rule, self.estimator = (
            rate_lr, examples, held_out, rule, estimator,
        )  # fmt: skip
        self.objective: Objective | None = None
        self.optimizer: torch.optim.Adam | None = None
        self._saved: dict[str, Any] = {}
        self._undo: list[Callable[[], Any]] = []

    # ------------------------------------------------------------------------------------------------- before training

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        converted(pl_module)  # at every stage: the state of a checkpoint has the rates
        if stage == "fit" and not pl_module.automatic_optimization:
            raise DropoutError(
                "LearnedRates: want automatic optimisation, got a module that steps its optimisers itself; call"
                " lbdrop.Objective in its training_step instead"
            )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self.rate_lr is None:
            return
        # Before their states are restored, so that a run taken up again finds the same parameters.
        ours = {id(p) for p in rate_parameters(pl_module)}
        for group in (group for optimizer in trainer.optimizers for group in optimizer.param_groups):
            group["params"] = [p for p in group["params"] if id(p) not in ours]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        for layer in learned_layers(pl_module).values():
            # precision="bf16-true" has halved them too, and would round small steps away.
            layer.logit.data = layer.logit.data.to(torch.promote_types(layer.logit.dtype, torch.float32))
        self.objective = self._make_objective(trainer, pl_module)
        check_rate_lr(self.rate_lr, self.objective.rule)
        say_start(self.objective)
        if "objective" in self._saved:
            self.objective.load_state_dict(self._saved["objective"])
        elif self._saved and isinstance(self.objective.rule, StatefulRule):
            warnings.warn(
                "checkpoint: want the state of the rule, got none, as from an earlier version of lbdrop; the rule begins anew",
                stacklevel=2,
            )
        self._wrap(pl_module)
        if self.rate_lr is None:
            return
        self.optimizer = torch.optim.Adam(rate_parameters(pl_module), lr=self.rate_lr)
        if "optimizer" in self._saved:
            self.optimizer.load_state_dict(self._saved["optimizer"])
        stepped = trainer.optimizers[0].register_step_post_hook(lambda other, *_: self._step(trainer, other))
        self._undo.append(stepped.remove)

    def _make_objective(self, trainer: Any, module: Any) -> Objective:
        if self.rule is not None:
            # All that was given, for the objective refuses what a rule of its own makes useless.
            return Objective(
                module, self.rule(module), held_out=self.held_out, examples=self.examples, estimator=self.estimator
            )
        if self.held_out is not None:
            if trainer.world_size > 1:
                raise DropoutError(
                    "LearnedRates: want one process for held_out data, got several; train without held_out"
                )
            return Objective(
                module,
                held_out=Whole(self.held_out),
                steps=_steps(trainer),
                examples=self.examples,
                estimator=self.estimator,
            )
        examples = self.examples or _count(trainer.train_dataloader)
        return Objective(module, examples=examples, estimator=self.estimator)

    def _wrap(self, module: Any) -> None:
        original = module.training_step

        @functools.wraps(original)
        def training_step(batch: Any, *rest: Any) -> Tensor:
            def losses(_: nn.Module, batch: Any) -> Any:
                output = original(batch, *rest)
                return output["loss"] if isinstance(output, dict) else output

            assert self.objective is not None
            with _logs_of_all_masks(module):
                return self.objective(losses, batch)

        module.training_step = training_step
        self._undo.append(lambda: vars(module).pop("training_step", None))

    # ------------------------------------------------------------------------------------------------- while training

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self.objective is not None and isinstance(self.objective.rule, HeldOutRule):
            self.objective.rule.restart()

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.optimizer is not None:
            self.optimizer.zero_grad()

    def _step(self, trainer: Any, other: torch.optim.Optimizer) -> None:
        assert self.optimizer is not None
        assert self.rate_lr is not None
        weights = other.param_groups[0]
        first = weights.get("initial_lr", weights["lr"])  # a schedule's; a warm-up may begin below it
        self.optimizer.param_groups[0]["lr"] = self.rate_lr * min(1.0, float(weights["lr"]) / float(first or 1.0))
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:  # it has unscaled what the other optimiser holds
            for parameter in self.optimizer.param_groups[0]["params"]:
                if parameter.grad is not None:
                    parameter.grad /= scaler.get_scale()
        self.optimizer.step()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step % trainer.log_every_n_steps == 0 or trainer.is_last_batch:
            assert self.objective is not None  # callback_metrics has them, also where there is no logger
            pl_module.log_dict(objective_scalars(self.objective), logger=False, batch_size=1)
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self._log(trainer, pl_module)

    def _log(self, trainer: Any, module: Any) -> None:
        assert self.objective is not None
        scalars = objective_scalars(self.objective) if trainer.loggers else {}
        for logger in trainer.loggers:
            if isinstance(logger.experiment, Writer):
                write_rates(logger.experiment, module, trainer.global_step)
            logger.log_metrics(scalars, trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._log(trainer, pl_module)
        assert self.objective is not None
        warn_if_not_frozen(self.objective)
        self._restore()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._restore()

    def _restore(self) -> None:
        """The module as its author wrote it, but for the learned dropouts."""
        while self._undo:
            self._undo.pop()()

    # ------------------------------------------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        states = {"optimizer": self.optimizer, "objective": self.objective}
        return {name: each.state_dict() for name, each in states.items() if each is not None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict


def _count(loader: Any) -> int:
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError) as error:
        raise DropoutError(
            f"examples: want the size of the training set, got {type(loader).__name__} that does not tell; pass it, as in"
            " LearnedRates(examples=50_000)"
        ) from error


def _steps(trainer: Any) -> int:
    """How often ``training_step`` is called in the whole run."""
    steps = trainer.estimated_stepping_batches  # -1 or infinite where nobody knows
    if not 0 < steps < math.inf:
        raise DropoutError(
            "held_out: want a run of known length, after a share of which rates are frozen, got one without an end or a"
            " loader that does not tell its length; pass Trainer(max_steps=...)"
        )
    batches, parts = trainer.num_training_batches, trainer.accumulate_grad_batches
    if not math.isfinite(batches):
        return int(steps * parts)
    # The last step of an epoch may accumulate fewer batches than the others.
    epochs, rest = divmod(int(steps), math.ceil(batches / parts))
    return int(epochs * batches + rest * parts)


# ---------------------------------------------------------------------------------------------- what is logged meanwhile


class _Note(torch.autograd.Function):
    """Hands out a value that is computed under masks; its vmap rule is the one place where all of them are in view."""

    @staticmethod
    def forward(value: Tensor, note: Callable[[Tensor], None]) -> Tensor:
        note(value)
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Tensor, int]:
        value, note = args
        note(value.double().mean(in_dims[0]))
        return value, in_dims[0]


@contextmanager
def _logs_of_all_masks(module: Any) -> Iterator[None]:
    """Collect what ``self.log`` is given under each mask, and log the mean; what is logged in eval mode is left out."""
    training = module.training
    calls: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
    notes: dict[str, list[Tensor]] = {}

    def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if module.training != training:
            return
        calls[name] = value, args, kwargs
        if isinstance(value, Tensor):
            _Note.apply(value.detach(), notes.setdefault(name, []).append)

    module.log = log
    try:
        yield
    finally:
        vars(module).pop("log", None)
    for name, (value, args, kwargs) in calls.items():
        mean = torch.stack([note.float() for note in notes[name]]).mean(0) if name in notes else value
        module.log(name, mean, *args, **kwargs)
