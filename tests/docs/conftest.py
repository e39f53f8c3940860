"""Pages run as a reader runs them: without the checks of shapes that the other tests make."""

from collections.abc import Iterator

import jaxtyping
import pytest

from lbdrop import estimators


@pytest.fixture(autouse=True)
def _estimators_of_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page registers is known on that page alone."""
    monkeypatch.setattr(estimators, "REGISTERED", {})


@pytest.fixture(autouse=True)
def _without_shape_checks() -> Iterator[None]:
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
