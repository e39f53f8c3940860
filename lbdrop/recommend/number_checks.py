"""Numbers as a user gives them, checked: whether they are any, finite, whole, and within their range."""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from lbdrop.errors import DropoutError

__all__ = ["check_number", "plain"]


def plain(value: Any) -> Any:
    """A number of numpy's as Python's own, which JSON knows; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def check_number(
    name: str,
    value: Any,
    *,
    whole: bool = False,
    least: int | float | None = None,
    above: int | float | None = None,
    most: int | float | None = None,
) -> None:
    """An error unless the value is a finite number, whole if it must be, and from ``least`` or beyond ``above`` to ``most``.

    >>> check_number("factors", 2.5, whole=True)
    Traceback (most recent call last):
    lbdrop.errors.DropoutError: factors: want a whole number, got 2.5
    """
    if not isinstance(value, Integral if whole else Real) or isinstance(value, bool):
        want = "a whole number" if whole else "a number"
    elif not isinstance(value, Integral) and not math.isfinite(value):
        want = "a finite number"
    elif least is not None and value < least:
        want = f"at least {least:,}"
    elif above is not None and value <= above:
        want = f"more than {above:,}"
    elif most is not None and not value <= most:
        want = f"at most {most:,}"
    else:
        return
    raise DropoutError(f"{name}: want {want}, got {value!r}")
