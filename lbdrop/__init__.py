"""Learned Bernoulli dropout for PyTorch. This file is the map: every public name, in the order one meets them.

Names are loaded when they are first used, so that the command line and ``import lbdrop`` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lbdrop import estimators as estimators
    from lbdrop import masks as masks
    from lbdrop.dropout import LearnableDropout as LearnableDropout
    from lbdrop.errors import DropoutError as DropoutError
    from lbdrop.guards.optimizers import parameter_groups as parameter_groups
    from lbdrop.objective import Objective as Objective
    from lbdrop.prediction import Predictive as Predictive
    from lbdrop.prediction import predict as predict
    from lbdrop.rivals import ConcreteDropout as ConcreteDropout
    from lbdrop.rivals import FixedDropout as FixedDropout
    from lbdrop.rivals import GaussianDropout as GaussianDropout
    from lbdrop.rivals import RegularDropout as RegularDropout
    from lbdrop.rules.balanced import Balanced as Balanced
    from lbdrop.rules.bound import Bound as Bound
    from lbdrop.rules.rule import Rule as Rule
    from lbdrop.sites.bake import bake as bake
    from lbdrop.sites.convert import convert as convert
    from lbdrop.sites.prune import prune as prune
    from lbdrop.sites.weights import load_weights as load_weights

HOMES = {
    "convert": "sites.convert",
    "LearnableDropout": "dropout",
    "Objective": "objective",
    "parameter_groups": "guards.optimizers",
    "Balanced": "rules.balanced",
    "Bound": "rules.bound",
    "Rule": "rules.rule",
    "predict": "prediction",
    "Predictive": "prediction",
    "bake": "sites.bake",
    "prune": "sites.prune",
    "load_weights": "sites.weights",
    "ConcreteDropout": "rivals",
    "FixedDropout": "rivals",
    "GaussianDropout": "rivals",
    "RegularDropout": "rivals",
    "DropoutError": "errors",
}
"""The module of each public name."""
MODULES = ("estimators", "masks")

__all__ = ["__version__", *HOMES, *MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return import_module(f"lbdrop.{name}")
    if name == "__version__":
        value = import_module("importlib.metadata").version("lbdrop")
    elif name in HOMES:
        value = getattr(import_module(f"lbdrop.{HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'lbdrop' has no attribute {name!r}; public names: {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
