"""Rates of one split of a UCI set, learned on the four fifths of its training part that a grid would be trained on.

The other fifth is what a grid would be chosen on; the held-out rule follows it, and it is never trained on here.
"""

import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

import lbdrop
from experiments.rates import uci
from experiments.rates.batches import Batches
from experiments.rates.task_kinds import KINDS
from lbdrop.dropout import noise_layers
from lbdrop.io.records import provenance

__all__ = ["BATCH", "LR", "RULES", "STEPS", "RatesJob", "learn"]

Rule = Literal["held-out", "bound"]
RULES: tuple[Rule, ...] = ("held-out", "bound")
BATCH, LR = 128, 5e-3
STEPS, STEPS_LARGE = 6_000, 4_000
"""Of the run that learns rates: Adam, cosine to zero, as the runs that use them; large sets over-fit little."""


def learn(name: str, split: int, rule: Rule, folder: Path, steps: int | None = None) -> dict[str, Any]:
    """One run: rates before and behind the hidden layer, and how long it took."""
    train, validation, _, _ = uci.load(name, folder, split)
    steps = steps or (STEPS_LARGE if name in uci.LARGE else STEPS)
    torch.manual_seed(split)
    model = lbdrop.convert(uci.Regressor(train[0].shape[1], uci.hidden(name), 0.1), verbose=False)
    batches = Batches(train, BATCH, torch.Generator().manual_seed(split))
    if rule == "held-out":
        held_out = Batches(validation, BATCH, torch.Generator().manual_seed(split + 1))
        objective = lbdrop.Objective(model, lbdrop.Balanced(model, held_out, steps=steps))
        parameters: Any = model.parameters()
    else:
        objective = lbdrop.Objective(model, lbdrop.Bound(model, len(train[0])))
        parameters = lbdrop.parameter_groups(model, rate_lr=10 * LR, lr=LR)
    optimizer = torch.optim.Adam(parameters, lr=LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = KINDS["regression"].losses
    began, step = time.process_time(), 0
    model.train()
    while step < steps:
        for x, y in batches:
            loss = objective(losses, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step == steps:
                break
    seconds = time.process_time() - began
    return {
        "set": name, "split": split, "rule": rule, "steps": steps, "batch": BATCH, "lr": LR,
        "rates": [layer.p for layer in noise_layers(model).values()], "seconds": seconds, "provenance": provenance("cpu"),
    }  # fmt: skip


class RatesJob(NamedTuple):
    """A run that another process can be given."""

    name: str
    split: int
    rule: Rule
    folder: Path
    steps: int | None = None

    def run(self) -> dict[str, Any]:
        return learn(self.name, self.split, self.rule, self.folder, self.steps)
