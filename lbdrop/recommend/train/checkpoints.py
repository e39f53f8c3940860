"""The state of a training run after an epoch: tensors as safetensors, the rest as JSON; never half written.

A folder ``epoch-00012`` holds weights, optimiser and history, and ``best-00009.safetensors``, the weights of the best epoch so
far. It is sealed (:mod:`lbdrop.io.manifest`), written under a temporary name and renamed, and the older state is removed after
that. So a full disk or a power cut costs at most one epoch. Nothing is pickled.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lbdrop.errors import DropoutError
from lbdrop.guards.processes import is_first
from lbdrop.io.files import PART, locked, remove, replacing
from lbdrop.io.manifest import Kind, is_ours, read_header, reading, write_header

__all__ = ["KIND", "WORK", "fingerprint", "load", "newest", "number", "opened", "save"]

STATES, RECORD, STATE, BEST = "epoch-{:05d}", "record.json", "state.safetensors", "best-{:05d}.safetensors"
KIND = Kind(
    "lbdrop training state", RECORD, r"state\.safetensors|best-\d{5}\.safetensors", format=2, oldest=2,
    what="a training state", again="choose another folder, or delete this one to start anew",
)  # fmt: skip
WORK = rf"epoch-\d{{5}}(/({RECORD}|{KIND.files})|\.{PART}/.*)"
"""The files of unfinished training, as a pattern."""


def fingerprint(*arrays: np.ndarray) -> str:
    """16 hexadecimal digits that differ for other numbers, types or another order."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()[:16]


def save(
    folder: Path,
    epoch: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    record: dict[str, Any],
    best: tuple[int, dict[str, Tensor]] | None,
) -> None:
    """Save the state after ``epoch`` and remove the earlier one; ``best`` is the best epoch with its weights."""
    earlier = newest(folder)
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    with replacing(folder / STATES.format(epoch)) as temporary:
        temporary.mkdir()
        save_file(_contiguous(tensors), temporary / STATE)
        if best is not None:
            name = BEST.format(best[0])
            try:
                os.link((earlier or folder) / name, temporary / name)
            except OSError:  # it is new, or links cannot be made there
                save_file(_contiguous(best[1]), temporary / name)
        write_header(temporary, KIND, record)
    for old in folder.glob("epoch-*"):
        if _is_state(old) and number(old) != epoch and is_ours(old, KIND):
            remove(old)


@contextmanager
def opened(folder: Path | None) -> Iterator[dict[str, Any] | None]:
    """The folder is this run's alone; gives the record of its newest state, whose seal is checked before all else."""
    if folder is None:
        yield None
        return
    with locked(folder, None) if is_first() else nullcontext():
        state = newest(folder)
        if state is None:
            yield None
            return
        with reading(state, KIND.again):
            record = read_header(state, KIND)
            _check_record(record, number(state))
        yield record


def load(
    folder: Path,
    record: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: dict[str, Any],
) -> dict[str, Tensor] | None:
    """Load the newest state into model and optimiser; return the best weights, if there is a best epoch.

    Args:
        folder: where :func:`save` wrote.
        record: of that state, see :func:`opened`.
        model: built with the settings of the run.
        optimizer: over the model's parameters, in the same order.
        identity: settings, seed and data of this run; they must equal the saved ones.
    """
    wanted, state = json.loads(json.dumps(identity)), folder / STATES.format(len(record["epochs"]))
    if wanted != record["identity"]:
        _raise_other_run(folder, wanted, record["identity"])
    with reading(state, KIND.again):
        return _load(state, record, model, optimizer)


def newest(folder: Path) -> Path | None:
    """The newest state in the folder."""
    return max(filter(_is_state, folder.glob("epoch-*")), key=number, default=None)


def _is_state(path: Path) -> bool:
    return re.fullmatch(r"epoch-\d+", path.name) is not None


def number(state: Path) -> int:
    """The epoch after which a state was saved."""
    return int(state.name.removeprefix("epoch-"))


def _load(
    newest: Path, record: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Tensor] | None:
    device = next(model.parameters()).device
    tensors = load_file(newest / STATE, device=str(device))
    model.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")})
    _check_finite(tensors)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    _check_moments(optimizer, state)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    if record["best"] is None:
        return None
    best = load_file(newest / BEST.format(record["best"]), device=str(device))
    _check_finite(best)
    if {name: t.shape for name, t in best.items()} != {name: t.shape for name, t in model.state_dict().items()}:
        raise ValueError("weights of the best epoch in the shapes of another model")
    return best


def _check_record(record: dict[str, Any], epoch: int) -> None:
    """An error unless the record has all that training needs."""
    epochs, best, step = record["epochs"], record["best"], record["step"]
    if not isinstance(record["identity"], dict) or not isinstance(epochs, list) or len(epochs) != epoch:
        raise ValueError(f"no record of {epoch} epochs")
    for each in epochs:
        if not isinstance(each["loss"], int | float) or not isinstance(each["validation"], dict | None):
            raise TypeError("an epoch without its loss or validation")
        if any(not isinstance(value, int | float) for value in (each["validation"] or {}).values()):
            raise TypeError("a validation measure that is not a number")
    if best is not None and (type(best) is not int or not 1 <= best <= epoch or not epochs[best - 1]["validation"]):
        raise ValueError(f"a best epoch outside 1 to {epoch}")
    if type(step) is not int or step < 0 or type(record["stopped"]) is not bool:
        raise TypeError("no number of steps")


def _check_finite(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise ValueError(f"{name[:60]!r} with NaN, infinity or integers")


def _check_moments(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Tensor]]) -> None:
    """An error unless these are Adam's moments in the shapes of the parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, moments in state.items():
        shapes = {name: tensor.shape for name, tensor in moments.items()}
        step = shapes.pop("step", None)
        if step != () or shapes != dict.fromkeys(("exp_avg", "exp_avg_sq"), parameters[index].shape):
            raise ValueError(f"moments of parameter {index} in other shapes")


def _raise_other_run(folder: Path, wanted: dict[str, Any], saved: dict[str, Any]) -> None:
    def flat(tree: dict[str, Any]) -> dict[str, Any]:
        return {
            k: v for key, value in tree.items() for k, v in (value if isinstance(value, dict) else {key: value}).items()
        }

    new, old = flat(wanted), flat(saved)
    differing = [
        f"{key} was {old.get(key)!r} and is now {value!r}" for key, value in new.items() if old.get(key) != value
    ]
    raise DropoutError(
        f"{folder} holds another run: {'; '.join(differing[:3]) or 'it has other settings'}; choose another folder, or"
        " delete this one"
    )


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    # safetensors refuses tensors that share memory, so each name gets its own copy.
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
