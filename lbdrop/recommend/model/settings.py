r"""The settings of the recommender's model, and the methods of the paper's table as settings.

One class, :class:`lbdrop.recommend.model.vae.VAE`, reads them; a method is an entry of :data:`METHODS`, not a copy of the code.

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020, table 3; Liang et al., Variational
Autoencoders for Collaborative Filtering, WWW 2018.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin

from lbdrop.errors import DropoutError
from lbdrop.estimators import get as get_estimator
from lbdrop.recommend.number_checks import check_number

__all__ = ["METHODS", "Settings", "method"]

LEARNED_KINDS = ("learned", "concrete", "gaussian")
"""The kinds of dropout whose rates are parameters."""


@dataclass(frozen=True)
class Settings:
    """A model and its training. The defaults are Mult-VAE of Liang et al. 2018."""

    method: str = "vae-drop"
    """The name in records."""

    # The networks
    encoder: Literal["direct", "one-hidden", "dense", "gated"] = "one-hidden"
    """No hidden layer; plain hidden layers; RecVAE's densely connected ones; gated linear units."""
    decoder: Literal["linear", "mlp", "gated"] = "mlp"
    hidden: int = 600
    """Units of a hidden layer, of the encoder and of the decoder."""
    layers: int = 1
    """Hidden layers of a plain or gated encoder and of its decoder, or of a dense encoder."""
    latent: int = 200
    """Dimensions of the latent vector, of each level."""
    levels: int = 1
    """2: a second latent vector below the first, as in H+Vamp."""
    activation: Literal["tanh", "relu", "elu", "swish", "sigmoid", "identity"] = "tanh"
    user_vectors: bool = False
    """A learned vector for every training user, added to the first layer in training (CDAE). Scores use the mean vector for
    all users, as :class:`~lbdrop.recommend.recommender.Recommender` does; ``VAE.scores(batch, known_users=True)`` uses the
    vectors of training users."""

    # The likelihood and the bound
    likelihood: Literal["multinomial", "logistic"] = "multinomial"
    variational: bool = True
    """False: a denoising autoencoder, without latent noise or KL."""
    prior: Literal["normal", "vamp", "composite"] = "normal"
    pseudo_inputs: int = 1000
    """Components of the VampPrior."""
    flows: int = 0
    """Inverse autoregressive flows after the Gaussian."""
    flow_hidden: int = 320
    log_variance_range: tuple[float, float] | None = None
    """Where the posterior's log variance is clipped."""
    extra_masks: int = 0
    """V of the semi-implicit bound: further masks of the row in the mixture that stands for the posterior."""
    beta_cap: float = 0.2
    anneal_steps: int = 200_000
    """The KL's weight is min(beta_cap, step / anneal_steps)."""
    gamma: float | None = None
    """The KL's weight for each of the user's items, instead of beta (RecVAE)."""
    l2: float = 0.0
    """Weight of the squared norm of all weight matrices in the loss (Mult-DAE)."""

    # Dropout of the row's items
    dropout: Literal["none", "fixed", "learned", "concrete", "gaussian"] = "fixed"
    per: Literal["item", "model"] = "model"
    """A rate for every item, or one."""
    rate: float = 0.5
    """The drop rate, or its start if it is learned."""
    normalise: Literal["before", "after", "none"] = "before"
    """Where the row gets length 1: before the mask, which is then scaled by 1/keep, or after; 'none' only scales."""
    mask_kl: float = 0.0
    """Weight of KL(Ber(keep) ‖ Ber(½)) for each item of a row."""
    rates: Literal["bound", "balanced"] = "bound"
    """How learned rates learn: by the paper's bound, or by balanced noise on the rows of validation users."""
    estimator: str | None = None
    """Of the learned rates, by name as for :class:`lbdrop.Objective`, in every step. ``None``: the best that fits into 1.25
    plain steps on average."""
    samples: int = 0
    """Masks averaged at test time; 0 runs the model once, without masks."""

    # Training
    lr: float = 1e-3
    rate_lr: float = 0.01
    final_lr: float = 1.0
    """The share of both learning rates in the last epoch; they fall to it along a cosine. 1: constant."""
    weight_decay: float = 0.0
    batch: int = 500
    epochs: int = 100
    items_at_once: int = 0
    """Items whose logits are computed at once in training, see :mod:`lbdrop.recommend.model.chunked_loss`. 0: the whole
    catalogue up to 100,000 items, and beyond that as many as make a table of 32 megabytes."""
    alternate: int = 0
    """Encoder epochs for every decoder epoch, dropout in the encoder's alone (RecVAE: 3); 0 trains both at once."""

    def __post_init__(self):
        for field in fields(self):
            _check_kind(field.name, field.type, getattr(self, field.name))
        for name in ("hidden", "layers", "latent", "pseudo_inputs", "flow_hidden", "batch", "anneal_steps"):
            check_number(name, getattr(self, name), minimum=1)
        for name in (
            "flows", "extra_masks", "beta_cap", "l2", "mask_kl", "samples", "epochs", "alternate", "items_at_once", "lr",
            "rate_lr", "weight_decay",
        ):  # fmt: skip
            check_number(name, getattr(self, name), minimum=0)
        check_number("final_lr", self.final_lr, above=0, maximum=1)
        if self.dropout != "none" and not 0 < self.rate < 1:
            raise DropoutError(
                f"rate: want a number strictly between 0 and 1, got {self.rate}; dropout='none' drops nothing"
            )
        self._check_dropout()
        self._check_bound()

    def _check_dropout(self) -> None:
        if self.extra_masks and self.dropout == "none":
            raise DropoutError(
                f"extra_masks: want 0 where dropout='none', got {self.extra_masks}; the posterior is a mixture over masks,"
                " so choose another dropout"
            )
        if self.mask_kl and self.dropout in ("none", "fixed"):
            raise DropoutError(
                f"mask_kl: want 0 where the rates are not learned (dropout={self.dropout!r}), got {self.mask_kl}"
            )
        if self.samples and self.dropout == "none":
            raise DropoutError(
                f"samples: want 0 where dropout='none', got {self.samples}; there are no masks to average"
            )
        if self.rates == "balanced":
            if self.dropout != "learned" or self.alternate:
                raise DropoutError(
                    "rates: want 'bound' but for a model with dropout='learned' that trains both halves at once, got"
                    f" 'balanced' with dropout={self.dropout!r} and alternate={self.alternate}"
                )
            if self.mask_kl or self.estimator is not None:
                raise DropoutError(
                    f"rates: want mask_kl=0 and no estimator with 'balanced', which has its own measure, got {self.mask_kl}"
                    f" and {self.estimator}"
                )
        if self.estimator is not None:
            if self.dropout != "learned":
                raise DropoutError(
                    f"estimator: want it with dropout='learned' alone, got {self.estimator!r}; leave it out"
                )
            get_estimator(self.estimator)

    def _check_bound(self) -> None:
        if not self.variational:
            given = {"prior": self.prior != "normal", "flows": self.flows, "extra_masks": self.extra_masks}
            given |= {"levels": self.levels > 1}
            given |= {"gamma": self.gamma is not None, "log_variance_range": self.log_variance_range is not None}
            if wrong := [name for name, is_given in given.items() if is_given]:
                raise DropoutError(f"{wrong[0]}: want variational=True, got False; a DAE has no posterior and no KL")
        if not self.variational and self.encoder != "direct":
            raise DropoutError(
                f"variational=False: want encoder='direct', got {self.encoder!r}; a DAE's hidden layer is its code"
            )
        if self.variational and self.encoder == "direct":
            raise DropoutError(
                "encoder='direct': want variational=False; a posterior needs a hidden layer to come from"
            )
        if self.levels not in (1, 2):
            raise DropoutError(f"levels: want 1 or 2, got {self.levels}")
        if self.levels == 2 and self.flows:
            raise DropoutError(f"flows: want 0 with levels=2, got {self.flows}; choose one way to a flexible posterior")
        if self.flows and self.extra_masks:
            raise DropoutError(
                f"extra_masks: want 0 with flows, got {self.extra_masks}; the mixture over masks needs a density that can"
                " be asked at another mask's sample, and a flow cannot be inverted fast"
            )
        if self.alternate and not self.variational:
            raise DropoutError("alternate: want variational=True; a DAE trains both halves at once")

    @property
    def learns_rates(self) -> bool:
        """Whether the rates are parameters."""
        return self.dropout in LEARNED_KINDS

    def beta(self, step: int) -> float:
        """The KL's weight after ``step`` optimiser steps."""
        return min(self.beta_cap, step / self.anneal_steps)

    def lr_share(self, epoch: int) -> float:
        """The share of the learning rates in an epoch, counted from 1."""
        way = min((epoch - 1) / max(self.epochs - 1, 1), 1.0)
        return self.final_lr + (1 - self.final_lr) * (1 + math.cos(math.pi * way)) / 2


def _check_kind(name: str, kind: Any, value: Any) -> None:
    """An error unless a value has its field's type; optional numbers must be within their range too."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise DropoutError(f"{name}: want one of {', '.join(get_args(kind))}, got {value!r}")
    elif kind in (bool, str):
        if not isinstance(value, kind):
            raise DropoutError(f"{name}: want {'True or False' if kind is bool else 'text'}, got {value!r}")
    elif kind in (int, float):
        check_number(name, value, integer=kind is int)
    elif name == "estimator" and value is not None:
        _check_kind(name, str, value)
    elif name == "gamma" and value is not None:
        check_number(name, value, minimum=0)
    elif name == "log_variance_range" and value is not None:
        if not isinstance(value, tuple) or len(value) != 2:
            raise DropoutError(f"{name}: want two numbers or None, got {value!r}")
        for each in value:
            check_number(name, each)
        if not value[0] < value[1]:
            raise DropoutError(f"{name}: want the lower number first, got {value!r}")


VAE_DROP = Settings()
VAE_PLAIN = replace(VAE_DROP, method="vae", dropout="none")
IAF = {"flows": 4}
VAMP = {"prior": "vamp", "log_variance_range": (-12.0, 4.0)}
# Rows are normalised before the mask; after it, the network has never seen rows like those without a mask (LOG.md).
# As the paper, in every step: a table of a thousand users has few steps, and in a share of them rates would hardly move.
LEARNED = {"dropout": "learned", "estimator": "disarm", "extra_masks": 2, "samples": 10}
# No extra masks, so that the Gaussian's KL is exact.
EXACT = {"extra_masks": 0}
CONCRETE = {"dropout": "concrete", "estimator": None}
# Not .5: that is the largest allowed variance, and the KL would hold it there.
GAUSSIAN = {"dropout": "gaussian", "estimator": None, "rate": 0.3}
GATED = {"encoder": "gated", "decoder": "gated", "levels": 2, **VAMP}
DENSE = {"encoder": "dense", "layers": 5, "decoder": "linear", "activation": "swish", "gamma": 0.005, "lr": 5e-4}


def _named(*rows: Settings) -> dict[str, Settings]:
    return {row.method: row for row in rows}


METHODS: dict[str, Settings] = _named(
    replace(VAE_DROP, method="dae", variational=False, encoder="direct", decoder="linear", l2=0.01 / 500),
    VAE_PLAIN,
    VAE_DROP,
    replace(VAE_PLAIN, method="vae-iaf", **IAF),
    replace(VAE_DROP, method="vae-iaf-drop", **IAF),
    replace(VAE_PLAIN, method="vae-vamp", **VAMP),
    replace(VAE_DROP, method="vae-vamp-drop", **VAMP),
    replace(VAE_DROP, method="sivae-lbd", per="item", mask_kl=4.0, **LEARNED),
    replace(VAE_DROP, method="sivae-lbd-one", mask_kl=1.0, **LEARNED),
    replace(VAE_DROP, method="sivae-lbd-dense", mask_kl=1.0, **(LEARNED | DENSE | EXACT)),
    replace(VAE_DROP, method="sivae-lbd-gated", mask_kl=1.0, **(LEARNED | GATED)),
    replace(VAE_DROP, method="sivae-concrete", per="item", mask_kl=4.0, **(LEARNED | CONCRETE)),
    replace(VAE_DROP, method="sivae-gaussian", per="item", mask_kl=1.0, **(LEARNED | GAUSSIAN)),
    replace(
        VAE_DROP,
        method="cdae",
        variational=False,
        encoder="direct",
        decoder="linear",
        likelihood="logistic",
        user_vectors=True,
        l2=0.01 / 500,
    ),
    replace(VAE_DROP, method="recvae", prior="composite", alternate=3, **DENSE),
    replace(VAE_DROP, method="h-vamp", **GATED),
)


def method(name: str, **changes: Any) -> Settings:
    """The settings of a named method, with changes.

    >>> method("sivae-lbd", extra_masks=5).extra_masks
    5
    """
    if name not in METHODS:
        raise DropoutError(f"method: want one of {', '.join(METHODS)}, got {name!r}")
    if unknown := set(changes) - {field.name for field in fields(Settings)}:
        raise DropoutError(f"settings: no {', '.join(sorted(unknown))}; see lbdrop.recommend.model.settings.Settings")
    return replace(METHODS[name], **changes)
