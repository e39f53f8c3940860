"""One setup under one seed, every contestant: the same data, weights and batches for all, one line of results each."""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

import lbdrop
from experiments.networks.residual import DropPath
from experiments.rates.batches import Batches
from experiments.regret.data import Parts, load
from experiments.regret.distribution import Setup
from experiments.regret.networks import build
from lbdrop.dropout import noise_layers
from lbdrop.errors import DropoutError

__all__ = ["CONTESTANTS", "EARLY", "GRID", "Job", "run"]

GRID = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
EARLY, EARLY_SHARE = 0.1, 0.25
"""Early dropout: a rate of .1 in the first quarter of the steps, then none."""
RATE_LR = 0.01
"""The bound's, as in the rates experiment."""
LEARNED: dict[str, Literal["layer", "model"]] = {"bound": "layer", "balanced-layer": "layer", "balanced-model": "model"}
CONTESTANTS = (*(f"fixed-{rate:g}" for rate in GRID), "retrained", "fixed-0.1-retrained", "early", *LEARNED)
"""``retrained`` trains the rate that validation chooses once more, on training and held-out examples together."""


class Job(NamedTuple):
    """All of one setup and seed that is wanted, so that another process can be given it."""

    setup: Setup
    seed: int
    contestants: tuple[str, ...]
    data: Path
    known: Mapping[str, Mapping[str, Any]]
    """Results that are there already, by contestant."""

    def run(self) -> list[dict[str, Any]]:
        """A line for each contestant that was not known."""
        found, lines = dict(self.known), []
        parts = load(self.data, self.setup, self.seed)
        for name in self.contestants:
            if name in found:
                continue
            line = {"setup": self.setup.name, "seed": self.seed, "contestant": name} | _result(
                name, self.setup, parts, self.seed, found
            )
            found[name] = line
            lines.append(line)
        return lines


def _result(name: str, setup: Setup, parts: Parts, seed: int, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    kind, retrained = name, name.endswith("retrained")
    if name == "retrained":
        grid = [f"fixed-{rate:g}" for rate in GRID]
        missing = [each for each in grid if each not in found]
        if missing:
            raise DropoutError(f"retrained: want all of the grid before it, got no {missing[0]}")
        kind = min(grid, key=lambda each: _or_infinite(found[each]["validation"]))
    if retrained:
        train = tuple(torch.cat(pair) for pair in zip(parts.train, parts.validation, strict=True))
        parts = parts._replace(train=train)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            result = run(kind.removesuffix("-retrained"), setup, parts, seed)
        except DropoutError as error:  # a loss that is no number any more
            result = {"validation": None, "test": None, "error": str(error)[:100]}
    notes = sorted({str(each.message)[:100] for each in said if "balanced" in str(each.message)})
    return result | ({"of": kind} if name == "retrained" else {}) | ({"warnings": notes} if notes else {})


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def run(name: str, setup: Setup, parts: Parts, seed: int, rule: Callable[..., Any] | None = None) -> dict[str, Any]:
    """Train one network; its losses on what was held out and on the test, without masks."""
    torch.manual_seed(seed)
    learned = LEARNED.get(name)
    rate = float(name.removeprefix("fixed-")) if name.startswith("fixed-") else EARLY
    model = build(setup, parts.train[0], parts.outputs, rate)
    if learned is not None:
        with torch.random.fork_rng():
            lbdrop.convert(model, per=learned, verbose=False)
    examples = len(parts.train[0])
    batches = Batches(parts.train, setup.batch, torch.Generator().manual_seed(seed))
    steps = setup.epochs * len(batches)
    losses = _losses(setup)
    if learned is None:
        objective: Any = lambda f, *batch: f(model, *batch).mean()  # noqa: E731
    elif name == "bound":
        many = 1.0 if setup.family not in ("causal", "vae") else float(_pieces(setup, parts.train[1]))
        objective = lbdrop.Objective(model, lbdrop.Bound(model, examples, weight=1 / many))
    else:
        held_out = Batches(parts.validation, setup.batch, torch.Generator().manual_seed(seed + 1))
        made = (rule or lbdrop.Balanced)(model, held_out, steps=steps, examples=examples)
        objective = lbdrop.Objective(model, made)
    optimizer, schedule = _optimizer(setup, model, steps, learned is not None)
    dropouts = [m for m in model.modules() if isinstance(m, nn.Dropout | nn.Dropout2d | DropPath)]
    step, began, rates = 0, time.process_time(), []
    model.train()
    for epoch in range(1, setup.epochs + 1):
        for x, y in batches:
            if name == "early" and step == math.ceil(EARLY_SHARE * steps):
                _switch_off(model, dropouts)
            loss = objective(losses, x, y)
            optimizer.zero_grad()
            loss.backward()
            if setup.clip:
                nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], setup.clip)
            optimizer.step()
            schedule.step()
            step += 1
        if learned is not None and epoch in {max(1, round(setup.epochs * share)) for share in (0.1, 0.25, 0.5, 1.0)}:
            rates.append([round(layer.p, 3) for layer in noise_layers(model).values()])
    seconds = time.process_time() - began
    model.eval()
    result: dict[str, Any] = {
        part: _mean_loss(losses, model, pair) for part, pair in (("validation", parts.validation), ("test", parts.test))
    }
    return result | {"seconds": round(seconds, 3)} | ({"rates": rates} if rates else {})


def _switch_off(model: nn.Module, dropouts: Sequence[Any]) -> None:
    for dropout in dropouts:
        dropout.p = 0.0
    for module in model.modules():
        if isinstance(module, nn.LSTM | nn.MultiheadAttention):
            module.dropout = 0.0


def _mean_loss(losses: Callable[..., Tensor], model: nn.Module, pair: tuple[Tensor, Tensor]) -> float | None:
    """``None`` where training has diverged."""
    with torch.no_grad():
        found = torch.cat([losses(model, x, y) for x, y in zip(pair[0].split(500), pair[1].split(500), strict=True)])
    value = float(found.double().mean())
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _losses(setup: Setup) -> Callable[..., Float[Tensor, "batch"]]:
    """Of each example: cross-entropy, the mean of it over characters or words, or the squared error."""
    if setup.data.startswith("uci-"):
        return lambda model, x, y: (model(x)[:, 0] - y) ** 2
    if setup.family == "causal":
        return lambda model, x, y: F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)
    if setup.family == "vae":
        return _word_losses
    return lambda model, x, y: F.cross_entropy(model(x), y, reduction="none")


def _word_losses(model: nn.Module, x: Tensor, y: Tensor) -> Float[Tensor, "batch"]:
    """In training every word predicts all; else every second word predicts those between."""
    if model.training:
        logits, kl = model(x)
        return kl - (logits.log_softmax(-1) * y).sum(-1) / y.sum(-1)
    shown = x * (x.cumsum(-1) % 2)
    hidden = y - shown
    return -(model(shown).log_softmax(-1) * hidden).sum(-1) / hidden.sum(-1).clamp(min=1)


def _pieces(setup: Setup, y: Tensor) -> float:
    """How many observations an example has."""
    return y.shape[1] if setup.family == "causal" else float((y > 0).sum() / len(y))


def _optimizer(setup: Setup, model: nn.Module, steps: int, learned: bool) -> tuple[torch.optim.Optimizer, Any]:
    groups: Any = [{"params": [*model.parameters()], "weight_decay": setup.weight_decay}]
    if learned:
        groups = lbdrop.parameter_groups(model, RATE_LR, weight_decay=setup.weight_decay)
    makers: dict[str, Any] = {
        "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop,
        "sgd": lambda g, lr: torch.optim.SGD(g, lr=lr, momentum=0.9),
    }  # fmt: skip
    optimizer = makers[setup.optimizer](groups, lr=setup.lr)

    def factor(step: int) -> float:
        rising = min(1.0, (step + 1) / (setup.warm_up * steps)) if setup.warm_up else 1.0
        done = step / steps
        falling = {"constant": 1.0, "cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done}[setup.schedule]
        return rising * falling

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
