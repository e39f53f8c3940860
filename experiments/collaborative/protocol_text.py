"""A run of the recommender's table in one sentence, for its record."""

from collections.abc import Mapping
from typing import Any

__all__ = ["protocol"]


def protocol(data_name: str, c: Mapping[str, int], made: Mapping[str, Any], schedule: Any, measure: str) -> str:
    """What was done; what every run of a table shares comes first.

    Args:
        data_name: what it was trained on.
        c: users, items and likes of each part.
        made: the run's part of its record.
        schedule: the data set's own.
        measure: what validation chooses by.
    """
    data = (
        f"{data_name}, users split as by Liang et al. 2018: {c['train_users']:,} to train on with {c['train_likes']:,} likes"
        f" of {c['items']:,} items, {c['validation_users']:,} for validation, {c['test_users']:,} for test, a fifth of whose"
        " items is held out"
    )
    if (choice := made["choice"]) is not None:
        count = len(choice["tried"])
        return f"{data}; {choice['by']} chooses among {count} settings" if count > 1 else f"{data}; one setting"
    s = made["settings"]
    whole = s["epochs"] * (2 if s["alternate"] else 1) >= schedule.epochs - 1
    source = f"scaled from {schedule.epochs} epochs of batches of {schedule.batch}, and the KL's annealing with them"
    if not schedule.published:
        source = "our choice: these data are not in the paper"
    elif whole and s["batch"] == schedule.batch:
        source = "as published"
    passes = f"; an epoch is {s['alternate']} passes for the encoder and one for the decoder" if s["alternate"] else ""
    weight = (
        f"the KL weighs {s['gamma']:g} for each of the user's items" if s["gamma"] is not None
        else f"the KL's weight rises to {s['beta_cap']:g} by 1/{s['anneal_steps']:,} a step"
    )  # fmt: skip
    falls = f", learning rates fall to {s['final_lr']:g} of themselves" if s["final_lr"] < 1 else ""
    early = f" (stopped after {len(made['history'])})" if made["stopped_early"] else ""
    return (
        f"{data}; {s['epochs']} epochs{early} of batches of {s['batch']}, {source}{passes}{falls}; {weight}; the epoch with"
        f" the best validation {measure}; masks averaged at test: {made['masks']['at_test']}, chosen on validation"
    )
