"""Contradicting settings and wrong calls are errors; beta rises to its cap."""

import math
from dataclasses import replace

import pytest
from helpers.small_vae import ITEMS

from lbdrop.errors import DropoutError
from lbdrop.recommend.model.settings import METHODS, Settings, method
from lbdrop.recommend.model.vae import VAE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variational": False, "extra_masks": 1}, "extra_masks: want variational=True"),
        ({"variational": False, "prior": "vamp"}, "prior: want variational=True"),
        ({"dropout": "none", "extra_masks": 2}, "want 0 where dropout='none'"),
        ({"dropout": "fixed", "mask_kl": 1.0}, "rates are not learned"),
        ({"flows": 2, "extra_masks": 1}, "want 0 with flows"),
        ({"encoder": "direct"}, "needs a hidden layer"),
        ({"rate": 1.0}, "strictly between 0 and 1"),
        ({"prior": "flat"}, "want one of normal, vamp, composite"),
        ({"hidden": 0}, "want at least 1"),
        ({"extra_masks": -1}, "want at least 0"),
        ({"estimator": "arm"}, "estimator: want it with dropout='learned' alone"),
        ({"dropout": "none", "samples": 3}, "no masks to average"),
        ({"lr": -1.0}, "lr: want at least 0, got -1.0"),
        ({"rate_lr": -1.0}, "rate_lr: want at least 0"),
        ({"final_lr": 0.0}, "final_lr: want more than 0"),
        ({"final_lr": 1.5}, "final_lr: want at most 1"),
        ({"weight_decay": -1.0}, "weight_decay: want at least 0"),
        ({"gamma": -5.0}, "gamma: want at least 0"),
        ({"gamma": "x"}, "gamma: want a number, got 'x'"),
        ({"log_variance_range": (4.0, -4.0)}, "log_variance_range: want the lower number first"),
        ({"log_variance_range": (4.0,)}, "log_variance_range: want two numbers or None"),
        ({"log_variance_range": (0.0, math.nan)}, "log_variance_range: want a finite number, got nan"),
        ({"beta_cap": math.inf}, "beta_cap: want a finite number, got inf"),
        ({"rate": math.nan, "dropout": "none"}, "rate: want a finite number, got nan"),
        ({"hidden": 2.5}, "hidden: want a whole number, got 2.5"),
        ({"latent": 8.0}, "latent: want a whole number, got 8.0"),
        ({"epochs": True}, "epochs: want a whole number, got True"),
        ({"dropout": "learned", "estimator": 1}, "estimator: want text, got 1"),
    ],
)
def test_contradicting_settings_are_errors(changes, message) -> None:
    with pytest.raises(DropoutError, match=message):
        Settings(**changes)


def test_wrong_calls_are_errors_with_the_next_step() -> None:
    with pytest.raises(DropoutError, match="number of training users"):
        VAE(ITEMS, METHODS["cdae"])
    with pytest.raises(DropoutError, match="want one of dae"):
        method("sivae")
    with pytest.raises(DropoutError, match="no width"):
        method("vae", width=3)


def test_beta_rises_to_its_cap() -> None:
    settings = replace(METHODS["vae"], beta_cap=0.2, anneal_steps=1000)
    assert [settings.beta(step) for step in (0, 100, 200, 5000)] == [0.0, 0.1, 0.2, 0.2]
