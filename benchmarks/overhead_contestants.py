"""What benchmarks.overhead times: steps and predictions of one network, in turns, each as a ratio to the first of its group."""

import importlib.util
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lbdrop
from benchmarks.overhead_tasks import TASKS, Task
from benchmarks.timing import peak_bytes

__all__ = ["LIMITS", "measure"]

LIMITS = {"bound": 1.30, "held-out rule": 1.15, "held-out rule, MLP, 2 × 50": 1.5, "predict / loop": 1.0}
"""What is claimed: time at most so many plain steps, or loops."""
RUN = 1000
"""So many steps has the run that steps are weighed as those of; two fifths until rates are frozen, of which a fifth warm-up."""
MEASURING = 0.4 * (0.8 + 0.2 * 2)
"""How many measurements there are to each of a run's steps, beside a measurement in every eighth step."""
EVERY = 8

Contestant = Callable[[], object]
Numbers = dict[str, dict[str, float]]


def measure(name: str, device: str, samples: int, rounds: int, compiled: bool) -> tuple[str, dict[str, Any]]:
    """All numbers of one network."""
    torch.set_num_threads(1)
    task, place = TASKS[name], torch.device(device)
    plan, training = steps(task, place, rounds, lambda model: model)
    found: dict[str, Any] = {"plan": plan, "training": training, "compiled": {}}
    if compiled:
        _, found["compiled"] = steps(task, place, rounds, torch.compile)  # pyright: ignore[reportArgumentType]
    found["prediction"], found["missing"] = prediction(task, place, samples, rounds)
    return name, found


# ----------------------------------------------------------------------------------------------------------------- steps


class Steps:
    """Optimiser steps of one network under one rule, or of the network as it was."""

    def __init__(self, task: Task, place: torch.device, wrap: Callable[[nn.Module], Any], **settings: Any):
        torch.manual_seed(0)
        self.task, self.model = task, task.model().to(place).train()
        self.batch = tuple(each.to(place) for each in task.batch())
        self.objective: lbdrop.Objective | None = None
        if settings:
            lbdrop.convert(self.model, verbose=False, example=self.batch[0] if task.in_functions else None)
        self.called = wrap(self.model)
        if settings:
            self.objective = lbdrop.Objective(self.called, **settings)
        by_gradient = bool(settings) and "held_out" not in settings
        groups = lbdrop.parameter_groups(self.model) if by_gradient else self.model.parameters()
        self.optimizer = torch.optim.Adam(groups, lr=1e-5)

    def step(self) -> None:
        if self.objective is None:
            loss = self.task.losses(self.called, *self.batch).mean()
        else:
            loss = self.objective(self.task.losses, *self.batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def learning(self, learns: bool) -> Contestant:
        """Steps of the bound in which rates learn, or of the others."""

        def run() -> None:
            assert self.objective is not None
            self.objective.runner.toss = lambda: 0.0 if learns else 1.0
            self.step()

        return run

    def held_out(self, frozen: bool) -> Contestant:
        """As many steps of the held-out rule as there are to a measurement."""
        assert self.objective is not None
        state = self.objective.state_dict()
        state["state"] |= {"step": RUN // 2 if frozen else 2 * RUN // 10, "frozen": frozen}

        def run() -> None:
            assert self.objective is not None
            self.objective.load_state_dict(state)
            for _ in range(EVERY):
                self.step()

        return run


def steps(task: Task, place: torch.device, rounds: int, wrap: Callable[[nn.Module], Any]) -> tuple[str, Numbers]:
    """Time and memory of a training step, beside the plain one."""
    plain = Steps(task, place, wrap)
    bound, arm = (Steps(task, place, wrap, examples=50_000, **more) for more in ({}, {"estimator": "arm"}))
    held_out = [tuple(each.to(place) for each in task.batch()) for _ in range(4)]
    balanced = Steps(task, place, wrap, held_out=held_out, steps=RUN)
    for each in (plain, bound, arm, balanced):
        each.step()
    assert bound.objective is not None
    plan = bound.objective.runner.plan
    assert plan is not None
    share = plan.share
    found = in_turn(
        {
            "plain": plain.step,
            "weights": bound.learning(False),
            "rates": bound.learning(True),
            "measuring": balanced.held_out(False),
            "frozen": balanced.held_out(True),
            "ARM": arm.step,
        },
        rounds,
        place,
    )
    base = found["plain"]

    def numbers(seconds: float, of: str) -> dict[str, float]:
        memory = {"peak_bytes": found[of]["bytes"], "memory_ratio": found[of]["bytes"] / max(1.0, base["bytes"])}
        return {"seconds": seconds, "time_ratio": seconds / base["seconds"], **memory}

    seconds = {
        name: each["seconds"] / (EVERY if name in ("measuring", "frozen") else 1) for name, each in found.items()
    }
    measurement = seconds["measuring"] - seconds["frozen"]
    return f"{plan.estimator.name}, share {share:.3f}", {
        "nn.Dropout": numbers(seconds["plain"], "plain"),
        "bound": numbers((1 - share) * seconds["weights"] + share * seconds["rates"], "rates"),
        "bound, a step of weights alone": numbers(seconds["weights"], "weights"),
        "bound, a step that learns": numbers(seconds["rates"], "rates"),
        "held-out rule": numbers(seconds["frozen"] + MEASURING * measurement, "measuring"),
        "held-out rule, while it measures": numbers(seconds["measuring"], "measuring"),
        "held-out rule, frozen": numbers(seconds["frozen"], "frozen"),
        "ARM": numbers(seconds["ARM"], "ARM"),
    }


# ------------------------------------------------------------------------------------------------------------ prediction


def prediction(task: Task, place: torch.device, samples: int, rounds: int) -> tuple[Numbers, dict[str, str]]:
    """One deterministic pass first, then many masks by us, by a loop, and by other libraries."""
    torch.manual_seed(0)
    plain, learned = task.model().to(place).eval(), task.model().to(place).eval()
    x = task.batch()[0].to(place)
    lbdrop.convert(learned, verbose=False, example=x if task.in_functions else None)

    def forward(model: nn.Module, x: Any) -> Tensor:
        output = model(x)
        output = getattr(output, "logits", output)
        output = output[0] if isinstance(output, tuple) else output
        return output.transpose(1, 2) if output.dim() == 3 else output

    def loop() -> Tensor:
        with lbdrop.masks.drawn(learned):
            return torch.stack([forward(learned, x) for _ in range(samples)])

    kind: Any = task.kind
    contestants: dict[str, Contestant] = {
        "one pass": lambda: forward(plain, x),
        "predict": lambda: lbdrop.predict(learned, x, samples=samples, kind=kind, forward=forward),
        "loop": loop,
    }
    missing = {"laplace-torch": "it samples weights around a trained model: it has no masks, so there is no same task"}
    for name, peer in {"torch-uncertainty": torch_uncertainty, "baal": baal}.items():
        try:
            contestants[name] = peer(task.model().to(place).eval(), x, samples)
            contestants[name]()
        except Exception as error:  # what others refuse, or cannot be imported without
            contestants.pop(name, None)
            missing[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    with torch.no_grad():
        found = in_turn(contestants, rounds, place)
    base = found["one pass"]
    return {
        name: {
            "seconds": each["seconds"],
            "time_ratio": each["seconds"] / base["seconds"],
            "peak_bytes": each["bytes"],
            "memory_ratio": each["bytes"] / max(1.0, base["bytes"]),
        }
        for name, each in found.items()
    }, missing


def torch_uncertainty(network: nn.Module, x: Tensor, samples: int) -> Contestant:
    # Its MC dropout is one file; the package around it imports torchvision, which the CPU machine does not have.
    found = importlib.util.find_spec("torch_uncertainty")
    if found is None or found.origin is None:
        raise ImportError("torch_uncertainty is not installed")
    file = Path(found.origin).parent / "methods" / "mc_dropout.py"
    spec = importlib.util.spec_from_file_location("peer_mc_dropout", file)
    if spec is None or spec.loader is None or not file.exists():
        raise ImportError(f"no {file.name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wrapped = module._MCDropout(network, samples, last_layer=False, on_batch=False).eval()
    return lambda: wrapped(x)


def baal(network: nn.Module, x: Tensor, samples: int) -> Contestant:
    from baal.bayesian.dropout import patch_module  # pyright: ignore[reportMissingImports]
    from baal.modelwrapper import ModelWrapper, TrainingArgs  # pyright: ignore[reportMissingImports]

    arguments = TrainingArgs(use_cuda=x.is_cuda, replicate_in_memory=False)
    wrapper = ModelWrapper(patch_module(network, inplace=True), arguments)
    return lambda: wrapper.predict_on_batch(x, iterations=samples)


# ----------------------------------------------------------------------------------------------------------------- turns


def in_turn(contestants: Mapping[str, Contestant], rounds: int, place: torch.device) -> Numbers:
    """Of each the least seconds of a call, and the most bytes that one call holds at once."""
    found = {name: {"seconds": math.inf, "bytes": 0.0} for name in contestants}
    for name, run in contestants.items():
        run()  # engines are chosen, graphs compiled
        run()
        found[name]["bytes"] = float(peak_bytes(run, place))
    for _ in range(rounds):
        for name, run in contestants.items():
            taken, calls = 0.0, 0
            while taken < 0.02 and calls < 50:  # a clock is coarse, and a step may be short
                taken, calls = taken + seconds_of(run, place), calls + 1
            found[name]["seconds"] = min(found[name]["seconds"], taken / calls)
    return found


def seconds_of(run: Contestant, place: torch.device) -> float:
    if place.type == "cuda":
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    run()
    return time.process_time() - start
