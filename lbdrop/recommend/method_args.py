"""From the arguments of :class:`~lbdrop.recommend.recommender.Recommender` to a method with checked settings.

The methods of :data:`~lbdrop.recommend.model.settings.METHODS` were made for hundreds of thousands of users and tens of
thousands of items. For smaller data, settings that the user does not pass are reduced: layers are at most half as wide as the
catalogue and latent vectors a sixth, an epoch has at least twenty steps, and the KL has its full weight by the middle of
training.
"""

import inspect
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from lbdrop.errors import DropoutError
from lbdrop.recommend.linear.methods import LINEAR, Linear
from lbdrop.recommend.model.settings import GAUSSIAN, LEARNED, LEARNED_KINDS, METHODS, Settings
from lbdrop.recommend.model.settings import method as get_method
from lbdrop.recommend.number_checks import check_number, to_python_number

__all__ = ["METHOD_BY_DROPOUT", "FitOptions", "MethodChoice", "choose_method", "settings_from_dict", "sized_for_data"]

METHOD_BY_DROPOUT = {"learned": "sivae-lbd-dense", "fixed": "vae-drop", "none": "vae", "concrete": "sivae-concrete",
              "gaussian": "sivae-gaussian"}  # fmt: skip
"""The method of a kind of dropout."""

REMOVED = ("rule", "offset_scale", "settle", "both")
"""Settings that saved models of earlier versions have: how rates were learned, which does not matter to a fitted model."""

EXPERTS, AUTO = "experts", "auto"
"""A linear model and a network together; and that, or the linear model alone where the network does not help."""
EXPERT_SETTINGS = replace(
    METHODS["sivae-lbd-dense"], method=EXPERTS, layers=2, gamma=0.0025, lr=2e-3, final_lr=0.02, epochs=30,
    estimator=None,
)  # fmt: skip
"""The network of the experts (LOG.md). Its one rate needs few of the steps."""

MIN_STEPS = 20
"""Steps of an epoch; with fewer, stopping between epochs is too coarse."""


@dataclass(frozen=True)
class MethodChoice:
    """One method with its settings."""

    method: str
    settings: Settings | None
    """Of an autoencoder, or of the network of the experts; ``None`` for a linear method."""
    options: dict[str, Any]
    """Arguments of a linear method."""
    explicit: frozenset[str]
    """The settings that the user passed."""

    @property
    def together(self) -> bool:
        """Whether a linear model and a network are fitted."""
        return self.method in (EXPERTS, AUTO)

    def linear(self, seed: int, device: torch.device | str | None) -> Linear:
        """A linear method, not fitted yet."""
        kind, options = LINEAR[self.method], dict(self.options)
        if isinstance(options.get("dtype"), str):
            options["dtype"] = getattr(torch, options["dtype"])
        if "seed" in inspect.signature(kind).parameters:
            options["seed"] = seed % 2**31  # the largest that the rivals' packages accept
        return kind(**options, device=device)


@dataclass(frozen=True)
class FitOptions:
    """How a recommender is fitted, whatever its method; see :class:`~lbdrop.recommend.recommender.Recommender`."""

    at_least: float | None
    validation: float | int
    patience: int | None
    budget: float | None
    seed: int

    @classmethod
    def checked(cls, choice: MethodChoice, *options: Any) -> "FitOptions":
        """An error unless all are numbers within their bounds, and apply to the method."""
        o = cls(*map(to_python_number, options))
        check_number("validation", o.validation, minimum=0)
        if isinstance(o.validation, float) and o.validation >= 1:
            raise DropoutError(f"validation: want a share below 1 or a number of users, got {o.validation}")
        check_number("seed", o.seed, integer=True, minimum=0, maximum=2**63 - 1)
        if o.budget is not None:
            check_number("budget", o.budget, above=0)
            if not choice.together:
                raise DropoutError(
                    f"budget: want it without method and dropout, or with {EXPERTS!r}, got method {choice.method!r}; other"
                    " methods have epochs= or iterations="
                )
        if o.at_least is not None:
            check_number("at_least", o.at_least)
        if o.patience is not None:
            check_number("patience", o.patience, integer=True, minimum=1)
        return o


def choose_method(method: str | Settings | None, dropout: str | None, changes: dict[str, Any]) -> MethodChoice:
    """Complete and check the arguments. Another dropout than the method's implies more changes, see `_implied_changes`."""
    changes = {name: to_python_number(value) for name, value in changes.items()}
    method = method.lower() if isinstance(method, str) else method
    dropout = dropout.lower() if isinstance(dropout, str) else dropout
    if isinstance(method, Settings):
        every_field = {field.name for field in fields(Settings)}
        changes = changes | ({"dropout": dropout} if dropout is not None else {})
        return MethodChoice(method.method, _changed(method, changes), {}, frozenset(every_field))
    if method in LINEAR:
        if dropout is not None:
            raise DropoutError(f"dropout: want none with method={method!r}, which has no masks, got {dropout!r}")
        choice = MethodChoice(method, None, _options(method, changes), frozenset(changes))
        choice.linear(0, "cpu")  # so that wrong numbers are errors here, not in fit
        return choice
    if method is None and dropout is None and not changes:
        return MethodChoice(AUTO, EXPERT_SETTINGS, {}, frozenset())
    if method in (EXPERTS, AUTO) or (method is None and dropout is None):
        # Settings are the network's: who passes some wants one.
        changes = changes | ({"dropout": dropout} if dropout is not None else {})
        chosen = AUTO if method == AUTO and not changes else EXPERTS
        return MethodChoice(chosen, _changed(EXPERT_SETTINGS, changes), {}, frozenset(changes))
    if method is None:
        if (dropout or "learned") not in METHOD_BY_DROPOUT:
            raise DropoutError(f"dropout: want one of {', '.join(METHOD_BY_DROPOUT)}, got {dropout!r}")
        method = METHOD_BY_DROPOUT[dropout or "learned"]
    elif dropout is not None:
        changes = changes | {"dropout": dropout}
    if method not in METHODS:
        raise DropoutError(f"method: want one of {', '.join([EXPERTS, AUTO, *METHODS, *LINEAR])}, got {method!r}")
    return MethodChoice(method, _changed(get_method(method), changes), {}, frozenset(changes))


def sized_for_data(settings: Settings, explicit: frozenset[str], users: int, items: int) -> Settings:
    """The settings for data of this size; explicit ones stay as they are.

    >>> small = sized_for_data(METHODS["sivae-lbd"], frozenset({"latent"}), users=1000, items=300)
    >>> small.hidden, small.latent, small.batch
    (150, 200, 50)
    """
    s = settings
    batch = s.batch if "batch" in explicit else min(s.batch, max(users // MIN_STEPS, 16))
    steps = s.epochs * -(-users // batch) * (s.alternate + 1)
    fitting = {
        "hidden": min(s.hidden, max(items // 2, 16)),
        "latent": min(s.latent, max(items // 6, 8)),
        "pseudo_inputs": min(s.pseudo_inputs, max(users, 1)),
        "batch": batch,
        "anneal_steps": min(s.anneal_steps, max(round(steps / 2 / s.beta_cap), 1)) if s.beta_cap else s.anneal_steps,
    }
    return replace(s, **{name: value for name, value in fitting.items() if name not in explicit})


def settings_from_dict(values: dict[str, Any]) -> Settings:
    """Settings from a file: every name must be known, every value of its type; those of earlier versions are left out."""
    removed = REMOVED if values.get("dropout") == "learned" else (*REMOVED, "estimator")
    return replace(Settings(), **_checked_fields({name: v for name, v in values.items() if name not in removed}))


def _changed(settings: Settings, changes: dict[str, Any]) -> Settings:
    changes = _checked_fields(changes)
    return replace(settings, **_implied_changes(settings, changes) | changes)


def _checked_fields(values: dict[str, Any]) -> dict[str, Any]:
    known_names = [field.name for field in fields(Settings)]
    if unknown := sorted(set(values) - set(known_names)):
        raise DropoutError(f"settings: no {', '.join(unknown)}; there are {', '.join(known_names)}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _implied_changes(before: Settings, changes: dict[str, Any]) -> dict[str, Any]:
    """The changes that another dropout implies.

    Without the masks' KL, learned rates would minimise the training loss alone, and go to zero.
    """
    dropout = changes.get("dropout", before.dropout)
    if changes.get("rates", before.rates) == "balanced" and dropout == "learned":
        return {"estimator": None, "mask_kl": 0.0, "samples": before.samples or LEARNED["samples"]}
    if dropout == before.dropout:
        return {}
    if dropout not in LEARNED_KINDS:
        return {"estimator": None, "rates": "bound", "extra_masks": 0, "mask_kl": 0.0, "samples": 0}
    rate = {"rate": GAUSSIAN["rate"]} if dropout == "gaussian" else {}
    another_prior = "gaussian" in (before.dropout, dropout)
    mask_kl = 1.0 if another_prior or not before.mask_kl else before.mask_kl
    estimator = LEARNED["estimator"] if dropout == "learned" else None
    rates = before.rates if dropout == "learned" else "bound"
    return {
        "estimator": estimator,
        "rates": rates,
        "mask_kl": mask_kl,
        "samples": before.samples or LEARNED["samples"],
        **rate,
    }


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
