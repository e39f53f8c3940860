"""Shapes and types of the whole package are checked while the tests run."""

from importlib.util import find_spec

import pytest
import torch
from jaxtyping import install_import_hook
from torch import nn

with install_import_hook("lbdrop", "beartype.beartype"):
    import lbdrop

    for name in lbdrop.__all__:  # each is loaded when it is first used
        getattr(lbdrop, name)

# Not imported by the package itself. What works with tensors; the rest checks by hand what users give, which tests get wrong
# on purpose.
TENSORS = (
    "rows",
    "networks",
    "latent",
    "latent_priors",
    "flows",
    "likelihoods",
    "row_masks",
    "vae",
    "graphs",
    "evaluate",
    "chunked",
)
VISION = ("vision.crops", "vision.segment", "vision.camvid", "networks.tiramisu", "camvid.scenes")
with install_import_hook(
    [
        "lbdrop.metrics.ranking",
        *(f"lbdrop.recommend.{name}" for name in TENSORS),
        *(f"experiments.{name}" for name in VISION),
    ],
    "beartype.beartype",
):
    if find_spec("polars"):  # the tests of the core run with its own dependencies alone (make torch-versions)
        import lbdrop.recommend

torch.set_num_threads(1)  # tiny tensors: threads would only wait for each other


@pytest.fixture(autouse=True)
def _seeded(doctest_namespace: dict[str, object]) -> None:
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, nn=nn, lbdrop=lbdrop)
