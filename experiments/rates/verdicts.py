"""A learned run against a fixed one, seed by seed."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

__all__ = ["LEAST", "LEVEL", "in_words", "paired", "plus_minus", "spread"]

LEAST = 3
"""Seeds from which on a verdict is given."""
LEVEL = 0.05


def paired(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """A paired t-test of losses, two-sided: ``better`` means that ours are lower."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    n = len(differences)
    found: dict[str, Any] = {
        "seeds": n,
        "difference": statistics.fmean(differences),
        "p": None,
        "verdict": "too few seeds",
    }
    if n < LEAST:
        return found
    error = statistics.stdev(differences) / n**0.5
    found["standard_error"] = error
    if error == 0:  # every seed the same: no test, and no doubt
        found["p"] = 1.0 if found["difference"] == 0 else 0.0
    else:
        found["p"] = float(2 * stats.t.sf(abs(found["difference"] / error), n - 1))
    side = "better" if found["difference"] < 0 else "worse"
    found["verdict"] = side if found["p"] < LEVEL else "level"
    return found


def spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """The mean under a name, and its standard error beside it."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return {name: statistics.fmean(values), f"{name} standard error": error}


def plus_minus(found: Mapping[str, Any], name: str) -> str:
    """What :func:`spread` found, as text."""
    error = found[f"{name} standard error"]
    return f"{found[name]:.4f}" + (f" ± {error:.4f}" if error is not None else "")


def in_words(test: Mapping[str, Any]) -> str:
    """What :func:`paired` found, as text."""
    p = f", p {test['p']:.3f}" if test["p"] is not None else ""
    return f"{test['difference']:+.4f} {test['verdict']}{p}"
