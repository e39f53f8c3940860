"""Shapes and types of the whole package are checked while the tests run."""

from jaxtyping import install_import_hook

with install_import_hook("lbdrop", "beartype.beartype"):
    import lbdrop

import pytest
import torch
from torch import nn

torch.set_num_threads(1)  # tiny tensors: threads would only wait for each other


@pytest.fixture(autouse=True)
def _seeded(doctest_namespace: dict[str, object]) -> None:
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, nn=nn, lbdrop=lbdrop)
