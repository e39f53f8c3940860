"""The UCI benchmark in the protocol of Gal's published code: hyper-parameters from a fifth of the training part.

1. Rates: learned in one run (:mod:`experiments.uncertainty.uci_rates`), or each of the published grid.
2. On four fifths of the training part: train with these rates fixed for each number of steps; the noise's variance (one over
   the published τ) is that of the largest likelihood on the other fifth, and so are the steps and, of the grid, the rate.
3. Train on the whole training part. RMSE of the mean over the masks and likelihood of their mixture on the test part, once.

All splits and contestants are trained side by side.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.rates import uci
from experiments.uncertainty.side_by_side import masked_outputs, train
from experiments.uncertainty.uci_rates import BATCH, LR
from lbdrop.io.records import provenance

__all__ = ["BUDGETS", "BUDGETS_LARGE", "CONTESTANTS", "GRID", "SPLITS", "run_set"]

GRID = (0.005, 0.01, 0.05, 0.1)
"""The published one, of all nine sets."""
BUDGETS, BUDGETS_LARGE = (1_000, 4_000, 16_000), (4_000, 20_000)
MEMBERS = 5
MASKS_VALIDATION, MASKS_TEST = 100, 1_000
SPLITS = {name: 5 if name == "protein" else 20 for name in uci.SIZES}
VARIANCES = torch.logspace(-5, 0.5, 111)
"""Of the noise, in units of the target's variance."""


class Contestant(NamedTuple):
    """A contestant's members: how its rates come about, and how many networks are averaged."""

    rates: str
    members: int = 1


CONTESTANTS: dict[str, Contestant] = {
    "held-out": Contestant("held-out"),
    "bound": Contestant("bound"),
    "no dropout": Contestant("0"),
    **{f"fixed {rate:g}": Contestant(f"{rate:g}") for rate in GRID},
    f"ensemble of {MEMBERS}": Contestant("0", MEMBERS),
    f"ensemble of {MEMBERS}, held-out": Contestant("held-out", MEMBERS),
}


class _Parts(NamedTuple):
    """One split, standardised by what is trained on."""

    x: Tensor
    y: Tensor
    x_judged: Tensor
    y_judged: Tensor
    unit: float


def run_set(
    name: str,
    folder: Path,
    learned: Mapping[tuple[int, str], Sequence[float]],
    *,
    splits: int | None = None,
    budgets: Sequence[int] | None = None,
    device: str = "cpu",
    masks: tuple[int, int] = (MASKS_VALIDATION, MASKS_TEST),
) -> dict[str, Any]:
    """One set, all contestants whose rates are there: for every split what was chosen and what came of it."""
    budgets = budgets or (BUDGETS_LARGE if name in uci.LARGE else BUDGETS)
    count = splits or SPLITS[name]
    loaded = [uci.load(name, folder, split) for split in range(count)]
    contestants = {
        key: one
        for key, one in CONTESTANTS.items()
        if one.rates[0].isdigit() or all((split, one.rates) in learned for split in range(count))
    }
    # A row is a member of a contestant; every row has a network for every split.
    rows = [key for key, one in contestants.items() for _ in range(one.members)]
    rates = torch.tensor(
        [_rates(contestants[key].rates, learned, split) for key in rows for split in range(count)], device=device
    )
    choosing = [_Parts(*train_part, *judged, unit) for train_part, judged, _, unit in loaded]
    final = [_whole(*each) for each in loaded]
    found: dict[str, dict[str, list[Any]]] = {key: {} for key in contestants}
    best = {key: torch.full((count,), math.inf) for key in contestants}
    for steps in budgets:
        chosen, tested = (
            _fit(parts, rows, rates, uci.hidden(name), steps, amount, device)
            for parts, amount in zip((choosing, final), masks, strict=True)
        )
        for key in contestants:
            nll, variance = _best_noise(_mixture(chosen, rows, key), choosing)
            test = _mixture(tested, rows, key)
            for split in range(count):
                if nll[split] < best[key][split]:
                    best[key][split] = nll[split]
                    result = {"steps": steps, "validation nll": float(nll[split]), "noise": float(variance[split])}
                    result |= _test(test[:, split], final[split], float(variance[split]))
                    row = rows.index(key) * count + split
                    found[key].setdefault("splits", [None] * count)[split] = result | {"rates": rates[row].tolist()}
    return {
        "set": name, "budgets": list(budgets), "batch": BATCH, "lr": LR, "masks": list(masks),
        "contestants": {key: each["splits"] for key, each in found.items()}, "provenance": provenance(device),
    }  # fmt: skip


def _rates(how: str, learned: Mapping[tuple[int, str], Sequence[float]], split: int) -> list[float]:
    return [float(how)] * 2 if how[0].isdigit() else list(learned[split, how])


def _whole(train_part: Any, validation: Any, test: Any, unit: float) -> _Parts:
    """The whole training part, standardised anew."""
    x, y = (torch.cat(pair) for pair in zip(train_part, validation, strict=True))
    mean, std = x.mean(0), x.std(0, correction=0)
    std[std == 0] = 1.0
    y_mean, y_std = y.mean(), y.std(correction=0)
    return _Parts((x - mean) / std, (y - y_mean) / y_std, (test[0] - mean) / std, (test[1] - y_mean) / y_std,
                  unit * float(y_std))  # fmt: skip


def _fit(
    parts: list[_Parts], rows: list[str], rates: Tensor, hidden: int, steps: int, masks: int, device: str
) -> Float[Tensor, "masks rows splits judged"]:
    """Outputs for what is judged."""
    stacked = [
        torch.stack([getattr(each, name) for each in parts]).to(device).repeat(len(rows), *[1] * dims)
        for name, dims in (("x", 2), ("y", 1), ("x_judged", 2))
    ]
    generator = torch.Generator(device).manual_seed(steps)
    nets = train(stacked[0], stacked[1], rates, hidden, steps, batch=BATCH, lr=LR, generator=generator)
    outputs = torch.cat([masked_outputs(nets, stacked[2], 10, generator) for _ in range(masks // 10)])
    return outputs.unflatten(1, (len(rows), len(parts)))


def _mixture(outputs: Tensor, rows: list[str], key: str) -> Float[Tensor, "samples splits judged"]:
    """All members' samples of a contestant."""
    return outputs[:, [row for row, each in enumerate(rows) if each == key]].flatten(0, 1)


def _best_noise(samples: Tensor, parts: list[_Parts]) -> tuple[Tensor, Tensor]:
    """For each split the smallest mean NLL over the variances, and which it is of."""
    y = torch.stack([each.y_judged for each in parts]).to(samples.device)
    square = (samples - y).square()
    nll = torch.stack([-_log_mixture(square, float(v)).mean(1) for v in VARIANCES])
    best = nll.argmin(0)
    return nll.gather(0, best[None])[0].cpu(), VARIANCES[best.cpu()]


def _log_mixture(square: Tensor, variance: float) -> Tensor:
    """The log density, by example, of the mixture of Gaussians around the samples."""
    inside = (-0.5 / variance * square).logsumexp(0) - math.log(len(square))
    return inside - 0.5 * math.log(2 * math.pi * variance)


def _test(samples: Float[Tensor, "samples judged"], part: _Parts, variance: float) -> dict[str, float]:
    """In the data's own units."""
    y = part.y_judged.to(samples.device)
    square = (samples - y).square()
    log_likelihood = float(_log_mixture(square, variance).mean()) - math.log(part.unit)
    rmse = float((samples.mean(0) - y).square().mean().sqrt()) * part.unit
    return {"rmse": rmse, "ll": log_likelihood}
