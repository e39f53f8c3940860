"""What integrations log of an objective, and say at the end of a run."""

import pytest
from helpers.small_classifier import cross_entropies, small_classifier

from lbdrop import Balanced, Objective
from lbdrop.integrations.rates import objective_scalars, warn_if_not_frozen


def test_logged_numbers_are_those_of_the_last_step_and_none_before_a_measurement_is_nan() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, Balanced(model, [(x, y)], steps=200, every=2))
    objective(cross_entropies, x, y)
    assert set(objective_scalars(objective)) == {"objective/loss", "rates/0", "rates/3"}
    objective(cross_entropies, x, y)
    measured = {f"objective/{name}" for name in ("loss", "plain_loss", "held_out_loss", "gap", "cost")}
    assert set(objective_scalars(objective)) == measured | {"rates/0", "rates/3"}
    assert objective_scalars(objective)["rates/0"] == pytest.approx(model[0].p)


def test_run_that_ends_before_rates_are_frozen_is_warned_of() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, Balanced(model, [(x, y)], steps=10))
    with pytest.warns(UserWarning, match="ended before, in the phase 'warm-up'"):
        warn_if_not_frozen(objective)
    for _ in range(5):
        objective(cross_entropies, x, y)
    warn_if_not_frozen(objective)
    warn_if_not_frozen(Objective(small_classifier()[0], examples=20))
