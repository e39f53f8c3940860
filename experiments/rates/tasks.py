"""The tasks: data, a plain network with ``nn.Dropout`` where dropouts go, and one budget that every contestant gets.

A network is written as anyone would write it, and converted by the harness; it knows nothing of learned rates. Validation
examples serve the grid, which is chosen on them, and the rules that follow held-out data: nobody sees more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from experiments.rates import features, images, recommendation, text, uci, words
from experiments.rates.task_kinds import KINDS, TaskKind
from lbdrop.errors import DropoutError

__all__ = ["SLOW", "SMALL", "TASKS", "Data", "Pair", "Task", "chosen"]

Pair = tuple[Tensor, Tensor]
DATA = Path("data")


class Data(NamedTuple):
    """Inputs and targets of three parts that share no example."""

    train: Pair
    validation: Pair
    test: Pair
    unit: float = 1.0
    """What one standardised target is worth in the data's own units; 1 for classes."""

    def to(self, device: torch.device | str) -> "Data":
        parts = ((x.to(device), y.to(device)) for x, y in (self.train, self.validation, self.test))
        return Data(*parts, unit=self.unit)


@dataclass(frozen=True)
class Task:
    """One row of the table. Adam, cosine to zero over all parameter groups, last epoch, no weight decay."""

    name: str
    kind: Literal["classification", "regression", "language", "ranking"]
    load: Callable[[Path, int], tuple[Pair, Pair, Pair, float]]
    network: Callable[[Data, float], nn.Module]
    """A plain network for these data, every dropout of it at this rate."""
    epochs: int
    batch: int
    lr: float = 1e-3
    starts: bool = False
    """Whether rules that follow held-out data also run from rates far below and far above."""
    warm_up: float = 0.0
    """The share of the steps in which the learning rate rises from 0 before it falls."""

    def data(self, folder: Path, seed: int) -> Data:
        return Data(*self.load(folder, seed))

    @property
    def of(self) -> TaskKind:
        """Its loss and its measures."""
        return KINDS[self.kind]

    def losses(self, model: nn.Module, x: Tensor, y: Tensor) -> Float[Tensor, "batch"]:
        """Of each example, see :class:`~experiments.rates.task_kinds.TaskKind`."""
        return self.of.losses(model, x, y)


def _fashion(size: int, kind: str) -> Task:
    # About 3,000 steps whatever the size: long enough that without dropout each of them over-fits.
    epochs = {1_000: 300, 3_000: 100, 10_000: 30, 60_000: 12}[size]
    network = images.mlp if kind == "mlp" else images.cnn
    return Task(
        f"fashion-{size}-{kind}", "classification", partial(images.fashion, size),
        lambda data, rate: network(data.train[0], rate), epochs, batch=100, starts=kind == "mlp" and size == 3_000,
    )  # fmt: skip


def _regression(name: str) -> Task:
    steps, batch = (8_000, 256) if name in uci.LARGE else (3_000, 32)
    return Task(
        f"uci-{name}", "regression", partial(uci.load, name),
        lambda data, rate: uci.Regressor(data.train[0].shape[1], uci.hidden(name), rate),
        max(10, steps * batch // uci.SIZES[name]), batch,
        lr=1e-2,  # the log variance of the noise has far to go, and the network is small
    )  # fmt: skip


def _likes(data_name: str, encoder: Literal["paper", "dense"]) -> Task:
    small = data_name == "ml-1m"
    return Task(
        f"{data_name}-{encoder}", "ranking", partial(recommendation.load, data_name),
        lambda data, rate: recommendation.LikesVAE(data.train[1], rate, encoder),
        epochs=50, batch=100 if small else 500, lr=1e-3 if encoder == "paper" else 5e-4, starts=small,
    )  # fmt: skip


def _topics(name: str, epochs: int, network: Callable[[float], nn.Module] = words.Bert, lr: float = 1e-3) -> Task:
    return Task(
        name, "classification", words.load, lambda data, rate: network(rate), epochs, batch=20, lr=lr, warm_up=0.1
    )


def _digits(name: str, network: Callable[[Tensor, float], nn.Module], lr: float) -> Task:
    return Task(
        name,
        "classification",
        images.digits,
        lambda data, rate: network(data.train[0], rate),
        epochs=40,
        batch=50,
        lr=lr,
    )


SLOW: dict[str, Task] = {
    task.name: task
    for task in (
        *(_topics(f"bert-{epochs}", epochs) for epochs in (15, 30, 60)),
        *(_topics(f"bert-tuned-{epochs}", epochs, words.pretrained, lr=2e-3) for epochs in (1, 3)),
        _topics("lstm", 40, words.Recurrent, lr=2e-3),
        _digits("vit-digits", images.vit, 1e-3),
        _digits("residual-digits", images.residual, 2e-3),
        Task(
            "vit-fashion-3000", "classification", partial(images.fashion, 3_000),
            lambda data, rate: images.vit(data.train[0], rate), epochs=30, batch=100,
        ),
        Task(
            "text-warm-up", "language", text.load, lambda data, rate: text.Characters(text.vocabulary(), rate), epochs=15,
            batch=32, lr=2e-3, warm_up=0.1,
        ),
    )
}  # fmt: skip
"""Networks that learn slowly, and short runs."""
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "digits", "classification", images.digits, lambda data, rate: images.mlp(data.train[0], rate),
            epochs=100, batch=50, starts=True,
        ),
        *(_fashion(size, kind) for kind in ("mlp", "cnn") for size in (1_000, 3_000, 10_000, 60_000)),
        *(_regression(name) for name in uci.SIZES),
        Task(
            "text", "language", text.load, lambda data, rate: text.Characters(text.vocabulary(), rate), epochs=30, batch=32
        ),
        Task(
            "cifar10-head", "classification", features.load, lambda data, rate: features.head(rate),
            epochs=10, batch=100, lr=1e-4,
        ),
        *(_likes(name, encoder) for name in ("ml-1m", "netflix-sample") for encoder in ("paper", "dense")),
        *SLOW.values(),
    )
}  # fmt: skip
SMALL = ("digits", "fashion-1000-mlp", "fashion-3000-mlp", "uci-yacht", "uci-boston", "uci-energy", "uci-concrete")


def chosen(name: str) -> list[Task]:
    """A task, several with commas, or ``all-small``."""
    names: Sequence[str] = SMALL if name == "all-small" else [each.strip() for each in name.split(",")]
    unknown = [each for each in names if each not in TASKS]
    if unknown:
        raise DropoutError(f"task: want all-small or among {', '.join(TASKS)}, got {unknown}")
    return [TASKS[each] for each in names]
