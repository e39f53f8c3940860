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
from lbdrop.recommend.number_checks import plain
from lbdrop.recommend.settings import GAUSSIAN, LEARNED, LEARNS, METHODS, TUNED, Settings
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
            options["seed"] = seed % 2**31  # no more than the rivals' packages take
        return kind(**options, device=device)


def names() -> list[str]:
    """All methods."""
    return [*METHODS, *LINEAR]


def choose(method: str | Settings | None, dropout: str | None, changes: dict[str, Any]) -> Choice:
    """Complete and check what a user said. Another dropout than the method's brings its companions: see `_companions`."""
    changes = {name: plain(value) for name, value in changes.items()}
    if isinstance(method, Settings):
        told = {field.name for field in fields(Settings)}
        changes = changes | ({"dropout": dropout} if dropout is not None else {})
        return Choice(method.method, _changed(method, changes), {}, frozenset(told))
    if method in LINEAR:
        if dropout is not None:
            raise DropoutError(f"dropout: want none with method={method!r}, which has no masks, got {dropout!r}")
        choice = Choice(method, None, _options(method, changes), frozenset(changes))
        choice.linear(0, "cpu")  # checks the numbers now rather than in fit
        return choice
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
    """Settings from a file, as they are there: every name known, every value of its type."""
    return replace(Settings(), **_named_fields(values))


def _changed(settings: Settings, changes: dict[str, Any]) -> Settings:
    changes = _named_fields(changes)
    return replace(settings, **_companions(settings, changes) | changes)


def _named_fields(values: dict[str, Any]) -> dict[str, Any]:
    known = [field.name for field in fields(Settings)]
    if unknown := sorted(set(values) - set(known)):
        raise DropoutError(f"settings: no {', '.join(unknown)}; there are {', '.join(known)}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _companions(before: Settings, changes: dict[str, Any]) -> dict[str, Any]:
    """What another dropout, or another rule for its rates, brings with it unless the user says otherwise.

    Rates that follow the bound without the mask's KL would follow the training loss alone, which wants none of them.
    """
    dropout = changes.get("dropout", before.dropout)
    # Self-tuning is learned dropout's alone, so that another kind leaves it.
    rule = changes.get("rule", before.rule if dropout == "learned" else "bound")
    if (dropout, rule) == (before.dropout, before.rule):
        return {}
    both = before.both and dropout == "learned" and rule == "bound"
    # A rule's usual start is its own; any other was the user's choice.
    rate = {"rate": Settings.rate} if (before.rule, before.rate) == ("self-tuning", TUNED["rate"]) else {}
    if dropout not in LEARNS:
        return {"rule": "bound", "both": both, "extra_masks": 0, "mask_kl": 0.0, "samples": 0, **rate}
    if rule == "self-tuning":
        rate = {"rate": TUNED["rate"]} if before.rate == Settings.rate else {}
        return {"rule": rule, "both": both, "mask_kl": 0.0, **rate}
    if dropout == "gaussian":
        rate = {"rate": GAUSSIAN["rate"]}
    another_prior = "gaussian" in (before.dropout, dropout)
    mask_kl = 1.0 if another_prior or not before.mask_kl else before.mask_kl
    return {"rule": rule, "both": both, "mask_kl": mask_kl, "samples": before.samples or LEARNED["samples"], **rate}


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
    return options
