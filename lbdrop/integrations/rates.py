"""The learned rates of a model as numbers for a logger, as curves and histograms in TensorBoard, and as a file."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lbdrop.dropout import NoiseLayer, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.guards.optimizers import parameter_groups
from lbdrop.objective import Objective
from lbdrop.rules.rule import HeldOutRule, Rule, StatefulRule
from lbdrop.sites.convert import convert

__all__ = ["FILE", "load_rates", "objective_scalars", "rate_scalars", "save_rates", "without_rates", "write_rates"]

FILE = "learned_rates.safetensors"
RATE_LR = 1e-2
"""The learning rate of the rates by default."""


@runtime_checkable
class Writer(Protocol):
    """What TensorBoard's ``SummaryWriter`` can do, and whatever else can do the same."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> Any: ...

    def add_histogram(self, tag: str, values: Any, global_step: int | None = None) -> Any: ...


# ------------------------------------------------------------------------------------------------------- to look at


def rate_scalars(model: nn.Module) -> dict[str, float]:
    """The mean drop rate of each layer, as ``rates/<layer>``."""
    return {f"rates/{name}": layer.p for name, layer in noise_layers(model).items()}


def objective_scalars(objective: Objective) -> dict[str, float]:
    """``objective.last`` for a logger: ``rates/<layer>`` and ``objective/<name>``; what is not there yet is left out."""
    found = {
        name if name.startswith("rates/") else f"objective/{name}": value for name, value in objective.last.items()
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


def write_rates(writer: Writer, model: nn.Module, step: int) -> None:
    """Write, for each layer, its mean drop rate and a histogram of its rates; under ``rates/all`` that of all together.

    Example:
        >>> from torch.utils.tensorboard import SummaryWriter
        >>> net = lbdrop.convert(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2)), verbose=False)
        >>> with SummaryWriter(getfixture("tmp_path")) as writer:
        ...     write_rates(writer, net, step=0)
    """
    for name, value in rate_scalars(model).items():
        writer.add_scalar(name, value, step)
    rates = {name: layer.rate.flatten().float().cpu() for name, layer in noise_layers(model).items()}
    for name, values in rates.items():
        writer.add_histogram(f"rates/{name}", values, step)
    writer.add_histogram("rates/all", torch.cat(list(rates.values())), step)


# --------------------------------------------------------------------------------------------------------- to keep


def rate_state(model: nn.Module) -> dict[str, Tensor]:
    """What the dropouts of a model have learned, by its name in the model's state."""
    return {
        f"{name}.{key}": value
        for name, layer in noise_layers(model).items()
        for key, value in layer.state_dict().items()
    }


def without_rates(model: nn.Module) -> dict[str, Tensor]:
    """The state of ``model`` as it was before :func:`lbdrop.convert`: a file of it loads into the original model."""
    learned = rate_state(model)
    return {key: value for key, value in model.state_dict().items() if key not in learned}


def save_rates(model: nn.Module, folder: str | Path) -> Path:
    """Write the learned rates of ``model`` beside its weights, as ``learned_rates.safetensors``."""
    from safetensors.torch import save_file

    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    # Copies: layers may share a rate, and the format knows no sharing.
    save_file({key: value.detach().cpu().clone() for key, value in rate_state(model).items()}, path)
    return path


def load_rates(model: nn.Module, folder: str | Path) -> nn.Module:
    """Give a model that was converted in the same way the rates of :func:`save_rates`; returns it."""
    from safetensors.torch import load_file

    path = Path(folder) / FILE
    if not path.exists():
        raise DropoutError(f"rates: want {FILE} in {folder}, got none; write it with save_rates(model, folder)")
    saved, layers = load_file(path), noise_layers(model)
    known, given = ({key.rpartition(".logit")[0] for key in keys if key.endswith(".logit")}
                    for keys in (rate_state(model), saved))  # fmt: skip
    shapes = {name: tuple(layer.logit.shape) for name, layer in layers.items()}
    other = [name for name in known & given if tuple(saved[f"{name}.logit"].shape) != shapes[name]]
    if known != given or other:
        raise DropoutError(
            f"rates: want those of the same conversion, got {path.name} with {sorted(given - known)[:4]} that the model does"
            f" not have, without {sorted(known - given)[:4]}, and of other shapes at {sorted(other)[:4]}; call lbdrop.convert"
            " with the settings that the saved model was converted with"
        )
    for name, layer in layers.items():
        prefix = f"{name}."
        layer.load_state_dict({key.removeprefix(prefix): v for key, v in saved.items() if key.startswith(prefix)})
    return model


# -------------------------------------------------------------------------------------- shared by the integrations


def converted(model: nn.Module) -> nn.Module:
    """The model, converted if it is not yet."""
    return model if any(isinstance(module, NoiseLayer) for module in model.modules()) else convert(model)


def rate_parameters(model: nn.Module) -> list[nn.Parameter]:
    """What gets a learning rate of its own and no weight decay."""
    return [p for group in parameter_groups(model)[1:] for p in group["params"]]


def check_rate_lr(rate_lr: float | None, rule: Rule) -> None:
    """An error about a learning rate of the rates that would change nothing."""
    if rate_lr not in (None, RATE_LR) and isinstance(rule, HeldOutRule):
        raise DropoutError(
            f"rate_lr: want it where rates learn by gradients, got {rate_lr} and a rule that moves rates by held-out data;"
            " leave it out"
        )


def say_start(objective: Objective) -> None:
    """Where rates begin, if that is not where the model's own were, which ``convert`` has named."""
    if isinstance(objective.rule, HeldOutRule):
        starts = sorted({f"{layer.p:.2f}" for layer in objective.layers.values()})
        shown = " to ".join(starts[:: max(1, len(starts) - 1)])
        print(f"lbdrop: rates follow held-out data, from {shown} until there is a gap to training")


def warn_if_not_frozen(objective: Objective) -> None:
    """At the end of a run whose rates were still to move."""
    rule = objective.rule
    if isinstance(rule, StatefulRule) and rule.phase != "frozen":
        warnings.warn(
            f"held_out: want a run that goes on until rates are frozen, got one that ended before, in the phase {rule.phase!r}:"
            " rates are not what they would have become, and no held-out example was trained on; train for all the steps that"
            " the trainer was set up with",
            stacklevel=3,
        )


class Whole:
    """Batches each as one argument, whatever they consist of: a training step takes them as they come."""

    def __init__(self, loader: Iterable[Any]):
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)  # pyright: ignore[reportArgumentType]

    def __iter__(self) -> Iterator[tuple[Any]]:
        for batch in self.loader:
            yield (dict(batch) if isinstance(batch, Mapping) else batch,)
