"""One exception for everything a user can put right; its message says what was wanted, what came, and what to do next."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = ["DropoutError", "first_line", "needs_extra", "refuse"]


class DropoutError(ValueError):
    """Raised for wrong input. Nothing has been changed when it is raised."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, to be quoted in another; its class if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def refuse(complaints: Iterable[str]) -> None:
    """One error with a line for each complaint; none where there is no complaint."""
    if lines := list(complaints):
        raise DropoutError("\n".join(lines))


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Imports of packages that come with an extra; where one is missing, the error says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "lbdrop").startswith("lbdrop"):
            raise  # not the user's to mend
        raise DropoutError(f"{error.name}: package not found; pip install 'lbdrop[{extra}]'") from error
