"""What contestants share: a task's data, the training loop, and networks that several of them start from, trained once."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

import lbdrop
from experiments.rates.batches import Batches
from experiments.uncertainty.tasks import Parts, Task

__all__ = ["SAMPLES", "Bench", "Fitted", "losses", "samples_under_masks"]

SAMPLES = 20
PART = 500


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Float[Tensor, "batch"]:
    return F.cross_entropy(model(x), y, reduction="none")


@dataclass
class Fitted:
    """A contestant's answer, and what it took."""

    probabilities: Callable[[Tensor, int], Float[Tensor, "samples batch classes"]]
    """Of inputs, under so many samples; a deterministic one, and an ensemble, have their own number."""
    seconds: float
    """Of training, with all that was chosen from."""
    copies: float
    """Of the network's weights that a prediction needs."""
    passes: float = SAMPLES
    """Of the network that a prediction takes, with 20 samples."""
    extra: dict[str, Any] | None = None


class Bench:
    """One task under one seed."""

    def __init__(self, task: Task, parts: Parts, seed: int, device: str, epochs: int | None = None):
        self.task, self.seed, self.device = task, seed, device
        self.parts = parts.to(device)
        self.on_cpu = parts if task.small and device != "cpu" else None
        self.epochs = epochs or task.epochs
        self.steps = self.epochs * (len(parts.train[0]) // task.batch)
        self._trained: dict[Any, tuple[nn.Module, float]] = {}

    def network(self, rate: float = 0.0, places: str = "usual", member: int = 0) -> nn.Module:
        """Drawn by the seed and the member: the same weights for every contestant."""
        torch.manual_seed(1_000 * member + self.seed)
        return self.task.network(self.parts, rate, places).to(self.device)

    def batches(self, part: tuple[Tensor, Tensor] | None = None, member: int = 0) -> Batches:
        generator = torch.Generator().manual_seed(1_000 * member + self.seed)
        return Batches(part or self.parts.train, self.task.batch, generator)

    @contextmanager
    def timed(self, seconds: list[float]) -> Iterator[None]:
        began = self._clock()
        yield
        seconds.append(self._clock() - began)

    def _clock(self) -> float:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.process_time()

    def train(
        self,
        model: nn.Module,
        *,
        loss_of: Callable[[Tensor, Tensor], Tensor] | None = None,
        parameters: Any = None,
        member: int = 0,
        each_step: Callable[[int], None] | None = None,
        train: tuple[Tensor, Tensor] | None = None,
    ) -> float:
        """To the end; how many seconds it took. The loss is by default the plain mean, the examples the bench's."""
        loss_of = loss_of or (lambda x, y: losses(model, x, y).mean())
        optimizer = torch.optim.AdamW(parameters or model.parameters(), lr=self.task.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        batches, step, seconds = self.batches(train, member), 0, []
        model.train()
        with self.timed(seconds):
            for _ in range(self.epochs):
                for x, y in batches:
                    if each_step is not None:
                        each_step(step)
                    loss = loss_of(x, y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    schedule.step()
                    step += 1
        model.eval()
        return seconds[0]

    def fixed(self, rate: float, places: str = "usual", member: int = 0) -> tuple[nn.Module, float]:
        """A plain network trained at a rate; asked for again, the same."""
        return self._once((rate, places, member), lambda: self._fixed(rate, places, member))

    def _fixed(self, rate: float, places: str, member: int) -> tuple[nn.Module, float]:
        model = self.network(rate, places, member)
        return model, self.train(model, member=member)

    def learned(
        self, rule: str = "held-out", places: str = "usual", per: Any = "layer", member: int = 0
    ) -> tuple[nn.Module, float]:
        """A converted network whose rates were learned; the weights at the start are those of the plain one."""
        return self._once((rule, places, per, member), lambda: self._learned(rule, places, per, member))

    def _learned(self, rule: str, places: str, per: Any, member: int) -> tuple[nn.Module, float]:
        parts, model = self.on_cpu or self.parts, self.network(0.1, places, member)
        model.to(parts.train[0].device)
        example = parts.train[0][:2] if per == "unit" else None
        lbdrop.convert(model, per=per, example=example, verbose=False)
        if rule == "held-out":
            held_out = self.batches(parts.validation, member)
            objective = lbdrop.Objective(model, lbdrop.Balanced(model, held_out, steps=self.steps))
            parameters = None
        else:
            objective = lbdrop.Objective(model, lbdrop.Bound(model, len(self.parts.train[0])))
            parameters = lbdrop.parameter_groups(model, lr=self.task.lr, rate_lr=10 * self.task.lr)
        loss_of = lambda x, y: objective(losses, x, y)  # noqa: E731
        seconds = self.train(model, loss_of=loss_of, parameters=parameters, member=member, train=parts.train)
        if self.on_cpu is not None:  # in times of a plain run there, as seconds of the other device
            seconds *= self.plain_seconds / self._plain_on_cpu
        return model.to(self.device), seconds

    @cached_property
    def _plain_on_cpu(self) -> float:
        assert self.on_cpu is not None
        model = self.network(0.0).cpu()
        return self.train(model, train=self.on_cpu.train)

    def _once(self, key: Any, make: Callable[[], tuple[nn.Module, float]]) -> tuple[nn.Module, float]:
        if key not in self._trained:
            self._trained[key] = make()
        return self._trained[key]

    @cached_property
    def plain_seconds(self) -> float:
        return self.fixed(0.0)[1]

    def deterministic(self, model: nn.Module) -> Callable[[Tensor, int], Tensor]:
        def probabilities(x: Tensor, samples: int) -> Tensor:
            with torch.no_grad():
                return torch.cat([model(part).softmax(-1) for part in x.split(PART)])[None]

        return probabilities


def samples_under_masks(model: nn.Module, seed: int) -> Callable[[Tensor, int], Tensor]:
    """Of a network with dropout, converted or not: all its noise on, and nothing else."""
    if any(isinstance(m, nn.Dropout | nn.Dropout2d) for m in model.modules()) or not lbdrop_layers(model):
        lbdrop.convert(model, scheme="mc", verbose=False)

    def probabilities(x: Tensor, samples: int) -> Tensor:
        generator = torch.Generator(x.device).manual_seed(seed)
        parts = []
        for part in x.split(PART):
            found = lbdrop.predict(model, part, samples, progress=False, generator=generator)
            assert found.samples is not None
            parts.append(found.samples)
        return torch.cat(parts, 1)

    return probabilities


def lbdrop_layers(model: nn.Module) -> list[nn.Module]:
    from lbdrop.dropout import NoiseLayer

    return [m for m in model.modules() if isinstance(m, NoiseLayer)]
