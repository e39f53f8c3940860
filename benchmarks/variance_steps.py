"""What benchmarks.variance draws: steps of each estimator, in turns, on a trained network whose weights stay."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from sklearn.datasets import load_digits
from torch import Tensor, nn

import experiments.estimators  # noqa: F401 — they register themselves
import lbdrop
from lbdrop.dropout import Scale
from lbdrop.estimators import REGISTERED

__all__ = ["Batch", "Digits", "Gradients", "Settings", "Stepper", "load", "network", "take_turns", "trained"]


@dataclass(frozen=True)
class Settings:
    """Everything that decides the numbers; the defaults are the published run."""

    keeps: tuple[float, ...] = (0.3, 0.5, 0.8, 0.95)
    scales: tuple[Scale, ...] = ("none", "inverted")
    estimators: tuple[str, ...] = (
        "arm", "disarm", "rloo-2", "rloo-4", "arms-4", "double-cv", "double-cv-4", "double-cv-8",
        *REGISTERED,
    )  # fmt: skip
    seeds: tuple[int, ...] = (0, 1, 2)
    draws: int = 32
    warm_up: int = 2
    hidden: int = 512
    epochs: int = 20
    lr: float = 1e-3
    train: int = 1437
    batch: int = 64
    batches: int = 22
    threads: int = 1

    @classmethod
    def quick(cls) -> "Settings":
        """A run of seconds that shows the way, not the result."""
        return cls(seeds=(0,), draws=4, warm_up=1, epochs=3, batches=3)


@dataclass(frozen=True)
class Digits:
    """scikit-learn's 1,797 digits, shuffled with the run's seed."""

    x: Float[Tensor, "train 64"]
    y: Int[Tensor, "train"]
    test_x: Float[Tensor, "test 64"]
    test_y: Int[Tensor, "test"]


def load(settings: Settings, generator: torch.Generator) -> Digits:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels).long()
    order = torch.randperm(len(y), generator=generator)
    seen, unseen = order[: settings.train], order[settings.train :]
    return Digits(x[seen], y[seen], x[unseen], y[unseen])


def network(settings: Settings, keep: float, scale: Scale) -> nn.Sequential:
    wide, dropout = settings.hidden, partial(lbdrop.LearnableDropout, settings.hidden, 1 - keep, scale=scale)
    return nn.Sequential(
        nn.Linear(64, wide), nn.ReLU(), dropout(), nn.Linear(wide, wide), nn.ReLU(), dropout(), nn.Linear(wide, 10)
    )


def trained(settings: Settings, keep: float, scale: Scale, data: Digits, generator: torch.Generator) -> nn.Sequential:
    """A network whose weights have learned under dropout at this keep rate; the rates themselves stay."""
    model = network(settings, keep, scale)
    weights = [parameter for layer in model if isinstance(layer, nn.Linear) for parameter in layer.parameters()]
    optimiser = torch.optim.Adam(weights, lr=settings.lr)
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(data.y), generator=generator).split(settings.batch):
            optimiser.zero_grad()
            F.cross_entropy(model(data.x[rows]), data.y[rows]).backward()
            optimiser.step()
    return model


# -------------------------------------------------------------------------------------------------------------- drawing


Batch = tuple[Float[Tensor, "batch 64"], Int[Tensor, "batch"]]


class Stepper:
    """Full training steps of one estimator, of which the weights take no notice."""

    def __init__(self, model: nn.Module, examples: int, estimator: str, seed: int):
        self.model = model
        self.objective = lbdrop.Objective(
            model,
            lbdrop.Bound(model, examples, weight=0.0),
            estimator=estimator,
            generator=torch.Generator().manual_seed(seed),
        )
        self.seconds: list[float] = []

    def step(self, batch: Batch) -> Float[Tensor, "logits"]:
        x, y = batch
        self.model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        self.objective(lambda model: F.cross_entropy(model(x), y, reduction="none")).backward()
        self.seconds.append(time.perf_counter() - start)
        logits = [layer.logit for layer in self.model.modules() if isinstance(layer, lbdrop.LearnableDropout)]
        return torch.cat([logit.grad for logit in logits if logit.grad is not None]).double()


Gradients = dict[str, Float[Tensor, "batches draws logits"]]


def take_turns(
    steppers: Mapping[str, Stepper], batches: Sequence[Batch], draws: int, turns: random.Random
) -> Gradients:
    """Every estimator's gradients on every batch; who is first changes from round to round."""
    names = list(steppers)
    gradients: dict[str, list[list[Tensor]]] = {name: [[] for _ in batches] for name in names}
    for stepper in steppers.values():
        stepper.seconds = []
    for _, (index, batch) in product(range(draws), enumerate(batches)):
        for name in turns.sample(names, len(names)):
            gradients[name][index].append(steppers[name].step(batch))
    return {name: torch.stack([torch.stack(each) for each in found]) for name, found in gradients.items()}
