r"""Self-tuning: rates that follow the held-out loss, through weights that know how they would answer to other rates.

Each example draws offsets $\epsilon \sim \mathcal{N}(0, \sigma^2)$ to the logits $\alpha$ of all rates, and its masks at
those rates. Behind each mask a :class:`~lbdrop.rules.response.Response` takes up what the best weights would do there:

$$ y = (x \odot z)\,(1 + \epsilon G) + \epsilon H, \qquad z \sim \mathrm{Ber}(\sigma(\alpha + \epsilon)) $$

Weights, $G$ and $H$ follow the training loss. Now and then held-out examples are looked at, without dropout: their loss as a
function of $\alpha + \epsilon$ has slopes through $G$ and $H$, and :class:`~Slopes` turns them into steps of the
rates. A run has three parts. First a short one without dropout, which ends where something surely over-fits, or where each
rate's noise has been tried: one that would cost too much is switched off, the others begin where they cost what over-fitting
takes (``trial``). Then this one, in which slopes say which rate should rise and which should fall, and
:mod:`lbdrop.rules.balance` how much noise there is in all; at its end rates are settled. The rest is ordinary training at these
rates, on all data: held-out examples have done their work, and are given back.

MacKay et al., Self-Tuning Networks, ICLR 2019; here with the response inside the dropout layers, so that any converted model
has it, and with steps of Newton's kind in place of the optimiser's.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from experiments.rival_rules import noise_share, noise_trial
from experiments.rival_rules.masks_around import MasksAround, Widths
from experiments.rival_rules.responding import RespondingDropout, replace_dropouts
from experiments.rival_rules.response_check import ResponseCheck
from experiments.rival_rules.slopes import Slopes
from lbdrop.dropout import learned_layers, logit_of
from lbdrop.errors import DropoutError
from lbdrop.guards import optimizers
from lbdrop.guards.modes import eval_mode, frozen, without_cudnn_recurrence
from lbdrop.masks import use
from lbdrop.rules.evaluation import Evaluation
from lbdrop.rules.first_epoch import FirstEpoch
from lbdrop.rules.held_out import HeldOut, size_of
from lbdrop.rules.measurements import Measurements, losses_at, means, shift_sums, sums_of
from lbdrop.rules.rule import Phase

__all__ = ["EVERY", "SelfTuning", "parameter_groups"]

# After so many looks at held-out data, fewer in a short run, it is asked whether the responses have moved.
PATIENCE = 50
# Where rates are held while they move: lower, and examples around them say nothing of higher ones any more.
LOWEST, HIGHEST = 0.03, 0.9
# Where the balance lifts no rate beyond: one that is above has gone there by its slopes.
LIFTED = 0.7
# Of the steps without dropout, those after which it is asked whether something over-fits already, and how many of them go by
# from one comparison of losses to the next, if looks do not come oftener anyway: these steps are few.
EARLY, COMPARED = (1 / 8, 1 / 4, 1 / 2), 4
# How many steps to one look, and how many looks at least until rates are settled, if there are as many steps.
EVERY, LOOKS = 8, 40
# The looks are forgotten over about a tenth of them; before half of that has been seen no rate moves.
WINDOWS = 10
# Of the steps until rates are settled, those after which rates may be switched off, so that weights have time without them.
SIFTED = 0.7
# The logit of a rate that is switched off.
OFF = 50.0


class SelfTuning:
    """Rates from held-out data, as one of ``lbdrop.rules``. Made before the optimiser: it adds the responses' parameters.

    Args:
        model: the converted model.
        held_out: batches of held-out data, again and again; a ``DataLoader``, or a list of batches.
        steps: how many training steps the whole run has: calls of the objective.
        examples: how many training examples there are beside them; with it, held-out examples are given back, that is,
            trained on at their share of every batch, once rates are settled. ``None`` keeps them out.
        start: the rate that all begin at; ``None``: where their noise costs what over-fitting takes (``trial``), or
            .1 where ``plain`` leaves no step to measure it in. The model's own do not matter.
        plain: of the steps until rates are settled, how many at the beginning have no dropout, whose noise costs most there.
        share: of the steps, how many until rates are settled; those that are of no use are switched off a little before.
        spread: σ, how far around the present rates the network learns to answer, in logits.
        every: how many training steps to one look at held-out data; by default eight, fewer in a run so short that there
            would be less than forty looks.
        masks: through how many masks the weights are trained in each step.
        example: a batch of inputs to run once, where the widths of the dropouts are not known yet; by default the first
            held-out batch's first element.
        generator: draws offsets and masks.
    """

    def __init__(
        self,
        model: nn.Module,
        held_out: Iterable[Any],
        *,
        steps: int,
        examples: int | None = None,
        start: float | None = None,
        plain: float = 0.2,
        share: float = 0.4,
        spread: float = 1.0,
        every: int | None = None,
        masks: int = 1,
        example: Any = None,
        generator: torch.Generator | None = None,
    ):
        least = min(masks, steps, 1 if every is None else every)
        if spread <= 0 or least < 1 or not 0 < share <= 1 or not 0 <= plain < 1:
            raise DropoutError(
                "self-tuning: want spread > 0, every ≥ 1, masks ≥ 1, steps ≥ 1, share in (0, 1] and plain in [0, 1), got"
                f" {spread}, {every}, {masks}, {steps}, {share} and {plain}"
            )
        if start is not None and not LOWEST <= start <= HIGHEST:
            raise DropoutError(f"start: want a rate from {LOWEST} to {HIGHEST}, or None to find one, got {start}")
        self.model, self.examples, self.start = model, examples, start
        self.spread, self.masks, self.generator = spread, masks, generator
        self.settles = math.ceil(share * steps)
        self.every = max(1, min(EVERY, self.settles // LOOKS)) if every is None else every
        self.begins, self.sifts = int(plain * self.settles), math.ceil(SIFTED * self.settles)
        self._asks = {math.ceil(part * self.begins) for part in EARLY}
        self.window = max(5.0, self.settles / self.every / WINDOWS)
        replace_dropouts(model)
        self.layers = {n: m for n, m in learned_layers(model).items() if isinstance(m, RespondingDropout)}
        self.logits = list({id(layer.logit): layer.logit for layer in self.layers.values()}.values())
        if not self.logits:
            raise DropoutError("self-tuning: want a model with learned dropouts; call lbdrop.convert(model) first")
        self.held_out = HeldOut(held_out, self.logits[0])
        if examples is not None:
            self.held_out.count()
        self._answer(example)
        for logit in self._moving:
            logit.data.fill_(logit_of(noise_trial.RATE if start is None else start))
        self.slopes, self.measurements = Slopes(len(self.logits)), Measurements(1)
        self.trial_sums = torch.zeros(9, len(self.logits), dtype=torch.float64)
        self.began = 0  # the step at which rates began to move early
        self.off: list[int] = []
        self.first_epoch = FirstEpoch(self.held_out, examples, self.settles, noise_trial.STEPS)
        self._at_once = _batch_size(self.held_out)
        self._looks, self._check = 0, ResponseCheck(model, self.layers, self.logits)

    @property
    def phase(self) -> Phase:
        if self.settled:
            return "frozen"
        return "warm-up" if self.slopes.steps < self.begins else "measuring"

    @property
    def settled(self) -> bool:
        """Whether the rates are what they will be."""
        return self.slopes.steps >= self.settles or not any(logit.requires_grad for logit in self.logits)

    # ------------------------------------------------------------------------------------------------------ one step

    def loss(self, evaluation: Evaluation) -> Float[Tensor, ""]:
        if not torch.is_grad_enabled():
            return self._around_now(evaluation)
        self.first_epoch.note(evaluation, self.logits[0].device)
        if not self.settled:
            self._begin_if_due()
        if self.settled:
            self._stay(self.logits)
            if self.examples is not None:
                evaluation = evaluation.with_batch(self.held_out.mixed(evaluation.batch, self.examples))
            return self._around_now(evaluation)
        expected = self._around_now(evaluation)
        if self.slopes.steps == 0 < self.begins:
            self.look(evaluation)  # for nothing, but that a mistake shows now, and not where the first look counts
        if self.slopes.steps in self.first_epoch.last():
            self._see_shift(evaluation)
        if self.begins - noise_trial.STEPS <= self.slopes.steps < self.begins:
            self._try_noise(evaluation)
        self.slopes.steps += 1
        if self.slopes.steps > self.begins:
            if self.slopes.steps % self.every == 0:
                with eval_mode(self.model):
                    self._weigh(evaluation, self.held_out.peek())  # of the look, which sees as many batches as before
                    self._look(evaluation)
        elif self.slopes.steps <= max(self._asks) and self.slopes.steps % min(self.every, COMPARED) == 0:
            with eval_mode(self.model):
                self._weigh(evaluation, self.held_out.next())
        if self.slopes.steps in (self.sifts, self.settles):
            self._switch_off(self._useless())
        if self.slopes.steps == self.settles and self.examples is None:
            self.held_out.restart()  # what waits there is not needed any more
        return expected

    def _around_now(self, evaluation: Evaluation) -> Float[Tensor, ""]:
        """The training loss: without dropout at first, then around the rates while they move, at them when they are settled."""
        plain = self.slopes.steps < self.begins and not self.settled
        around = self._around(0.0 if self.settled or plain else self.spread, silent=self.logits if plain else ())
        with around.opened(), frozen(self.logits) if plain else nullcontext():
            return evaluation.sampled(around, self.masks).mean()

    def _around(self, spread: float, *, silent: Sequence[Tensor] = (), follow: bool = False) -> MasksAround:
        return MasksAround(
            self.logits, spread, masks=self.masks, silent=silent, follow=follow, generator=self.generator
        )

    def _look(self, evaluation: Evaluation) -> None:
        """At a held-out batch: take its slopes in, and move the rates."""
        self._looks += 1
        if self._looks % max(5, min(PATIENCE, round(self.window))) == 0:
            self._check.check(self._looks)
        offsets, slopes = self.look(evaluation)
        now = torch.stack([logit.detach().float().mean() for logit in self.logits])
        self.slopes.add(evaluation.all_reduce(Slopes.sums_of(now + offsets, slopes)), self.window)
        if self.slopes.steps - self.begins < self.every * self.window / 2:  # too little seen
            return
        low, high = logit_of(HIGHEST), logit_of(LOWEST)
        by = noise_share.correction(self.measurements, self._odds(), self.first_epoch.distinct)
        for logit, step in zip(self.logits, self.slopes.step(now, self.window), strict=True):
            if logit.requires_grad:
                # By .data: the losses of this step wait for their backward pass, and rates have no gradient in them.
                logit.data.add_(step.to(logit.dtype)).clamp_(low, high)
                there = (logit.detach() - by.to(logit.dtype)).clamp(max=high)
                lifted = torch.minimum(logit.detach(), there.clamp(min=logit_of(LIFTED)))
                logit.data.copy_(torch.where(by > 0, lifted, there))

    def look(self, evaluation: Evaluation) -> tuple[Float[Tensor, "batch rates"], Float[Tensor, "batch rates"]]:
        """The next held-out examples' offsets, and the slope of each one's loss for them, through the responses alone."""
        batch = self.held_out.next()
        around = self._around(self.spread, follow=True)
        with eval_mode(self.model), around.opened(), use(self.model, around), without_cudnn_recurrence(self.model):
            held_out = evaluation.losses_on(batch)
        assert around.offsets is not None
        (slopes,) = torch.autograd.grad(held_out.sum(), around.offsets)
        return around.offsets.detach(), slopes.detach()

    def _weigh(self, evaluation: Evaluation, batch: tuple[Any, ...]) -> None:
        """The cost of noise and the gap, of this batch and of a held-out one; in a model as at test."""
        if self._in_first_epoch:
            return
        frozen_rates = [logit for logit in self.logits if not logit.requires_grad]
        with torch.no_grad():
            plain = losses_at(evaluation, self.logits, self.generator)
            noisy = losses_at(evaluation, frozen_rates, self.generator)
            held_out = self._held_out_losses(evaluation, batch)
        trained, covered, unseen = means(evaluation, [plain, noisy, held_out])
        found = sums_of(trained, covered, unseen, self._odds())
        self.measurements.add(found, [0], torch.zeros_like(found[:2, None]), 1 - 1 / self.window, 0.0)

    def _odds(self) -> Float[Tensor, ""]:
        """Of all rates that move, in a sum."""
        return torch.stack([(-logit.detach().float()).exp().mean() for logit in self._moving]).sum()

    def _try_noise(self, evaluation: Evaluation) -> None:
        which = noise_trial.turn(self.slopes.steps, self.logits)
        with eval_mode(self.model), torch.no_grad():
            trained, costs = noise_trial.costs(evaluation, self.logits, which, self.generator)
            held_out = self._held_out_losses(evaluation, self.held_out.next())
        found = noise_trial.sums_of(costs, which, len(self.logits), trained, held_out)
        self.trial_sums = self.trial_sums.to(found) + evaluation.all_reduce(found.clone())

    def _see_shift(self, evaluation: Evaluation) -> None:
        """How much harder held-out examples are than these, which have not been trained on yet; no batch is used up."""
        batch = self.held_out.ahead(self.slopes.steps - self.first_epoch.last().start)
        with eval_mode(self.model), torch.no_grad():
            fresh = losses_at(evaluation, self.logits, self.generator)
            held_out = self._held_out_losses(evaluation, batch)
        found = shift_sums(*means(evaluation, [fresh, held_out]))
        self.measurements.shift_sums = self.measurements.shift_sums.to(found) + found

    def _held_out_losses(self, evaluation: Evaluation, batch: tuple[Any, ...]) -> Float[Tensor, "batch"]:
        around = self._around(0.0)
        with around.opened(), use(self.model, around):
            return evaluation.losses_on(batch).float()

    @property
    def _in_first_epoch(self) -> bool:
        return self.slopes.steps in self.first_epoch

    def _begin_if_due(self) -> None:
        """With noise: at once where it surely pays, for what is memorised without is not easily forgotten."""
        now = self.slopes.steps
        if now in self._asks and now < self.begins and not self._in_first_epoch:
            sure, times = noise_share.beyond(self.measurements, self._odds(), self.first_epoch.distinct)
            if bool(sure):
                self.begins = now
                self.began = now
                self._begin_at(noise_trial.within(float(times * self._odds()) / len(self._moving)))
        elif now == self.begins > 0 and not self.began:
            # In a first epoch nothing can over-fit yet, and noise that costs anything would be too dear.
            if not self._in_first_epoch:
                self._switch_off(noise_trial.too_costly(self.trial_sums))
            left = [logit.requires_grad for logit in self.logits]
            self._begin_at(noise_trial.start_rate(self.trial_sums, left, self.measurements.shift()))

    def _begin_at(self, rate: float) -> None:
        for logit in self._moving if self.start is None else ():
            logit.data.fill_(logit_of(rate))
        self.measurements.sums = torch.zeros_like(self.measurements.sums)

    @property
    def _moving(self) -> list[nn.Parameter]:
        """The rates that are not off, nor meant to stay what they are."""
        return [logit for logit in self.logits if logit.requires_grad]

    def _useless(self) -> list[bool]:
        """Which rates are at the lower edge, and their slope still points below it; asks the device once."""
        edge = logit_of(LOWEST) - 0.05
        down = self.slopes.surely_down(self.first_epoch.distinct * self._at_once).tolist()
        return [d and bool((a > edge).all()) for a, d in zip(self.logits, down, strict=True)]

    def _switch_off(self, which: Sequence[bool]) -> None:
        off = [rate for rate, logit in enumerate(self.logits) if which[rate] and logit.requires_grad]
        for rate in off:
            self.logits[rate].data.fill_(OFF)
        self.off += off
        self._stay([self.logits[rate] for rate in off])

    def _stay(self, logits: Sequence[nn.Parameter]) -> None:
        for logit in logits:
            logit.requires_grad_(False)

    def state_dict(self) -> dict[str, Any]:
        return {
            "slopes": self.slopes.state_dict(), "measurements": self.measurements.state_dict(),
            "trial": self.trial_sums, "began": self.began, "off": list(self.off),
            "logits": [logit.detach().clone() for logit in self.logits],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.slopes.load_state_dict(state["slopes"])
        self.measurements.load_state_dict(state["measurements"])
        self.trial_sums, self.began = state["trial"].clone(), state["began"]
        self.begins = self.began or self.begins
        for logit, saved in zip(self.logits, state["logits"], strict=True):
            logit.data.copy_(saved)
        self.off = [*state["off"]]
        self._stay([self.logits[rate] for rate in self.off])

    def restart(self) -> None:
        """Begin the held-out data anew, as at the start of an epoch: a run taken up again then sees what it would have."""
        self.held_out.restart()

    # --------------------------------------------------------------------------------------------------- preparations

    def _answer(self, example: Any) -> None:
        """Run an example to see how many units reach each dropout, everywhere it is called, and give them responses."""
        if example is None:
            example = self.held_out.peek()[0]
        seen = Widths()
        try:
            with eval_mode(self.model), torch.no_grad(), use(self.model, seen):
                self.model(**example) if isinstance(example, dict) else self.model(example)
        except Exception as error:
            # Where the model was converted with an example, what was seen then will do.
            seen.found = {
                (layer, layer.width, layer.dims) for layer in self.layers.values() if layer.width and layer.dims
            }
            if len(seen.found) < len(self.layers):
                raise DropoutError(
                    f"example: want inputs that the model can be called with, got {error}; pass example=x, or convert the"
                    " model with example=x"
                ) from error
        place = {id(logit): index for index, logit in enumerate(self.logits)}
        for name, layer in self.layers.items():
            if not any(layer is reached for reached, _, _ in seen.found):
                raise DropoutError(f"dropout that the example does not reach: {name}; its rate cannot be learned")
            layer.rate_index = place[id(layer.logit)]
        for layer, width, dims in seen.found:
            if isinstance(layer, RespondingDropout):
                layer.respond(len(self.logits), width, dims)

    def rates(self) -> dict[str, float]:
        """The mean rate of each layer as it is now."""
        return {name: layer.p for name, layer in self.layers.items()}

    def __repr__(self) -> str:
        back = "given back" if self.examples else "kept out"
        return (
            f"SelfTuning({len(self.logits)} rates, moving from step {self.begins}, settled after {self.settles},"
            f" spread={self.spread}, every={self.every}, masks={self.masks}, held-out data {back})"
        )


def parameter_groups(model: nn.Module, rate_lr: float | None = None, **options: Any) -> list[dict[str, Any]]:
    """Those of :func:`lbdrop.parameter_groups`, and the responses in a third, which learns like the rates."""
    weights, rates = optimizers.parameter_groups(model, rate_lr, **options)
    layers = [layer for layer in learned_layers(model).values() if isinstance(layer, RespondingDropout)]
    responses = {id(p): p for layer in layers if layer.responses for p in layer.responses.parameters()}
    weights["params"] = [p for p in weights["params"] if id(p) not in responses]
    # Relative changes per logit, so of the rates' scale whatever that of the weights is.
    return [weights, rates, {**rates, "params": list(responses.values())}] if responses else [weights, rates]


def _batch_size(held_out: HeldOut) -> float:
    """How many examples the next batch has; infinite where that cannot be told."""
    try:
        return float(size_of(held_out.peek()))
    except DropoutError:
        return math.inf
