"""The door to the laboratory: commands that live in ``experiments``, beside the package in a checkout, and in no wheel."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from lbdrop.errors import DropoutError

__all__ = ["laboratory"]

CHECKOUT = Path(__file__).resolve().parents[2]


def laboratory(module: str) -> ModuleType:
    """A module of ``experiments`` by its name there; an error with the next step where there is none."""
    if not (CHECKOUT / "experiments" / "commands").is_dir():
        raise DropoutError(
            "experiments: want a checkout of lbdrop, got an installed package, which has none; run git clone on lbdrop's"
            " repository, then make setup in it"
        )
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))  # first: a folder called experiments may lie where the command is run
    return import_module(f"experiments.{module}")
