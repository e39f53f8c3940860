"""Find functional dropout, which no replaced module can reach: in the source, and while a model runs."""

import ast
import functools
import inspect
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from lbdrop.errors import DropoutError

__all__ = ["REPAIR", "functional_dropout", "functional_sites", "report_unreachable"]

DROPOUTS: set[Any] = {
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout,
    torch.dropout, torch.dropout_, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout,
}  # fmt: skip
ATTENTION = F.scaled_dot_product_attention
REPAIR = "make it a module: self.drop = nn.Dropout(p) in __init__, self.drop(x) in forward"


def functional_sites(model: nn.Module) -> list[str]:
    """Calls of functional dropout in the source of a model's own classes, as "name (Class.method, line): call"."""
    sites = []
    for name, module in model.named_modules():
        for cls in type(module).__mro__:
            if cls is nn.Module or cls.__module__.startswith(("torch.", "lbdrop")):
                break
            sites += [f"{name or 'the model'} ({where})" for where in _calls(cls)]
    return sites


@functools.cache  # to find a class in its file takes long, and a deep model has many modules of one class
def _calls(cls: type) -> tuple[str, ...]:
    try:
        lines, first = inspect.getsourcelines(cls)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # no source: the watch finds it when the model runs
        return ()
    names = getattr(inspect.getmodule(cls), "__dict__", {})
    return tuple(
        f"{cls.__name__}, line {first + node.lineno - 1}: {ast.unparse(node.func)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _drops(node, _resolve(node.func, names))
    )


def _resolve(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_resolve(node.value, names), node.attr, None)
    return None


def _drops(call: ast.Call, function: Any) -> bool:
    if not callable(function):
        return False
    arguments = {keyword.arg: keyword.value for keyword in call.keywords}
    if function in DROPOUTS:
        rate = arguments.get("p", call.args[1] if len(call.args) > 1 else None)
    elif function is ATTENTION:
        rate = arguments.get("dropout_p", call.args[4] if len(call.args) > 4 else ast.Constant(0))
    else:
        return False
    return not (isinstance(rate, ast.Constant) and not rate.value)


class _Watch(TorchFunctionMode):
    """Notes each call of a functional dropout that is on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS or func is ATTENTION:
            try:
                arguments = inspect.signature(func).bind(*args, **kwargs).arguments
            except ValueError:  # a builtin without a signature: (input, p, train)
                arguments = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
            rate = arguments.get("dropout_p", 0.0) if func is ATTENTION else arguments.get("p", 0.5)
            if rate and (func is ATTENTION or arguments.get("training", arguments.get("train", True))):
                self.found.append(f"{getattr(func, '__name__', func)}(p={rate})")
        return func(*args, **kwargs)


@contextmanager
def functional_dropout(model: nn.Module, unreached: str) -> Iterator[None]:
    """Run the block; report afterwards if a functional dropout was active in it."""
    with _Watch() as watch:
        yield
    if watch.found:
        report_unreachable(
            f"{type(model).__name__} drops out inside a function: {sorted(set(watch.found))}", REPAIR, unreached
        )


def report_unreachable(what: str, repair: str, unreached: str) -> None:
    """An error, or a warning with ``unreached="warn"``, about dropout whose rate cannot be learned."""
    message = f"{what}; its rate cannot be learned there. Next: {repair}, or allow it with unreached='warn'"
    if unreached == "error":
        raise DropoutError(message)
    warnings.warn(message, stacklevel=3)
