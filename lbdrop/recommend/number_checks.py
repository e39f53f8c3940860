"""Checks of numbers that a user passes: type, finiteness, range."""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from lbdrop.errors import DropoutError

__all__ = ["check_number", "to_python_number"]


def to_python_number(value: Any) -> Any:
    """A number of numpy as Python's own, which JSON can write; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def check_number(
    name: str,
    value: Any,
    *,
    integer: bool = False,
    minimum: int | float | None = None,
    above: int | float | None = None,
    maximum: int | float | None = None,
) -> None:
    """An error unless the value is a finite number within these bounds; ``above`` is an exclusive lower bound.

    >>> check_number("factors", 2.5, integer=True)
    Traceback (most recent call last):
    lbdrop.errors.DropoutError: factors: want a whole number, got 2.5
    """
    if not isinstance(value, Integral if integer else Real) or isinstance(value, bool):
        want = "a whole number" if integer else "a number"
    elif not isinstance(value, Integral) and not math.isfinite(value):
        want = "a finite number"
    elif minimum is not None and value < minimum:
        want = f"at least {minimum:,}"
    elif above is not None and value <= above:
        want = f"more than {above:,}"
    elif maximum is not None and not value <= maximum:
        want = f"at most {maximum:,}"
    else:
        return
    raise DropoutError(f"{name}: want {want}, got {value!r}")
