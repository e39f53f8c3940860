"""Validation users of a fit: a fifth of their items is held out, to choose the best epoch and when to stop."""

import warnings

import numpy as np

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.splits import HeldOut, fold_in

__all__ = ["hold_out"]

MIN_USERS = 20
"""Validation users with held-out items; fewer cannot rank epochs."""
MAX_USERS = 10_000
"""Validation users if a share is asked for; more would only take time."""


def hold_out(data: Interactions, validation: float | int, seed: int) -> tuple[Interactions, HeldOut | None]:
    """Training users, and validation users with a fifth of their items held out: a share, a number, or 0 for none."""
    users = len(data.users)
    if not validation:
        return data, None
    count = validation if isinstance(validation, int) else min(round(validation * users), MAX_USERS)
    if isinstance(validation, int) and count >= users:
        raise DropoutError(f"validation: want fewer than the {users:,} users, got {count:,}")
    order = np.random.default_rng(seed).permutation(users)
    held = fold_in(data.select(order[users - count :]), seed=seed % 2**32)
    if held.scored < MIN_USERS:
        warnings.warn(
            f"validation: want {MIN_USERS} held-out users with five items, got {held.scored} among {count:,} of {users:,}"
            " users; all users are trained on for all epochs (validation=0 does so without this warning)",
            stacklevel=3,
        )
        return data, None
    return data.select(order[: users - count]), held
