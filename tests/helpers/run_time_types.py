"""Which functions of the package have their types and shapes checked while the tests run.

jaxtyping's import hook binds the arguments of every call and checks them twice, and it compiles a checker for a nested
function each time that one is defined: most of a test's time. Here shapes are checked where annotations have some, types alone
elsewhere, and nested functions are left alone.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jaxtyping
from beartype import beartype
from jaxtyping import config

with_shapes = jaxtyping.jaxtyped


def checked(typechecker: Any) -> Callable[[Any], Any]:
    """As ``jaxtyping.jaxtyped``, by what the annotations need."""

    def decorate(function: Any) -> Any:
        if "<locals>" in function.__qualname__:
            return function
        if isinstance(function, type) or has_shapes(function):
            return with_shapes(function, typechecker=typechecker)
        return with_types(function)

    return decorate


def with_types(function: Callable[..., Any]) -> Callable[..., Any]:
    typed = beartype(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if config.jaxtyping_disable else typed)(*args, **kwargs)

    return call


def has_shapes(function: Callable[..., Any]) -> bool:
    return any("jaxtyping." in repr(annotation) for annotation in function.__annotations__.values())


def check_types(*modules: str) -> AbstractContextManager[None]:
    """What is imported of these modules, by the end of a with block if there is one, is checked whenever it is called."""
    jaxtyping.jaxtyped = checked  # stays: nested functions ask for it whenever they are defined
    return jaxtyping.install_import_hook(list(modules), "beartype.beartype")
