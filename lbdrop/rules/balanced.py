r"""Balanced noise: rates at which dropout costs half of what over-fitting takes, found from held-out data in one run.

Noise costs training loss, and over-fitting held-out loss. Every few steps three losses are compared, of training examples
without noise, with it, and of held-out examples without; and, layer by layer in turn, with the noise of one alone:

$$ c = \bar\ell_{\text{noisy}} - \bar\ell_{\text{plain}}, \qquad
   c_l = \bar\ell_{\text{noise in } l} - \bar\ell_{\text{plain}}, \qquad
   g = \bar\ell_{\text{held out}} - \bar\ell_{\text{plain}} - s, $$

where $s$ is what held-out examples lose before anything can have over-fitted. The variance of $z / (1 - p)$, and with it
what a little noise costs, is in proportion to the odds $o_l = p_l / (1 - p_l)$, so that $k_l = c_l / o_l$ is a layer's price.
The odds of all layers are moved by one factor to where their noise costs half of what over-fitting takes, and among
themselves to half-way between equal rates and equal costs:

$$ c = \tfrac12\,g, \qquad o_l \propto k_l^{-1/2} . $$

Where the units of a layer have rates of their own, the layer moves so as a whole, and :mod:`lbdrop.rules.unit_prices` says
which of them has more.

The half is that of ridge regression, which dropout of a linear model's inputs is. With noise of variance $\sigma^2$, weights of
prior variance $\tau^2$ and inputs at right angles the best penalty is $\lambda = \sigma^2 / \tau^2$; there it costs
$\lambda \lVert w \rVert^2 / n = \sigma^2 \mathrm{df} / n$, while a fit of that many degrees of freedom is optimistic by
$2 \sigma^2 \mathrm{df} / n$. Elsewhere it was found to hold as well as any (LOG.md).

Nothing over-fits at first, and little noise in the first steps helps weights to find their way (Liu et al., Dropout Reduces
Underfitting, ICML 2023): rates begin at .05 and, in these steps, only rise. Where that surely costs more than over-fitting
takes, all are off from there. Otherwise, when two fifths of the run are over, rates are settled, those that have come to
nothing off. Then held-out examples, having done their work, are trained on too.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop.dropout import LearnableDropout, learned_layers, logit_of
from lbdrop.errors import DropoutError
from lbdrop.guards.modes import eval_mode, frozen, without_cudnn_recurrence
from lbdrop.masks import use
from lbdrop.rules import balance, trial
from lbdrop.rules.around import Around
from lbdrop.rules.bound import Evaluation
from lbdrop.rules.first_epoch import FirstEpoch
from lbdrop.rules.held_out import HeldOut
from lbdrop.rules.ledger import Ledger
from lbdrop.rules.unit_prices import UnitPrices, priced

__all__ = ["EVERY", "Balanced"]

# Of what over-fitting takes, the share that noise costs; and how much less noise a dearer layer has.
KAPPA, GAMMA = 0.5, 0.5
# Where rates begin, and stay at least in the first steps; how many of the steps until they are settled these are.
FIRST, EARLY = 0.05, 0.2
# Where rates are held while they move, and below which they are off when they are settled.
LEAST, MOST, OFF = 0.001, 0.7, 0.02
# By how many of its standard errors what over-fitting takes has to be below the cost of noise for this to be off for good
# when the first steps are over.
SURE = 2.0
# How many steps to one look, and in the first steps; how many looks at least until rates are settled, if there are as many.
EVERY, EVERY_EARLY, LOOKS = 8, 4, 40
# The looks are forgotten over about a tenth of them.
WINDOWS = 10
# How many layers' noise is tried alone in one look: all have their turn.
ALONE = 2
# A layer is taken for no cheaper than this share of the dearest, or chance would decide.
CHEAPEST = 0.01
# The logit of a rate that is off.
SILENT = 50.0


class Balanced:
    """Rates from held-out data, as one of :mod:`lbdrop.rules.bound`: their noise costs half of what over-fitting takes.

    Rates are moved by the rule alone: no optimiser and no learning rate is involved. One rate for the model, for each layer or
    for each unit, as the model was converted.

    Args:
        model: the converted model.
        held_out: batches of held-out data, again and again; a ``DataLoader``, or a list of batches.
        steps: how many training steps the whole run has: calls of the objective.
        examples: how many training examples there are beside them; with it, held-out examples are given back, that is,
            trained on at their share of every batch, once rates are settled. ``None`` keeps them out. It also says how long an
            epoch is: nothing is compared in the first, so that rates stay where they begin if it outlasts ``share``.
        start: the rate that all begin at; by default .05. The model's own do not matter.
        share: of the steps, how many until rates are settled.
        every: how many training steps to one look at held-out data; by default eight, fewer in a run so short that there
            would be less than forty looks.
        masks: through how many masks the weights are trained in each step.
        generator: draws masks.

    Example:
        >>> model = lbdrop.convert(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 2)), verbose=False)
        >>> held_out = [(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))]
        >>> rule = Balanced(model, held_out, steps=1000, examples=500)
        >>> rule
        Balanced(1 rates, settled after 400 of 1000 steps, every=8, masks=1, held-out data given back)
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
        if start is not None and not LEAST <= start <= MOST:
            raise DropoutError(f"start: want a rate from {LEAST} to {MOST}, or None for {FIRST}, got {start}")
        self.model, self.steps, self.examples, self.masks, self.generator = model, steps, examples, masks, generator
        self.settles = math.ceil(share * steps)
        self.every = max(1, min(EVERY, self.settles // LOOKS)) if every is None else every
        self.window = max(5.0, self.settles / self.every / WINDOWS)
        self.layers = learned_layers(model)
        self.logits = list({id(layer.logit): layer.logit for layer in self.layers.values()}.values())
        if not self.logits:
            raise DropoutError("balanced rates: want a model with learned dropouts; call lbdrop.convert(model) first")
        self.held_out = HeldOut(held_out, self.logits[0])
        if examples is not None:
            self.held_out.count()
        self.first_epoch = FirstEpoch(self.held_out, examples, self.settles, trial.STEPS)
        self.last_held_out: Tensor | None = None
        self._off: list[Tensor] = []  # no mask is drawn for these
        first = next(iter(self.layers.values()))
        begins = first.ledger is None or first.ledger.rates != len(self.logits)
        if begins:  # else a rule made anew goes on
            first.ledger = Ledger(len(self.logits))
            for logit in self._moving:
                logit.data.fill_(logit_of(FIRST if start is None else start))
        for holder in self._holders.values():
            if begins or holder.unit_prices is None:
                holder.unit_prices = UnitPrices.of(holder.logit)

    @property
    def ledger(self) -> Ledger:
        """What was compared; part of the model's state, which a run taken up again has loaded."""
        found = next(iter(self.layers.values())).ledger
        assert found is not None
        return found

    @property
    def settled(self) -> bool:
        """Whether the rates are what they will be."""
        return self.ledger.settled or not self._moving

    @property
    def _moving(self) -> list[nn.Parameter]:
        """The rates that are not settled, nor meant to stay what they are."""
        return [logit for logit in self.logits if logit.requires_grad]

    @property
    def _unit_prices(self) -> dict[int, UnitPrices]:
        """By those of the rates that move and have several units."""
        return {
            rate: prices.on(holder.logit.device)
            for rate, holder in self._holders.items()
            if (prices := holder.unit_prices) is not None
        }

    @property
    def _holders(self) -> dict[int, LearnableDropout]:
        """By the same rates, the first layer of each, which has its prices."""
        first = {id(layer.logit): layer for layer in reversed(self.layers.values())}
        return {r: first[id(a)] for r, a in enumerate(self.logits) if a.requires_grad and a.numel() > 1}

    # ------------------------------------------------------------------------------------------------------ one step

    def loss(self, evaluation: Evaluation) -> Float[Tensor, ""]:
        if not torch.is_grad_enabled():
            return self._under_noise(evaluation)
        self.first_epoch.note(evaluation, self.logits[0].device)
        if self.settled:
            if self._moving or not self.ledger.settled:
                self._settle()
            if self.examples is not None:
                evaluation = evaluation.instead(self.held_out.mixed(evaluation.batch, self.examples))
            return self._under_noise(evaluation)
        expected = self._under_noise(evaluation)
        ledger, early = self.ledger, self._early
        if ledger.steps == 0:  # for nothing, but that a mistake shows now, and not where the first look counts
            self._held_out_losses(evaluation, self.held_out.peek())
            if self.examples is not None:
                self.held_out.check_like(evaluation.batch)
        if ledger.steps in self.first_epoch.last():
            self._see_shift(evaluation)
        ledger.steps += 1
        due = ledger.steps % (min(self.every, EVERY_EARLY) if early else self.every) == 0
        if due and ledger.steps not in self.first_epoch:
            odds = self._compare(evaluation)
            useless = not (ledger.judged or self._early) and self._judge()
            self._move(odds)
            if useless:
                self._settle(off=True)
        if ledger.steps >= self.settles:  # beyond, where a run taken up again was made shorter
            self._settle()
        return expected

    @property
    def _early(self) -> bool:
        return self.ledger.steps < EARLY * self.settles

    def _under_noise(self, evaluation: Evaluation) -> Float[Tensor, ""]:
        around = Around(self.logits, 0.0, masks=self.masks, quiet=self._off, generator=self.generator)
        with around.opened(), frozen(self.logits):
            return evaluation.sampled(around, self.masks).mean()

    def _held_out_losses(self, evaluation: Evaluation, batch: tuple[Any, ...]) -> Float[Tensor, "batch"]:
        around = Around(self.logits, 0.0)
        with eval_mode(self.model), torch.no_grad(), around.opened(), use(self.model, around):
            return evaluation.elsewhere(batch).float()

    def _see_shift(self, evaluation: Evaluation) -> None:
        """How much harder held-out examples are than these, which have not been trained on yet; batches are put back."""
        batch = self.held_out.ahead(self.ledger.steps - self.first_epoch.last().start)
        with eval_mode(self.model), torch.no_grad():
            fresh = trial.plain(evaluation, self.logits, self.generator)
        found = trial.shift_of(fresh, self._held_out_losses(evaluation, batch), 1)[:, 0]
        self.ledger.shift = self.ledger.shift.to(found) + evaluation.summed(found.clone())

    # ------------------------------------------------------------------------------------------------------ one look

    def _compare(self, evaluation: Evaluation) -> Float[Tensor, "rates"]:
        """What noise costs, all of it and that of some layers alone, and what over-fitting takes, of these examples.

        Returns the odds at which that was compared.
        """
        ledger, moving = self.ledger, [rate for rate, logit in enumerate(self.logits) if logit.requires_grad]
        held_out = self._held_out_losses(evaluation, self.held_out.next())
        self.last_held_out = held_out.mean()
        plain, prices = self._plain(evaluation)
        with eval_mode(self.model), torch.no_grad():
            noisy = trial.noisy(evaluation, self.logits, self.generator)
            count = min(ALONE, len(moving))
            turn = [moving[(ledger.looks * count + i) % len(moving)] for i in range(count)]
            lone = [
                noisy if len(moving) == 1 else trial.alone(evaluation, self.logits, r, self.generator) for r in turn
            ]
        odds, trained = self._odds(), plain.double().mean()
        compared = balance.sums_of(plain, noisy, held_out, odds[moving].sum())
        costs = torch.stack([each.double().mean() - trained for each in lone])
        found = evaluation.summed(torch.cat([compared, costs, odds[turn], *prices]))
        compared, costs, then, *prices = found.split([len(compared), count, count, *map(len, prices)])
        ledger.looks += 1
        ledger.to_device(found.device)
        # A look that is not finite would stay in the sums for ever.
        finite = found.isfinite().all()
        ledger.compared = torch.where(finite, compared + (1 - 1 / self.window) * ledger.compared, ledger.compared)
        forget = 1 - 1 / max(2.0, self.window * count / len(moving))
        alone = ledger.alone.clone()
        alone[:, turn] = torch.stack([costs, then]) + forget * alone[:, turn]
        ledger.alone = torch.where(finite, alone, ledger.alone)
        for units, price in zip(self._unit_prices.values(), prices, strict=True):
            units.add(price, 1 - 1 / self.window, finite)
        return odds

    def _plain(self, evaluation: Evaluation) -> tuple[Float[Tensor, "batch"], list[Tensor]]:
        """Each example's loss without dropout, and what each unit costs where units have rates of their own."""
        with eval_mode(self.model), torch.no_grad():
            if not (several := [self.logits[rate] for rate in self._unit_prices]):
                return trial.plain(evaluation, self.logits, self.generator), []
            with without_cudnn_recurrence(self.model), frozen(self.logits):
                return priced(evaluation, several)

    def _move(self, odds: Float[Tensor, "rates"]) -> None:
        """All rates, to where their noise costs what it should; keeps no GPU waiting."""
        ledger = self.ledger
        moving = [rate for rate, logit in enumerate(self.logits) if logit.requires_grad]
        now = odds[moving]
        (cost, error), (taken, _) = balance.cost_and_taken(ledger.compared, now.sum(), trial.harder(ledger.shift))
        # A cost that is not told apart from nothing is taken for as much as it may be.
        by = (KAPPA * taken.clamp(min=0) / torch.maximum(cost, error)).log().clamp(-balance.STRIDE, balance.STRIDE)
        price = ledger.alone[0, moving] / ledger.alone[1, moving]
        price = torch.where(ledger.alone[1, moving] > 0, price, cost / now.sum())  # not had its turn yet
        price = torch.maximum(price, CHEAPEST * price.max()).clamp(min=torch.finfo(price.dtype).tiny)
        share = price**-GAMMA
        # In these proportions, what noise would cost as much as now; and by the factor more or less.
        then = share * (price * now).sum() / (price * share).sum() * by.exp()
        change = (then / now).log().clamp(-balance.STRIDE, balance.STRIDE)
        # Of several processes a look counts several times, and still is one.
        enough = (ledger.compared[0] > balance.FEW) & (ledger.looks > balance.FEW)
        change = torch.where(enough & change.isfinite(), change, 0.0)
        low, high = logit_of(MOST), logit_of(FIRST if self._early else LEAST)
        units = self._unit_prices
        for rate, logit, step in zip(moving, self._moving, change, strict=True):
            # By .data: the losses of this step wait for their backward pass, and rates have no gradient in them.
            if rate not in units:
                logit.data.sub_(step.to(logit.dtype)).clamp_(low, high)
                continue
            units[rate].level = (units[rate].level - step).clamp(low, high)
            # In the first steps a little noise is wanted everywhere, and none of it chosen.
            shares = torch.where(enough & (not self._early), units[rate].shares(), 1.0)
            logit.data.copy_((units[rate].level - shares.log()).clamp(low, logit_of(LEAST)))

    def _odds(self) -> Float[Tensor, "rates"]:
        """To drop, of each rate; of one with several units as a whole."""
        units = self._unit_prices
        logits = [units[rate].level if rate in units else logit.detach() for rate, logit in enumerate(self.logits)]
        return torch.stack([(-logit.double()).exp().mean() for logit in logits])

    def _judge(self) -> bool:
        """Once, when the first steps are over: whether noise surely costs more than over-fitting takes; asks the device."""
        ledger = self.ledger
        then = ledger.compared[5] / ledger.compared[0]  # the odds at which it was compared
        (cost, _), (taken, error) = balance.cost_and_taken(
            ledger.compared, then, trial.harder(ledger.shift), self.first_epoch.distinct
        )
        enough, useless = torch.stack(
            [ledger.compared[0] > balance.FEW, cost > taken.clamp(min=0) + SURE * error]
        ).tolist()
        ledger.judged = enough and ledger.looks > balance.FEW
        return ledger.judged and useless

    def _settle(self, off: bool = False) -> None:
        """What has come to nothing is off, or all is, and nothing moves any more; asks the device once for each rate."""
        units = {id(self.logits[rate]): prices.level for rate, prices in self._unit_prices.items()}
        for logit in self._moving:
            if off or bool((units.get(id(logit), logit) > logit_of(OFF)).all()):
                logit.data.fill_(SILENT)
                self._off.append(logit)
            logit.requires_grad_(False)
        if self.examples is None and not self.ledger.settled:
            self.held_out.restart()  # what waits there is not needed any more
        self.ledger.settled = True

    def restart(self) -> None:
        """Begin the held-out data anew, as at the start of an epoch: a run taken up again then sees what it would have."""
        self.held_out.restart()

    def rates(self) -> dict[str, float]:
        """The mean rate of each layer as it is now."""
        return {name: layer.p for name, layer in self.layers.items()}

    def __repr__(self) -> str:
        back = "given back" if self.examples else "kept out"
        return (
            f"Balanced({len(self.logits)} rates, settled after {self.settles} of {self.steps} steps, every={self.every},"
            f" masks={self.masks}, held-out data {back})"
        )
