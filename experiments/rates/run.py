"""One run: one task, one contestant, one seed, one record. Records of a task live in one JSON, written after every run."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lbdrop
from experiments.rates.batches import Batches
from experiments.rates.contestants import RATE_LR, RELEASING, build_network, build_objective
from experiments.rates.record import Contestant
from experiments.rates.tasks import DATA, Pair, Task
from experiments.rival_rules.one_step import OneStep
from experiments.rival_rules.self_tuning import EVERY, parameter_groups
from lbdrop.dropout import NoiseLayer
from lbdrop.errors import DropoutError
from lbdrop.io.records import provenance, read_json, write_json
from lbdrop.rules import unit_costs
from lbdrop.rules.balanced import CONSTANTS

__all__ = ["RESULTS", "Training", "by_earlier_rule", "kept", "read", "run", "settings", "shared", "write"]

RESULTS = Path(__file__).parent / "results"
MASKS = 20
RULES = {"self-tuning": 3, "balanced": 2}
"""Of the rules that are the library's, one more with every change that changes their runs; the first of all do not say so."""
PART = 200
"""How many examples are measured at a time: under all masks, so that activations stay in a cache."""
POINTS = 20
"""How many times rates are noted in the course of a run."""


class Training:
    """A run until it is measured; a seed has the same data, weights and batches for every contestant."""

    def __init__(
        self,
        task: Task,
        contestant: Contestant,
        seed: int,
        *,
        folder: Path = DATA,
        epochs: int | None = None,
        device: torch.device | str = "cpu",
    ):
        if torch.device(device).type == "cuda":
            # TF32, as convolutions have by default: a catalogue's products take long without.
            torch.set_float32_matmul_precision("high")
        data = task.data(folder, seed).to(device)
        if contestant.retrained:
            data = data._replace(train=tuple(torch.cat(pair) for pair in zip(data.train, data.validation, strict=True)))
        torch.manual_seed(seed)
        self.task, self.data = task, data
        self.model = build_network(contestant, task, data, device)
        self.batches = Batches(data.train, task.batch, torch.Generator().manual_seed(seed))
        self.epochs = epochs or task.epochs
        steps = self.epochs * len(self.batches)
        self.objective = build_objective(
            contestant, self.model, task, data, steps, torch.Generator().manual_seed(seed + 1)
        )
        self.optimizer, self.schedule = _optimizer(self.model, task, steps)
        if isinstance(self.objective, OneStep):
            self.objective.follow(self.optimizer)
        self.history = [{"epoch": 0, "rates": _means(self.model)}]
        self.seconds = {"train": 0.0, "cpu": 0.0}

    def __iter__(self) -> Iterator[int]:
        """Train, and stop after every epoch; time that others take meanwhile is not counted."""
        every = max(1, math.ceil(self.epochs / POINTS))
        self.model.train()
        for epoch in range(1, self.epochs + 1):
            wall, cpu = time.perf_counter(), time.process_time()
            for batch in self.batches:
                loss = self.objective(self.task.losses, *batch)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.schedule.step()
            if epoch % every == 0 or epoch == self.epochs:
                self.history.append({"epoch": epoch, "rates": _means(self.model)})
            self.seconds["train"] += time.perf_counter() - wall
            self.seconds["cpu"] += time.process_time() - cpu
            yield epoch


def run(
    task: Task,
    contestant: Contestant,
    seed: int,
    *,
    folder: Path = DATA,
    epochs: int | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Train one network and measure it."""
    training = Training(task, contestant, seed, folder=folder, epochs=epochs, device=device)
    for _ in training:
        pass
    model, data, objective, epochs = training.model, training.data, training.objective, training.epochs
    model.eval()
    found = {part: _measures(task, model, pair, data.unit, seed)
             for part, pair in (("validation", data.validation), ("test", data.test))}  # fmt: skip
    return {
        "task": task.name,
        "contestant": contestant.name,
        "label": contestant.label,
        "seed": seed,
        "settings": settings(task, contestant, epochs),
        "objective": repr(objective) if contestant.rule != "plain" else "the loss under one mask",
        "examples": {"train": len(data.train[0]), "validation": len(data.validation[0]), "test": len(data.test[0])},
        **found,
        "rates": _rates(model),
        "history": training.history,
        "seconds": training.seconds,
        "provenance": provenance(device),
    }


def shared(record: dict[str, Any], task: Task, contestant: Contestant, epochs: int | None = None) -> dict[str, Any]:
    """The record of a contestant whose run is another's, by its own name."""
    own = {"contestant": contestant.name, "label": contestant.label, "settings": settings(task, contestant, epochs)}
    return record | own


def settings(task: Task, contestant: Contestant, epochs: int | None = None) -> dict[str, Any]:
    """All that decides a run's numbers beside its seed and the code."""
    budget = {"epochs": epochs or task.epochs, "batch": task.batch, "lr": task.lr, "schedule": "cosine to 0"}
    budget |= {"warm_up": task.warm_up} if task.warm_up else {}
    shared = contestant.rule == "kl" and task.of.many
    prior: dict[str, Any] = {"prior": "shared by the observations of an example"} if shared else {}
    own = {name: value for name, value in asdict(contestant).items() if name != "retrained" or value}
    return own | budget | prior | {"rate_lr": RATE_LR} | _of_rule(contestant.rule, contestant.per)


def _of_rule(name: str, per: str) -> dict[str, Any]:
    """The rule's own constants, so that runs under other defaults do not count as its runs."""
    if name not in RULES:
        return {}
    parameters = signature(RELEASING[name]).parameters
    defaults = {k: parameters[k].default for k in ("plain", "share", "spread") if k in parameters}
    c = CONSTANTS
    constants = {"kappa": c.cost_share, "gamma": c.cost_power, "first": c.start, "early": c.warm_up, "most": c.max_rate,
                 "off": c.off_below_rate}  # fmt: skip
    if per == "unit":
        constants |= {"unit_gamma": unit_costs.COST_POWER, "unit_cheapest": unit_costs.MIN_SHARE}
    return defaults | {"every": EVERY, "version": RULES[name]} | (constants if name == "balanced" else {})


def by_earlier_rule(record: Mapping[str, Any]) -> bool:
    """Whether rates were learned by an earlier version of a rule: the run stands until it is made again."""
    found = record["settings"]
    return any(found.get(name) != value for name, value in _of_rule(found["rule"], found["per"]).items())


def _optimizer(model: nn.Module, task: Task, steps: int) -> tuple[torch.optim.Adam, Any]:
    groups: Any = (
        parameter_groups(model, RATE_LR, lr=task.lr) if _layers(model) else [{"params": [*model.parameters()]}]
    )
    optimizer = torch.optim.Adam(groups, lr=task.lr)
    schedules, rising = torch.optim.lr_scheduler, round(task.warm_up * steps)
    # Rates slow down with the weights, as they do for anyone who puts a scheduler on the optimiser.
    falling = schedules.CosineAnnealingLR(optimizer, steps - rising)
    if not rising:
        return optimizer, falling
    first = schedules.LinearLR(optimizer, 1 / (rising + 1), total_iters=rising)
    return optimizer, schedules.SequentialLR(optimizer, [first, falling], [rising])


def _measures(task: Task, model: nn.Module, pair: Pair, unit: float, seed: int) -> dict[str, dict[str, float]]:
    """Without masks, and with 20 of them; without dropout both are the same."""
    parts: dict[str, list[Tensor]] = {"deterministic": [], "masks": []}
    generator = torch.Generator(pair[0].device).manual_seed(seed)
    for x in pair[0].split(PART):
        with torch.no_grad():
            outputs = model(x)
        once = outputs if task.of.predicts == "regression" else outputs.softmax(-1)
        parts["deterministic"].append(once[None])
        if _layers(model):
            predicted = lbdrop.predict(
                model, x, MASKS, kind=task.of.predicts, progress=False, generator=generator, **_classes(task)
            )
            assert predicted.samples is not None
            # Of classes only the mean counts; a regression's samples are a mixture.
            parts["masks"].append(predicted.samples if task.of.predicts == "regression" else predicted.mean[None])
    parts["masks"] = parts["masks"] or parts["deterministic"]
    found = {how: task.of.measures(torch.cat(each, 1), pair[1], model, unit) for how, each in parts.items()}
    if not all(math.isfinite(value) for each in found.values() for value in each.values()):
        raise DropoutError(
            f"{task.name}: want finite measures, got {found}; the run has diverged, lower its learning rate"
        )
    return found


def _classes(task: Task) -> dict[str, Any]:
    """Where classes are in the outputs; regression has none."""
    return {} if task.of.predicts == "regression" else {"class_dim": task.of.class_dim}


def _layers(model: nn.Module) -> dict[str, NoiseLayer]:
    return {name: m for name, m in model.named_modules() if isinstance(m, NoiseLayer)}


def _means(model: nn.Module) -> dict[str, float]:
    return {name: round(layer.p, 4) for name, layer in _layers(model).items()}


def _rates(model: nn.Module) -> dict[str, dict[str, float]]:
    return {
        name: {"mean": layer.p, "min": float(layer.rate.min()), "max": float(layer.rate.max())}
        for name, layer in _layers(model).items()
    }


# ------------------------------------------------------------------------------------------------------------- records


def read(path: Path) -> list[dict[str, Any]]:
    """The records of one task; none if there is no file yet."""
    if not path.exists():
        return []
    try:
        records = read_json(path)["records"]
        for record in records:
            _ = record["contestant"], record["seed"], record["settings"]  # what identifies a run
        return records
    except (ValueError, KeyError, TypeError) as error:
        raise DropoutError(
            f"{path}: want the records of a task, got {error}; move the file away to start anew"
        ) from error


def kept(
    records: Sequence[dict[str, Any]], task: Task, contestant: Contestant, seed: int, epochs: int | None = None
) -> bool:
    """Whether this run is there already, with the settings that it would have now."""
    wanted = settings(task, contestant, epochs)
    return any(
        record["contestant"] == contestant.name and record["seed"] == seed and record["settings"] == wanted
        for record in records
    )


def write(path: Path, task: Task, record: dict[str, Any]) -> None:
    """Add a record to its task's file, in place of an older one of the same run; the file is replaced as a whole."""
    this = record["contestant"], record["seed"]
    others = [each for each in read(path) if (each["contestant"], each["seed"]) != this]
    records = sorted([*others, record], key=lambda each: (each["seed"], each["contestant"]))
    write_json(path, {"experiment": "rates", "task": task.name, "kind": task.kind, "records": records})
