"""Estimators of one's own: what a file of this folder registers is in the toy example and in ``benchmarks.variance``.

A file is a function and a call of :func:`lbdrop.estimators.register`; docs/the_gradient.md has one.
"""

from importlib import import_module
from pkgutil import iter_modules

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")
