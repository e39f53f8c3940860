"""One exception for everything a user can put right; its message says what was wanted, what came, and what to do next."""

__all__ = ["DropoutError"]


class DropoutError(ValueError):
    """Raised for wrong input. Nothing has been changed when it is raised."""
