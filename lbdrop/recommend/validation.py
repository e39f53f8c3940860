"""Users held out of a fit, a fifth of whose items tell one epoch from another and when to stop."""

import warnings

import numpy as np

from lbdrop.errors import DropoutError
from lbdrop.recommend.interactions import Interactions
from lbdrop.recommend.splits import HeldOut, fold_in

__all__ = ["hold_out"]

FEWEST = 20
"""Validation users with something to find; fewer cannot tell one epoch from another."""
MOST = 10_000
"""Validation users of a share; more would only take time."""


def hold_out(data: Interactions, wanted: float | int, seed: int) -> tuple[Interactions, HeldOut | None]:
    """Training users, and validation users with a fifth of their items held out: a share, a number, or 0 for none."""
    users = len(data.users)
    if not wanted:
        return data, None
    count = wanted if isinstance(wanted, int) else min(round(wanted * users), MOST)
    if isinstance(wanted, int) and count >= users:
        raise DropoutError(f"validation: want fewer than the {users:,} users, got {count:,}")
    order = np.random.default_rng(seed).permutation(users)
    held = fold_in(data.select(order[users - count :]), seed=seed % 2**32)
    if held.scored < FEWEST:
        warnings.warn(
            f"validation: want {FEWEST} held-out users with five items, got {held.scored} among {count:,} of {users:,}"
            " users; all users are trained on for all epochs (validation=0 says so without this warning)",
            stacklevel=3,
        )
        return data, None
    return data.select(order[: users - count]), held
