"""No file of the package but ``lbdrop/_torch.py`` uses an internal of torch."""

import ast
import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lbdrop
from lbdrop import _torch as internals

PACKAGE = Path(lbdrop.__file__).parent
OF_STRINGS = {"_orig_mod", "_forward_module"}
"""Private names that are read by ``getattr``; elsewhere such a string may be the name of an operation."""


def private_names() -> set[str]:
    """Attributes of torch's own objects that begin with one underscore."""
    objects = (
        torch, torch.Tensor, torch._C, torch.autograd, torch.autograd.Variable, torch.utils.checkpoint, nn, nn.functional,
        nn.Module(), nn.LSTM(1, 1), nn.MultiheadAttention(2, 1), DistributedDataParallel, torch.optim.Adam([torch.zeros(1)]),
        torch.func, torch.cuda, torch.overrides, torch.amp, torch.distributed, torch.fx.Graph(),
    )  # fmt: skip
    names = {name for each in objects for name in dir(each) if name.startswith("_") and not name.startswith("__")}
    return names | OF_STRINGS | {"_active_ddp_module", "_module_parameters"}


def uses_of_internals(source: str, names: set[str]) -> list[str]:
    tree = ast.parse(source)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
                and ast.unparse(n.value) == "self"}  # fmt: skip
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names - defined:
            found.append(ast.unparse(node))
        if isinstance(node, ast.Constant) and node.value in OF_STRINGS:
            found.append(repr(node.value))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += [ast.unparse(node)] if any(part.startswith("_") for part in parts) else []
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("torch.") and "._" in a.name]
    return found


@pytest.mark.parametrize(
    "source",
    ["torch._foreach_norm(x)", "m._parameters", "getattr(m, '_orig_mod', m)", "from torch.utils._pytree import tree_map",
     "import torch._dynamo", "from torch import _C", "x._version", "torch._C._functorch.is_batchedtensor(x)"],
)  # fmt: skip
def test_internals_are_found_in_source(source: str) -> None:
    assert uses_of_internals(source, private_names())


@pytest.mark.parametrize(
    "source",
    [
        "m.weight",
        "self._own()\ndef _own(self): ...",
        "self._version = 1\nself._version",
        "'_convolution'",
        "m.__dict__",
    ],
)
def test_public_and_own_names_are_no_internals(source: str) -> None:
    assert not uses_of_internals(source, private_names())


def test_package_uses_internals_in_one_file_alone() -> None:
    names = private_names()
    found = {
        str(path.relative_to(PACKAGE)).replace(os.sep, "/"): uses
        for path in PACKAGE.rglob("*.py")
        if (uses := uses_of_internals(path.read_text(encoding="utf-8"), names))
    }
    assert found.pop("_torch.py")
    assert found == {}


def test_every_internal_has_a_name_that_says_what_it_is() -> None:
    for name in internals.__all__:
        assert getattr(internals, name).__doc__, name
