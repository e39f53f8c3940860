"""Shapes are checked by jaxtyping in tests only; users meet the package's own errors, and so must some tests."""

import jaxtyping
import pytest


@pytest.fixture
def unhooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user runs it: annotations are not enforced."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
