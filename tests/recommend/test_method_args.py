"""Arguments become settings: another dropout implies further settings, and numbers are checked before fit."""

from typing import Any

import numpy as np
import pytest

from lbdrop.errors import DropoutError
from lbdrop.recommend import METHODS, Recommender, Settings
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.method_args import choose_method


def chosen(method: str | Settings | None, dropout: str | None, **changes: Any) -> Settings:
    settings = choose_method(method, dropout, changes).settings
    assert settings is not None
    return settings


def test_method_names_come_in_any_case() -> None:
    assert repr(Recommender("EASE")) == repr(Recommender("ease"))
    assert chosen("RecVAE", "Learned") == chosen("recvae", "learned")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dropout", ["learned", "fixed", "none", "concrete", "gaussian"])
def test_every_method_takes_every_dropout(name: str, dropout: str) -> None:
    before, found = METHODS[name], chosen(name, dropout)
    assert found.dropout == dropout
    if dropout == before.dropout:
        assert found == before
    elif dropout in ("none", "fixed"):
        assert (found.extra_masks, found.mask_kl, found.samples) == (0, 0.0, 0)
        assert found.rate == before.rate
    else:
        assert found.mask_kl >= 1
        assert found.samples == 10
    assert chosen(before, dropout) == found


def test_rates_learned_in_a_method_of_fixed_dropout_do_not_collapse() -> None:
    shop = generate_shop(users=300, items=60, groups=4).interactions
    model = Recommender("vae-drop", dropout="learned", epochs=12, patience=None, validation=0, progress=False).fit(shop)
    assert model.rates()["rate"].min() > 0.35


def test_explicit_settings_override_implied_ones() -> None:
    assert chosen("vae", "learned", mask_kl=0.0, samples=3).mask_kl == 0
    assert chosen("vae", "learned", samples=3).samples == 3
    assert chosen("vae-drop", "gaussian", rate=0.2).rate == 0.2
    assert chosen("vae-drop", "gaussian").rate == METHODS["sivae-gaussian"].rate
    assert chosen("sivae-lbd", "fixed", rate=0.7, samples=5).samples == 5
    with pytest.raises(DropoutError, match="mask_kl: want 0 where the rates are not learned"):
        choose_method("sivae-lbd", "fixed", {"mask_kl": 2.0})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "slim", "alpha": -1}, "alpha: want at least 0"),
        ({"method": "wmf", "factors": 2.5}, "factors: want a whole number, got 2.5"),
        ({"method": "wmf", "factors": "many"}, "factors: want a whole number, got 'many'"),
        ({"method": "wmf", "regularisation": 0.0}, "regularisation: want more than 0"),
        ({"method": "ials", "factors": 0}, "factors: want at least 1"),
        ({"lr": -1.0}, "lr: want at least 0"),
        ({"lr": None}, "lr: want a number, got None"),
        ({"validation": float("nan")}, "validation: want a finite number, got nan"),
        ({"validation": -1}, "validation: want at least 0"),
        ({"validation": "x"}, "validation: want a number, got 'x'"),
        ({"validation": np.float64(30)}, "validation: want a share below 1"),
        ({"seed": -1}, "seed: want at least 0, got -1"),
        ({"seed": 1.5}, "seed: want a whole number, got 1.5"),
        ({"at_least": float("inf")}, "at_least: want a finite number"),
        ({"patience": 0}, "patience: want at least 1"),
    ],
)
def test_numbers_out_of_range_are_errors_before_fit(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(DropoutError, match=words):
        Recommender(**arguments)


def test_numbers_of_numpy_are_accepted(tmp_path: Any) -> None:
    shop = generate_shop(users=300, items=40, groups=4).interactions.with_columns(weight=2.0)
    given = {"validation": np.int64(30), "seed": np.int64(3), "at_least": np.float32(1), "hidden": np.int64(8)}
    model = Recommender("vae-drop", epochs=np.int64(1), lr=np.float32(0.01), progress=False, **given).fit(shop)
    assert model.history_ is not None
    assert model.history_.best == 1  # so that thirty users were held out
    model.save(tmp_path / "model")
    assert Recommender.load(tmp_path / "model").recommend([0], k=3).equals(model.recommend([0], k=3))


@pytest.mark.parametrize("name", ["wmf", "ials"])
def test_large_seed_works_for_every_method(name: str) -> None:
    shop = generate_shop(users=60, items=20, groups=4).interactions
    assert len(Recommender(name, factors=2, seed=2**40).fit(shop).recommend([0], k=2)) == 2
