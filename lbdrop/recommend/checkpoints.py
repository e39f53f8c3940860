"""The state of a training run after an epoch: tensors as safetensors, the rest as JSON, whole or not there at all.

A folder ``epoch-00012`` holds weights, optimiser and history; ``best-00009.safetensors`` the weights of the best epoch so
far. Each is written beside its place and renamed, and what it replaces is removed after that, so that a full disk or a
power cut costs an epoch at most. Nothing is pickled.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lbdrop.errors import DropoutError

__all__ = ["load", "save"]

PART = ".part"


def save(
    folder: Path,
    epoch: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    record: dict[str, Any],
    best: tuple[int, dict[str, Tensor]] | None,
) -> None:
    """Keep the state after ``epoch`` and drop the one before; ``best`` is the best epoch and its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {_name(epoch)}
    if best is not None:
        target = folder / f"best-{best[0]:05d}.safetensors"
        kept.add(target.name)
        if not target.exists():
            beside = target.with_suffix(PART)
            save_file(_contiguous(best[1]), beside)
            beside.replace(target)
    beside, target = folder / f"{_name(epoch)}{PART}", folder / _name(epoch)
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    save_file(_contiguous(tensors), beside / "state.safetensors")
    (beside / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    beside.replace(target)
    for old in [*folder.glob("epoch-*"), *folder.glob("best-*")]:
        if old.name not in kept:
            shutil.rmtree(old) if old.is_dir() else old.unlink()


def load(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, identity: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor] | None] | None:
    """Put the newest state back into model and optimiser; the record and the best weights, or None if there is none.

    Args:
        folder: where :func:`save` wrote.
        model: as it was built for the run.
        optimizer: over the model's parameters, in the same order.
        identity: settings, seed and data of this run; the saved ones must be the same.
    """
    found = sorted(path for path in folder.glob("epoch-*") if path.is_dir() and path.suffix != PART)
    if not found:
        return None
    record = json.loads((found[-1] / "record.json").read_text())
    wanted, saved = json.loads(json.dumps(identity)), record["identity"]
    if wanted != saved:
        _differs(folder, wanted, saved)
    device = next(model.parameters()).device
    tensors = load_file(found[-1] / "state.safetensors", device=str(device))
    model.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")})
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    if record["best"] is None:
        return record, None
    return record, load_file(folder / f"best-{record['best']:05d}.safetensors", device=str(device))


def _differs(folder: Path, wanted: dict[str, Any], saved: dict[str, Any]) -> None:
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


def _name(epoch: int) -> str:
    return f"epoch-{epoch:05d}"


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    # Two names of one tensor are saved as two: safetensors refuses shared memory.
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
