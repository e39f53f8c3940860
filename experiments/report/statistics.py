"""Statistics of several runs: means and standard errors over seeds, and paired differences with their verdicts.

mean ± s.e.    x̄ ± s/√n over the n seeds of a method
difference     the same over dᵢ = aᵢ − bᵢ of the seeds two methods share; from three on with d̄ ± t₀.₉₇₅(n−1) · s.e.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Measure", "judged", "paired", "stat", "t_95"]


@dataclass(frozen=True)
class Measure:
    """How a number is named, printed and compared."""

    label: str
    larger_is_better: bool
    scale: int = 1
    digits: int = 4


def stat(values: Iterable[float | None]) -> dict[str, Any] | None:
    """Mean, standard error and count of what is there.

    >>> stat([1.0, 3.0, None]), stat([None])
    ({'mean': 2.0, 'se': 1.0, 'n': 2}, None)
    """
    there = np.array([value for value in values if value is not None], dtype=float)
    if not len(there):
        return None
    error = float(there.std(ddof=1)) / math.sqrt(len(there)) if len(there) > 1 else None
    return {"mean": float(there.mean()), "se": error, "n": len(there)}


def t_95(freedom: int) -> float:
    """The 97.5 % point of Student's t: with t = √ν tan θ the density of θ is proportional to cos^(ν−1) θ.

    >>> round(t_95(2), 3), round(t_95(30), 3)
    (4.303, 2.042)
    """
    angle = np.linspace(0, np.pi / 2, 100_001)
    middle = np.cos((angle[1:] + angle[:-1]) / 2) ** (freedom - 1)
    share = np.concatenate([[0.0], middle.cumsum() / middle.sum()])
    return math.sqrt(freedom) * math.tan(float(np.interp(0.95, share, angle)))


def paired(pairs: Iterable[tuple[float | None, float | None]]) -> dict[str, Any] | None:
    """Mean, standard error and, from three pairs on, 95 % t interval of the first minus the second.

    >>> paired([(1.0, 0.0), (3.0, 0.0)])
    {'mean': 2.0, 'se': 1.0, 'n': 2, 'interval': None}
    """
    if (d := stat(x - y for x, y in pairs if x is not None and y is not None)) is None:
        return None
    half = t_95(d["n"] - 1) * d["se"] if d["n"] >= 3 else None
    return d | {"interval": None if half is None else [d["mean"] - half, d["mean"] + half]}


def judged(value: Mapping[str, Any], larger_is_better: bool = True) -> str:
    """Better, worse or level, by the 95 % interval of a difference; without one the seeds are too few to say."""
    if value["interval"] is None:
        return "too few seeds"
    low, high = value["interval"]
    if low <= 0 <= high:
        return "level"
    return "better" if (low > 0) == larger_is_better else "worse"
