"""Tests check shapes with jaxtyping; some tests need the package's own errors instead, as users get them."""

import jaxtyping
import pytest


@pytest.fixture
def unhooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user runs it: annotations are not enforced."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
