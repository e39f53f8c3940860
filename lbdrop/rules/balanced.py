r"""Balanced noise: rates from held-out data in one run.

Every few steps the rule measures how much dropout raises the training loss and how large the generalisation gap is, and keeps
the first at half of the second. With the costs $c$ (of all noise), $c_l$ (of the noise of layer $l$ alone) and the gap $g$ of
:mod:`lbdrop.rules.measurements`: the variance of $z / (1 - p)$, and with it what a little noise costs, is in proportion to
the odds $o_l = p_l / (1 - p_l)$, so that a layer has the unit cost $k_l = c_l / o_l$. The odds of all layers are multiplied by
one factor to reach the cost, and among themselves moved to half-way between equal rates and equal costs:

$$ c = \tfrac12\,g, \qquad o_l \propto k_l^{-1/2} . $$

Where the units of a layer have rates of their own, the layer moves as a whole, and :mod:`lbdrop.rules.unit_costs` says which
unit has more noise.

The half is that of ridge regression, which dropout of a linear model's inputs is. With noise of variance $\sigma^2$, weights of
prior variance $\tau^2$ and orthogonal inputs the best penalty is $\lambda = \sigma^2 / \tau^2$; there it costs
$\lambda \lVert w \rVert^2 / n = \sigma^2 \mathrm{df} / n$, while a fit of that many degrees of freedom is optimistic by
$2 \sigma^2 \mathrm{df} / n$. Cost and gap are uncertain, and rates go no further from their start than both are known
(:mod:`lbdrop.rules.targets`).

Phases. Warm-up: rates start at .05 and only rise. If at its end noise costs more than the gap, by two standard errors, all are
off for the rest of the run. Measuring: rates rise and fall; weights are trained without noise until there certainly is a gap.
Frozen: after two fifths of the run rates stay what they are, very small ones are off, and the held-out examples join the
training batches. Where no gap was found, all are off. A run whose first epoch lasts that long is frozen at once: nothing could
be known, and all are off, or at the rate given to start at.
"""

import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop.dropout import learned_layers, logit_of
from lbdrop.errors import DropoutError
from lbdrop.guards.modes import eval_mode, frozen, without_cudnn_recurrence
from lbdrop.rules import cautions
from lbdrop.rules.constants import CONSTANTS
from lbdrop.rules.evaluation import Evaluation
from lbdrop.rules.first_epoch import FirstEpoch
from lbdrop.rules.gate import OFF_LOGIT, Gate
from lbdrop.rules.held_out import HeldOut
from lbdrop.rules.measurements import MasksAt, Measurements, losses_at, means, shift_sums, sums_of
from lbdrop.rules.rule import Phase
from lbdrop.rules.targets import has_gap, log_changes, too_costly
from lbdrop.rules.unit_costs import UnitCosts, unit_costs

__all__ = ["CONSTANTS", "Balanced"]


class Balanced:
    """A :class:`~lbdrop.rules.rule.HeldOutRule` that keeps the cost of noise at half of the generalisation gap.

    The rule alone moves the rates: no optimiser and no learning rate is involved. One rate for the model, for each layer or for
    each unit, as the model was converted. A rate whose logit requires no gradient when the rule is made stays what it is.

    Args:
        model: the converted model.
        held_out: batches of held-out data, read again and again; a ``DataLoader``, or a list of batches.
        steps: how many training steps the whole run has: calls of the objective.
        examples: how many training examples there are beside them. With it, held-out examples join the training batches, at
            their share of all examples, once rates are frozen; ``None`` keeps them out. It also says how long an epoch is:
            nothing is measured in the first, so all are off, or at ``start`` if that is given, where it outlasts ``share``.
        start: the rate that all start at; by default .05. The model's own do not matter.
        share: of the steps, how many until rates are frozen.
        every: how many training steps to one measurement; by default eight, in short runs fewer, so that there are forty.
        masks: through how many masks the weights are trained in each step.
        generator: draws masks.

    Example:
        >>> model = lbdrop.convert(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 2)), verbose=False)
        >>> held_out = [(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))]
        >>> rule = Balanced(model, held_out, steps=1000, examples=500)
        >>> rule
        Balanced(1 rates, frozen after 400 of 1000 steps, every=8, masks=1, held-out data released)
    """

    def __init__(
        self,
        model: nn.Module,
        held_out: Iterable[Any],
        *,
        steps: int,
        examples: int | None = None,
        start: float | None = None,
        share: float = 0.4,
        every: int | None = None,
        masks: int = 1,
        generator: torch.Generator | None = None,
    ):
        if min(masks, steps, 1 if every is None else every) < 1 or not 0 < share <= 1:
            raise DropoutError(
                "balanced rates: want every ≥ 1, masks ≥ 1, steps ≥ 1 and share in (0, 1], got"
                f" {every}, {masks}, {steps} and {share}"
            )
        c, self.start, start = CONSTANTS, start, CONSTANTS.start if start is None else start
        if not c.min_rate <= start <= c.max_rate:
            raise DropoutError(f"start: want a rate from {c.min_rate} to {c.max_rate}, None for {c.start}, got {start}")
        self.model, self.steps, self.examples, self.masks, self.generator = model, steps, examples, masks, generator
        self.frozen_after = math.ceil(share * steps)
        self.every = max(1, min(c.every, self.frozen_after // c.measurements_per_run)) if every is None else every
        self.window = max(5.0, self.frozen_after / self.every / c.windows)
        self.layers = learned_layers(model)
        self.logits = list({id(layer.logit): layer.logit for layer in self.layers.values()}.values())
        if not self.logits:
            raise DropoutError("balanced rates: want a model with learned dropouts; call lbdrop.convert(model) first")
        self.held_out = HeldOut(held_out, self.logits[0])
        if examples is not None:
            self.held_out.count()
        self.first_epoch = FirstEpoch(self.held_out, examples, self.frozen_after, c.shift_steps)
        self.moving = [rate for rate, logit in enumerate(self.logits) if logit.requires_grad]
        for rate in self.moving:
            self.logits[rate].data.fill_(logit_of(start))
        if not self.moving:
            warnings.warn(
                "balanced rates: want some to move, got logits that all require no gradient, as after an earlier run: rates"
                " stay as they are; call requires_grad_(True) on them first to learn them anew",
                stacklevel=2,
            )
        # The state of a run.
        self.step, self.calls, self.judged, self.done = 0, 0, False, not self.moving
        self.off: list[int] = []
        self.measurements, self.rise = Measurements(len(self.logits)), cautions.Rise()
        self.unit_costs = {rate: UnitCosts(self.logits[rate]) for rate in self.moving if self.logits[rate].numel() > 1}
        self.gate = Gate([self.logits[rate] for rate in self.moving])

    # --------------------------------------------------------------------------------------------------- phase and state

    @property
    def phase(self) -> Phase:
        if self.done:
            return "frozen"
        return "warm-up" if self.step < CONSTANTS.warm_up * self.frozen_after else "measuring"

    def _follow_phase(self) -> None:
        """A frozen rate needs no gradient."""
        for rate in self.moving:
            self.logits[rate].requires_grad_(self.phase != "frozen")

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps, "step": self.step, "calls": self.calls, "judged": self.judged, "frozen": self.done,
            # As in the model's state: a rule made after that was loaded has put them back to where they start.
            "logits": {rate: self.logits[rate].detach().clone() for rate in self.moving}, "off": list(self.off),
            "measurements": self.measurements.state_dict(), "rise": self.rise.before, "held_out": self.held_out.state_dict(),
            "unit_costs": {rate: costs.state_dict() for rate, costs in self.unit_costs.items()}, "gate": self.gate.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = len(state["measurements"]["alone"][0]), [*state["logits"]], [*state["unit_costs"]]
        if saved != (len(self.logits), self.moving, [*self.unit_costs]):
            raise DropoutError(
                f"state: want that of {len(self.logits)} rates of which {self.moving} move, {[*self.unit_costs]} with several"
                f" units, got {saved[0]}, {saved[1]} and {saved[2]}; convert the model and set requires_grad of its logits"
                " as for the saved run, then make the objective"
            )
        if (steps := state.get("steps", self.steps)) != self.steps and not state["frozen"]:
            cautions.warn_of_other_steps(steps, self.steps)
        self.step, self.judged, self.done, self.off = state["step"], state["judged"], state["frozen"], [*state["off"]]
        self.calls = state.get("calls", self.step)
        for rate, logit in state["logits"].items():
            self.logits[rate].data.copy_(logit)
        self.gate.load_state_dict(state.get("gate", {"aside": None}))
        self.measurements.load_state_dict(state["measurements"])
        self.rise.before = state["rise"].clone()
        self.held_out.load_state_dict(state["held_out"])
        for rate, costs in self.unit_costs.items():
            costs.load_state_dict(state["unit_costs"][rate])
        self._follow_phase()

    @property
    def report(self) -> dict[str, Tensor]:
        """What was measured last; NaN before a first measurement."""
        m = self.measurements
        return {
            "plain_loss": m.plain,
            "held_out_loss": m.held_out.value,
            "gap": m.gap().value,
            "cost": m.sums[1] / m.sums[0],
        }

    def restart(self) -> None:
        self.held_out.restart()

    # ------------------------------------------------------------------------------------------------------ one step

    def loss(self, evaluation: Evaluation) -> Float[Tensor, ""]:
        if not torch.is_grad_enabled():
            return self._noisy_loss(evaluation)
        self.first_epoch.note(evaluation, self.logits[0].device)
        self.calls += 1
        if self.calls == self.steps + 1:
            cautions.warn_of_steps(self.steps)
        if self.phase == "frozen":
            if self.examples is not None:
                evaluation = evaluation.with_batch(self.held_out.mixed(evaluation.batch, self.examples))
            return self._noisy_loss(evaluation)
        expected = self._noisy_loss(evaluation)
        if self.step == 0:
            self._try_held_out(evaluation)
            if self.first_epoch.outlasts:
                cautions.warn_of_short_run(self.first_epoch.length, self.frozen_after)
                self._freeze(self.moving if self.start is None else [])
                return expected
        if self.step in self.first_epoch.last():
            self._measure_shift(evaluation)
        every = min(self.every, CONSTANTS.every_in_warm_up) if self.phase == "warm-up" else self.every
        self.step += 1
        if self.step % every == 0 and self.step not in self.first_epoch:
            with self.gate.measuring():
                self._move(odds := self._measure(evaluation))
            if not self.gate.is_open and has_gap(self.measurements, self.first_epoch.distinct):
                self.gate.open()
            if self._is_too_costly(odds):
                self._freeze(self.moving)
        if self.step >= self.frozen_after and not self.done:
            self._end_measuring()
        return expected

    def _noisy_loss(self, evaluation: Evaluation) -> Float[Tensor, ""]:
        with frozen(self.logits):  # where off, masks of ones: a checkpointed block that runs again draws as it did
            return evaluation.sampled(MasksAt((), self.masks, self.generator), self.masks).mean()

    def _held_out_losses(self, evaluation: Evaluation, batch: tuple[Any, ...]) -> Float[Tensor, "batch"]:
        with eval_mode(self.model), torch.no_grad():
            return evaluation.losses_on(batch).float()

    def _try_held_out(self, evaluation: Evaluation) -> None:
        """Once, so that a mistake in the held-out data shows in the first step, and not where the first measurement is."""
        self._held_out_losses(evaluation, self.held_out.peek())
        if self.examples is not None:
            self.held_out.check_like(evaluation.batch)

    def _measure_shift(self, evaluation: Evaluation) -> None:
        """How much harder held-out examples are than these, which have not been trained on yet; no batch is used up."""
        batch = self.held_out.ahead(self.step - self.first_epoch.last().start)
        with eval_mode(self.model), torch.no_grad():
            fresh = losses_at(evaluation, self.logits, self.generator)
        found = shift_sums(*means(evaluation, [fresh, self._held_out_losses(evaluation, batch)]))
        self.measurements.shift_sums = self.measurements.shift_sums.to(found) + found

    # ----------------------------------------------------------------------------------------------- one measurement

    def _measure(self, evaluation: Evaluation) -> Float[Tensor, "rates"]:
        """The cost of all noise, that of some layers alone, and the gap, on these examples; returns the odds of all rates."""
        held_out = self._held_out_losses(evaluation, self.held_out.next())
        plain, costs_of_units = self._plain(evaluation)
        count = min(CONSTANTS.layers_per_measurement, len(self.moving))
        turn = [self.moving[(self.measurements.count * count + i) % len(self.moving)] for i in range(count)]
        still = [logit for rate, logit in enumerate(self.logits) if rate not in self.moving]
        with eval_mode(self.model), torch.no_grad():
            noisy = losses_at(evaluation, still, self.generator)
            alone = [noisy if len(self.moving) == 1 else self._alone(evaluation, rate) for rate in turn]
        odds, (trained, all_on, unseen, *each_on) = self._odds(), means(evaluation, [plain, noisy, held_out, *alone])
        sums, costs = sums_of(trained, all_on, unseen, odds[self.moving].sum()), torch.stack(each_on) - trained
        keep, keep_alone = 1 - 1 / self.window, 1 - 1 / max(2.0, self.window * count / len(self.moving))
        self.measurements.add(sums, turn, torch.stack([costs, odds[turn]]), keep, keep_alone)
        self.rise.note(self.measurements, odds[self.moving])
        for rate, units in zip(self.unit_costs, costs_of_units, strict=True):
            self._units_of(rate).add(evaluation.all_reduce(units), keep)
        return odds

    def _plain(self, evaluation: Evaluation) -> tuple[Float[Tensor, "batch"], list[Tensor]]:
        """Each example's loss without noise, and what each unit costs where units have rates of their own."""
        with eval_mode(self.model), torch.no_grad():
            if not self.unit_costs:
                return losses_at(evaluation, self.logits, self.generator), []
            with without_cudnn_recurrence(self.model), frozen(self.logits):
                return unit_costs(evaluation, [self.logits[rate] for rate in self.unit_costs])

    def _alone(self, evaluation: Evaluation, rate: int) -> Float[Tensor, "batch"]:
        """Each example's loss under the noise of one rate alone."""
        return losses_at(evaluation, [logit for r, logit in enumerate(self.logits) if r != rate], self.generator)

    def _move(self, odds: Float[Tensor, "rates"]) -> None:
        """All rates, to where their noise costs what it should; makes no GPU wait."""
        c, warm_up = CONSTANTS, self.phase == "warm-up"
        change = log_changes(self.measurements, odds, self.moving)
        low, high = logit_of(c.max_rate), logit_of(c.start if warm_up else c.min_rate)
        for rate, step in zip(self.moving, change, strict=True):
            # By .data: the losses of this step wait for their backward pass, and rates have no gradient in them.
            data = self.logits[rate].data
            if rate not in self.unit_costs:
                data.sub_(step.to(data.dtype)).clamp_(low, high)
                continue
            units = self._units_of(rate)
            units.level = (units.level - step).clamp(low, high)
            # During warm-up a little noise is wanted everywhere: all units have the odds of the layer.
            shares = units.shares() if not warm_up else torch.ones_like(units.sums)
            shares = torch.where(self.measurements.enough, shares, 1.0)
            data.copy_((units.level - shares.log()).clamp(low, logit_of(c.min_rate)))

    def _units_of(self, rate: int) -> UnitCosts:
        return self.unit_costs[rate].on(self.logits[rate].device)

    def _level(self, rate: int) -> Tensor:
        """The logit of a rate; of one with several units as a whole."""
        return self._units_of(rate).level if rate in self.unit_costs else self.logits[rate].detach()

    def _odds(self) -> Float[Tensor, "rates"]:
        """The odds to drop of each rate."""
        return torch.stack([(-self._level(rate).double()).exp().mean() for rate in range(len(self.logits))])

    # -------------------------------------------------------------------------------------------------------- freezing

    def _end_measuring(self) -> None:
        """Freeze all rates; off are those that are tiny, and all where no gap was found."""
        if self.gate.is_open:
            cautions.warn_of_ceiling(self.layers, {id(self.logits[rate]): self._level(rate) for rate in self.moving})
            self.rise.warn(self.measurements)
        tiny = logit_of(CONSTANTS.off_below_rate)
        self._freeze([rate for rate in self.moving if not self.gate.is_open or bool((self._level(rate) > tiny).all())])

    def _is_too_costly(self, odds: Float[Tensor, "rates"]) -> bool:
        """Once, at the end of warm-up: whether noise certainly costs more than the gap; waits for the device."""
        if self.judged or self.phase == "warm-up":
            return False
        found = too_costly(self.measurements, odds[self.moving].sum(), self.first_epoch.distinct)
        self.judged, off = torch.stack([self.measurements.enough, found]).tolist()
        return self.judged and off

    def _freeze(self, off: list[int]) -> None:
        """No rate moves any more, and these are off."""
        self.gate.open()
        for rate in off:
            self.logits[rate].data.fill_(OFF_LOGIT)
        self.off, self.done = list(off), True
        self._follow_phase()
        if self.examples is None:
            self.held_out.restart()  # the batches that wait there are not needed any more

    def __repr__(self) -> str:
        data = "released" if self.examples else "kept out"
        return (
            f"Balanced({len(self.logits)} rates, frozen after {self.frozen_after} of {self.steps} steps,"
            f" every={self.every}, masks={self.masks}, held-out data {data})"
        )
