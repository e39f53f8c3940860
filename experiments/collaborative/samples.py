"""Samples of large data sets, small enough for several seeds of every grid: their protocol, on some of their users."""

from typing import NamedTuple

import numpy as np

from lbdrop.recommend.data.prepared import Prepared
from lbdrop.recommend.data.splits import Split, split_users

__all__ = ["SAMPLES", "Sample", "split"]


class Sample(NamedTuple):
    """How many users, and how many of them are for validation and as many for test."""

    users: int
    held_out_users: int


SAMPLES = {"netflix-sample": Sample(60_000, 10_000)}
"""By name: that of the data set, and ``-sample``."""


def split(prepared: Prepared, name: str) -> Split:
    """The parts of the data set ``name``, a sample of what was prepared or all of it."""
    if name not in SAMPLES:
        return prepared.split()
    users, held_out_users = SAMPLES[name]
    seed = prepared.manifest["settings"]["seed"]
    # The protocol's own order begins with its training users, so no held-out user of the whole is in a sample.
    everybody = np.random.RandomState(seed).permutation(len(prepared.interactions.users))
    return split_users(prepared.interactions.select(everybody[:users]), held_out_users, seed)
