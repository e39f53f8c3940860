"""What a recommender is to be: the few words a user gave, completed by the size of the data and checked.

A method of :data:`lbdrop.recommend.settings.METHODS` was made for hundreds of thousands of users and tens of thousands of
items. With less, unless told otherwise, layers are no wider than half of the catalogue and latent vectors than a sixth, an
epoch has twenty steps or more, and the KL has its full weight by the middle of training at the latest.
"""

import inspect
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from lbdrop.errors import DropoutError
from lbdrop.recommend.linear import LINEAR, Linear
from lbdrop.recommend.settings import METHODS, Settings
from lbdrop.recommend.settings import method as named

__all__ = ["BY_DROPOUT", "Choice", "checked_settings", "choose", "names", "to_size"]

BY_DROPOUT = {"learned": "sivae-lbd-dense", "fixed": "vae-drop", "none": "vae", "concrete": "sivae-concrete",
              "gaussian": "sivae-gaussian"}  # fmt: skip
"""The method that a kind of dropout stands for."""

STEPS = 20
"""An epoch of fewer is too coarse to stop at the right one."""


@dataclass(frozen=True)
class Choice:
    """One method with its settings."""

    method: str
    settings: Settings | None
    """Of an autoencoder, as told; ``None`` for a linear method."""
    options: dict[str, Any]
    """Arguments of a linear method."""
    told: frozenset[str]
    """The settings that the user gave."""

    def linear(self, seed: int, device: torch.device | str | None) -> Linear:
        """A linear method, not fitted yet."""
        kind, options = LINEAR[self.method], dict(self.options)
        if isinstance(options.get("dtype"), str):
            options["dtype"] = getattr(torch, options["dtype"])
        if "seed" in inspect.signature(kind).parameters:
            options["seed"] = seed
        return kind(**options, device=device)


def names() -> list[str]:
    """All methods."""
    return [*METHODS, *LINEAR]


def choose(method: str | Settings | None, dropout: str | None, changes: dict[str, Any]) -> Choice:
    """Complete and check what a user said."""
    if isinstance(method, Settings):
        told = {field.name for field in fields(Settings)}
        changes = changes | ({"dropout": dropout} if dropout is not None else {})
        return Choice(method.method, _changed(method, changes), {}, frozenset(told))
    if method in LINEAR:
        if dropout is not None:
            raise DropoutError(f"dropout: want none with method={method!r}, which has no masks, got {dropout!r}")
        return Choice(method, None, _options(method, changes), frozenset(changes))
    if method is None:
        if (dropout or "learned") not in BY_DROPOUT:
            raise DropoutError(f"dropout: want one of {', '.join(BY_DROPOUT)}, got {dropout!r}")
        method = BY_DROPOUT[dropout or "learned"]
    elif dropout is not None:
        changes = changes | {"dropout": dropout}
    if method not in METHODS:
        raise DropoutError(f"method: want one of {', '.join(names())}, got {method!r}")
    return Choice(method, _changed(named(method), changes), {}, frozenset(changes))


def to_size(settings: Settings, told: frozenset[str], users: int, items: int) -> Settings:
    """The settings for so many training users and items; what the user told stays as it is.

    >>> small = to_size(METHODS["sivae-lbd"], frozenset({"latent"}), users=1000, items=300)
    >>> small.hidden, small.latent, small.batch
    (150, 200, 50)
    """
    s = settings
    batch = s.batch if "batch" in told else min(s.batch, max(users // STEPS, 16))
    steps = s.epochs * -(-users // batch) * (s.alternate + 1)
    fitting = {
        "hidden": min(s.hidden, max(items // 2, 16)),
        "latent": min(s.latent, max(items // 6, 8)),
        "pseudo_inputs": min(s.pseudo_inputs, max(users, 1)),
        "batch": batch,
        "anneal_steps": min(s.anneal_steps, max(round(steps / 2 / s.beta_cap), 1)) if s.beta_cap else s.anneal_steps,
    }
    return replace(s, **{name: value for name, value in fitting.items() if name not in told})


def checked_settings(values: dict[str, Any]) -> Settings:
    """Settings from a file: every name known, every value of its type."""
    return _changed(Settings(), values)


def _changed(settings: Settings, changes: dict[str, Any]) -> Settings:
    known = {field.name: field for field in fields(Settings)}
    if unknown := sorted(set(changes) - set(known)):
        raise DropoutError(f"settings: no {', '.join(unknown)}; there are {', '.join(known)}")
    for name, value in changes.items():
        _check_type(name, value, known[name].default)
    changes = {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}
    return replace(settings, **changes)


def _check_type(name: str, value: Any, default: Any) -> None:
    if name in ("gamma", "log_variance_range"):  # those that may be None
        pair = isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))
        right = value is None or (_is_number(value) if name == "gamma" else pair)
        kind = "a number or None" if name == "gamma" else "two numbers or None"
    elif isinstance(default, bool):
        right, kind = isinstance(value, bool), "True or False"
    elif isinstance(default, str):
        right, kind = isinstance(value, str), "text"
    elif isinstance(default, int):
        right, kind = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    else:
        right, kind = _is_number(value), "a number"
    if not right:
        raise DropoutError(f"{name}: want {kind}, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _options(method: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a linear method; its seed and device are the recommender's."""
    known = [name for name in inspect.signature(LINEAR[method]).parameters if name not in ("seed", "device")]
    if unknown := sorted(set(changes) - set(known)):
        raise DropoutError(
            f"{method}: no {', '.join(unknown)}; there {'are ' + ', '.join(known) if known else 'is none'}"
        )
    options = {name: str(v).removeprefix("torch.") if name == "dtype" else v for name, v in changes.items()}
    if options.get("dtype", "float32") not in ("float32", "float64"):
        raise DropoutError(f"dtype: want float32 or float64, got {options['dtype']}")
    for name, value in options.items():
        if not (name == "dtype" or _is_number(value) or (value is None and name == "top")):
            raise DropoutError(f"{name}: want a number, got {value!r}")
    return options
