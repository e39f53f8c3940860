"""Recipes of the recommender: two epochs of each method on users of three tastes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from .records import Numbers

__all__ = ["RECIPES"]

SMALL: dict[str, Any] = {"hidden": 16, "latent": 6, "batch": 25, "epochs": 2, "validation": 20}


def tastes(users: int = 120) -> pl.DataFrame:
    """User u has nine of the twelve items of group u mod 3."""
    random = np.random.default_rng(0)
    rows = [
        (user, f"{'abc'[user % 3]}{item:02d}") for user in range(users) for item in random.choice(12, 9, replace=False)
    ]
    return pl.DataFrame(rows, schema=["user_id", "item_id"], orient="row")


def fitted(**arguments: Any) -> Numbers:
    """Losses and measures of each epoch, scores of a few users with their uncertainty, and rates."""
    from lbdrop.recommend import Recommender

    model = Recommender(**arguments, device="cpu", progress=False).fit(tastes())
    found: Numbers = {}
    for epoch in model.history_.epochs if model.history_ is not None else ():
        numbers = {
            name: value for name, value in epoch.items() if isinstance(value, float) and not name.endswith("seconds")
        }
        numbers |= epoch["validation"]
        found |= {f"epoch {epoch['epoch']}: {name}": [value] for name, value in numbers.items()}
    scored = model.recommend([0, 1, 2], k=36, filter_viewed=False).sort("user_id", "item_id")
    found["scores"] = scored["score"].to_list()
    if "uncertainty" in scored.columns:
        found["uncertainty"] = scored["uncertainty"].to_list()
    if model.history_ is not None and model.settings_ is not None and model.settings_.dropout != "none":
        found["rates"] = model.rates()["rate"].to_list()
    return found


def methods(*names: str) -> Numbers:
    from lbdrop.recommend.model.settings import METHODS

    found: Numbers = {}
    for name in names:
        settings = SMALL | ({"layers": 2} if METHODS[name].encoder == "dense" else {})
        found |= {f"{name}: {key}": values for key, values in fitted(method=name, **settings).items()}
    return found


def linear() -> Numbers:
    arguments: dict[str, dict[str, Any]] = {
        "ease": {"regularisation": 10.0, "dtype": "float64"},  # in float32 its bits change from run to run
        "wmf": {"factors": 4, "regularisation": 1.0},
        "popularity": {},
    }
    found: Numbers = {}
    for name, options in arguments.items():
        found |= {f"{name}: {key}": values for key, values in fitted(method=name, **options).items()}
    return found


RECIPES: dict[str, Callable[[], Numbers]] = {
    "recommender-lbd": partial(methods, "sivae-lbd", "sivae-lbd-one"),
    "recommender-lbd-dense": partial(methods, "sivae-lbd-dense", "sivae-lbd-gated"),
    "recommender-rivals": partial(methods, "sivae-concrete", "sivae-gaussian", "vae-drop", "vae"),
    "recommender-dae": partial(methods, "dae", "cdae"),
    "recommender-recvae": partial(methods, "recvae"),
    "recommender-linear": linear,
}
