"""One model of the zoo: what it draws, what of that is learned in two lines, and whether everything else stays as it was.

The ground truth is counted below autograd, by the operations that move a random state, and not by the code under test.
"""

import copy
import io
import pickle
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lbdrop
from benchmarks.zoo.models import Made, main_output, settle
from lbdrop.dropout import learned_layers
from lbdrop.sites.bake import copied

__all__ = ["examine"]

TOLERANCE = 1e-5
ASKED = ("eval_equal", "nothing_random", "step", "held_out", "predict", "bake", "state", "copies")
"""Of each model, in two lines with the defaults."""
SAMPLES = 4
TURNS = 2
"""Steps that are timed of each contestant, in turn."""


class RandomOperations(TorchDispatchMode):
    """Counts the operations that move the random state of the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        before = torch.get_rng_state() if seeded else None
        output = func(*args, **(kwargs or {}))
        if before is not None and not torch.equal(before, torch.get_rng_state()):
            self.counts[str(func.overloadpacket).removeprefix("aten.")] += 1
        return output


def draws(made: Made, model: nn.Module, seeds: int = 2) -> Counter[str]:
    """The draws of a training pass: of several, the most, since a layer may be skipped by chance."""
    found: list[Counter[str]] = []
    before = copy.deepcopy(model.state_dict())
    for seed in range(seeds):
        torch.manual_seed(seed)
        with torch.no_grad(), RandomOperations() as operations:
            made.call(model.train())
        found.append(operations.counts)
    model.load_state_dict(before)
    return max(found, key=Counter.total)


def outputs(made: Made, model: nn.Module) -> Tensor:
    with torch.no_grad():
        return main_output(made.call(model.eval()), made.examples)


def varies(made: Made, model: nn.Module) -> bool:
    """Whether the noise of training reaches the outputs: a norm over one unit, for one, takes it away."""
    model, found = copied(model).train(), []
    for seed in range(SAMPLES):
        torch.manual_seed(seed)
        with torch.no_grad():
            found.append(main_output(made.call(model), made.examples).nan_to_num(0.0))
    return any(not torch.equal(found[0], each) for each in found[1:])


def losses(made: Made, target: Tensor) -> Callable[[nn.Module], Tensor]:
    """A loss for each example: the distance to fixed targets."""
    return lambda model: (main_output(made.call(model), made.examples) - target).square().flatten(1).mean(1)


def examine(make: Callable[[], Made]) -> dict[str, Any]:
    """The record of one model."""
    made = make()
    plain = made.model
    settle(made)
    record: dict[str, Any] = {
        "class": type(plain).__name__,
        "parameters": sum(p.numel() for p in plain.parameters()),
        "inputs": [*made.inputs] if isinstance(made.inputs, dict) else len(made.inputs),
    }
    found = draws(made, plain)
    record |= {"draws": found.total(), "operations": dict(found)}
    before = outputs(made, plain)
    record["eval_random"] = not torch.equal(before, outputs(made, plain))
    record["varies"] = varies(made, plain)
    if not found:
        return record | {"verdict": "draws nothing"}
    model, problem = converted(made, record)
    if model is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with suppress(Exception):
                model = lbdrop.convert(copy.deepcopy(plain), example=made.inputs, unreached="warn", verbose=False)
        record |= {"verdict": "refused", "reason": problem}
        if model is None:
            return record | {"left": found.total(), "sites": 0}
        _learned(made, model, record, before, "warn")
        return record
    _learned(made, model, record, before, "error")
    wrong = [key for key in ASKED if not record.get(key)]
    return record | {"verdict": "right" if not wrong else "wrong", "wrong": wrong}


def converted(made: Made, record: dict[str, Any]) -> tuple[nn.Module | None, str]:
    """The model converted by the defaults: without an example where that does, else with one."""
    problem = ""
    for example in (None, made.inputs):
        model = copy.deepcopy(made.model).train()
        target = torch.zeros(())
        started = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = lbdrop.convert(model, example=example, verbose=False)
                seconds = time.process_time() - started
                # Dropout that only a pass shows is refused in the first step.
                state = copy.deepcopy(model.state_dict())
                lbdrop.Objective(model, examples=9)(losses(made, target))
                model.load_state_dict(state)
                with lbdrop.masks.deterministic(model):
                    if example is None and draws(made, model):  # random numbers that only an example brings to light
                        continue
            record |= {"needs_example": example is not None, "convert_seconds": round(seconds, 3)}
            return model, ""
        except lbdrop.DropoutError as error:
            problem = str(error)
        except Exception as error:
            problem = f"raw {type(error).__name__}: {error}"
    record["raw_error"] = problem.startswith("raw ")
    return None, problem[:500]


def _learned(made: Made, model: nn.Module, record: dict[str, Any], before: Tensor, unreached: str) -> None:
    """Everything that is asked of a converted model, each part on its own."""
    layers = learned_layers(model)
    with lbdrop.masks.deterministic(model):
        left = draws(made, model)
    record |= {"sites": len(layers), "left": left.total(), "left_operations": dict(left), "nothing_random": not left}
    record["eval_equal"] = _same(outputs(made, model), before)
    torch.manual_seed(0)
    target = torch.randn_like(before)
    loss = losses(made, target)
    checks: dict[str, Callable[[], Any]] = {
        "step": lambda: _step(made, model, loss, layers, record, unreached),
        "held_out": lambda: _held_out(made, model, target, unreached),
        "predict": lambda: _predict(made, model, unreached) or not record["varies"],
        "bake": lambda: _same(outputs(made, lbdrop.bake(model)), outputs(made, model)),
        "state": lambda: _state(made, model, made.inputs if record.get("needs_example", True) else None, unreached),
        "copies": lambda: _copies(made, model),
        "cost": lambda: _cost(made, model, loss, unreached),
    }
    for name, check in checks.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                record[name] = check()
        except Exception as error:
            record[name] = None if name == "cost" else False
            record.setdefault("errors", {})[name] = f"{type(error).__name__}: {error}"[:300]


def _same(a: Tensor, b: Tensor) -> bool:
    finite = b.double().nan_to_num(0.0, posinf=0.0, neginf=0.0)
    return torch.allclose(
        a.double(), b.double(), rtol=0, atol=TOLERANCE * float(finite.abs().max()) + 1e-12, equal_nan=True
    )


def _step(made: Made, model: nn.Module, loss: Any, layers: Any, record: dict[str, Any], unreached: str) -> bool:
    model.train()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = lbdrop.Objective(model, examples=9, unreached=unreached)(loss)
        result.backward()
    record["coupled"] = any("depends on the masks of others" in str(each.message) for each in told)
    gradients = [layer.logit.grad for layer in layers.values()]
    record["rates_with_gradient"] = sum(g is not None and bool(g.isfinite().all()) and bool(g.any()) for g in gradients)
    model.zero_grad()
    return bool(torch.isfinite(result)) and record["rates_with_gradient"] > 0


def _held_out(made: Made, model: nn.Module, target: Tensor, unreached: str) -> bool:
    model = copied(model).train()  # it may keep results of its last pass, which cannot be copied by deepcopy alone
    batch = (torch.arange(made.examples),)

    def loss(each: nn.Module, _: Tensor) -> Tensor:
        return losses(made, target)(each)

    objective = lbdrop.Objective(model, held_out=[batch], steps=20, examples=9, unreached=unreached)
    for _ in range(2):
        objective(loss, *batch).backward()
    return True


def _predict(made: Made, model: nn.Module, unreached: str) -> bool:
    # One piece, whatever the first axes of its inputs are: a graph is one batch.
    found = lbdrop.predict(
        model.eval(), {"x": torch.zeros(made.examples, 1)}, SAMPLES, kind="regression", unreached=unreached,
        forward=lambda each, _: main_output(made.call(each), made.examples), progress=False,
    )  # fmt: skip
    return bool(found.variance.nan_to_num(0.0).max() > 0)


def _state(made: Made, model: nn.Module, example: Any, unreached: str) -> bool:
    """Another conversion of the same model takes the state, and is the same model then."""
    for layer in learned_layers(model).values():
        layer.logit.data.add_(0.5)
    stored = io.BytesIO()
    torch.save(model.state_dict(), stored)
    stored.seek(0)
    other = lbdrop.convert(copy.deepcopy(made.model), example=example, unreached=unreached, verbose=False)
    other.load_state_dict(torch.load(stored, weights_only=True))
    rates, again = ([layer.p for layer in learned_layers(each).values()] for each in (model, other))
    return rates == again and _same(outputs(made, other), outputs(made, model))


def _copies(made: Made, model: nn.Module) -> bool:
    """Copies draw what the model draws; pickled where the plain model can be."""
    found, copies, made_picklable = [], [model, copied(model)], False
    with suppress(Exception):
        pickle.dumps(made.model)
        made_picklable = True
    if made_picklable:
        copies.append(pickle.loads(pickle.dumps(model)))
    for each in copies:
        torch.manual_seed(5)
        with torch.no_grad(), lbdrop.masks.drawn(each):
            found.append(main_output(made.call(each.eval()), made.examples))
    return all(torch.equal(found[0].nan_to_num(0), each.nan_to_num(0)) for each in found[1:])


def _cost(made: Made, model: nn.Module, loss: Any, unreached: str) -> float | None:
    """CPU time of a step with four masks over that of the plain model."""
    objective = lbdrop.Objective(model.train(), examples=9, unreached=unreached)
    made.model.train()
    steps = {"plain": lambda: loss(made.model).mean(), "learned": lambda: objective(loss)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(TURNS + 1):
        for name, step in steps.items():
            started = time.process_time()
            step().backward()
            seconds[name].append(time.process_time() - started)
    made.model.zero_grad()
    model.zero_grad()
    plain = sum(seconds["plain"][1:])
    return round(sum(seconds["learned"][1:]) / plain, 2) if plain else None
