"""Shapes and types of the whole package are checked while the tests run."""

from importlib.util import find_spec

import jaxtyping
import pytest
import torch
from helpers.run_time_types import check_types
from torch import nn

with check_types("lbdrop"):
    import lbdrop

    for name in lbdrop.__all__:  # each is loaded when it is first used
        getattr(lbdrop, name)

# The package does not import these by itself. They work with tensors; the rest checks by hand what users give, which
# tests get wrong on purpose.
RECOMMENDER = (
    "chunked_loss",
    "cuda_graphs",
    "evaluate",
    "flows",
    "latent",
    "latent_priors",
    "likelihoods",
    "networks",
    "row_masks",
    "rows",
    "vae",
)
with check_types("lbdrop.metrics.ranking", *(f"lbdrop.recommend.{name}" for name in RECOMMENDER)):
    if find_spec("polars"):  # the tests of the core run with its own dependencies alone (make torch-versions)
        import lbdrop.recommend

EXPERIMENTS = ("camvid.scenes", "networks.tiramisu", "rival_rules", "vision.camvid", "vision.crops", "vision.segment")
check_types(*(f"experiments.{name}" for name in EXPERIMENTS))  # whenever a test imports them

torch.set_num_threads(1)  # tiny tensors: threads would only wait for each other


@pytest.fixture
def without_type_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user runs the package: what annotations forbid meets its own errors."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(autouse=True)
def _seeded(doctest_namespace: dict[str, object]) -> None:
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, nn=nn, lbdrop=lbdrop)
