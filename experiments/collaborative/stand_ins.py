"""Stand-ins for packages that are not installed, for commands that import them and never use them, as on a bare GPU machine."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar
from unittest.mock import MagicMock

__all__ = ["install"]


class _Module(ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: set[str]):
        self.packages = packages

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install(*packages: str) -> list[str]:
    """Stand in for those of the packages that are missing; returns their names."""
    missing = [each for each in packages if importlib.util.find_spec(each) is None]
    if missing:
        sys.meta_path.insert(0, _Finder(set(missing)))
    return missing
