"""Stand-ins for packages that are not installed, for commands that import them and never use them, as on a bare GPU machine."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["install"]


class _Attributes(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Nothing(metaclass=_Attributes):
    """A class of which others can be made, and whose objects answer everything with such an object."""

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _Nothing()

    def __enter__(self) -> Any:
        return _Nothing()

    def __exit__(self, *error: object) -> None:
        pass


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: set[str]):
        self.packages = packages

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        made = _Module(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: ModuleType) -> None:
        pass


def install(*packages: str) -> list[str]:
    """Stand in for those of the packages that are missing; returns their names."""
    missing = [each for each in packages if importlib.util.find_spec(each) is None]
    if missing:
        sys.meta_path.insert(0, _Finder(set(missing)))
    return missing
