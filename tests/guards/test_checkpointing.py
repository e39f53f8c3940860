"""Activation checkpointing under the objective gives the right gradients or an error, never a wrong gradient."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lbdrop

pytestmark = pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad"
)  # from torch, about blocks without gradients

X, Y = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 3


class Net(nn.Module):
    """Two dropouts; one block of the forward pass may be checkpointed."""

    def __init__(self, block: str, reentrant: bool | None):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.drop, self.drop_2 = nn.Dropout(0.4), nn.Dropout(0.3)
        self.block, self.reentrant = block, reentrant

    def run(self, block: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if self.reentrant is None or block != self.block or not self.training:
            return function(x)
        return checkpoint(function, x, use_reentrant=self.reentrant)  # pyright: ignore[reportReturnType]

    def forward(self, x: Tensor) -> Tensor:
        h = self.run("before", lambda x: torch.relu(self.first(x)), x.requires_grad_())
        h = self.run("around", lambda h: self.drop_2(self.second(self.drop(h))), h)
        return self.last(self.run("behind", lambda h: torch.tanh(h * 2), h))


def gradients(block: str, reentrant: bool | None, **settings: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    net = lbdrop.convert(Net(block, reentrant), verbose=False)
    objective = lbdrop.Objective(net, **settings)

    def losses(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(m(x), y, reduction="none")

    objective(losses, X.clone(), Y)  # chooses the engine, and draws some masks for it
    torch.manual_seed(1)
    objective(losses, X.clone(), Y).backward()
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def of_held_out_data() -> dict[str, Any]:
    return {"held_out": [(X.clone(), Y)], "steps": 100}


def assert_same(block: str, reentrant: bool, settings: Callable[[], dict[str, Any]]) -> None:
    plain, checkpointed = gradients(block, None, **settings()), gradients(block, reentrant, **settings())
    assert plain.keys() == checkpointed.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(checkpointed[name], expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_before_the_dropouts_changes_no_gradient(reentrant: bool):
    assert_same("before", reentrant, lambda: {"examples": 100})


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("block", ["before", "around", "behind"])
def test_checkpoint_under_the_held_out_rule_changes_no_gradient(block: str, reentrant: bool):
    assert_same(block, reentrant, of_held_out_data)


def test_checkpoint_behind_several_masks_is_right_where_it_is_not_reentrant():
    assert_same("behind", False, lambda: {"examples": 100})


@pytest.mark.parametrize(("block", "reentrant"), [("around", True), ("around", False), ("behind", True)])
def test_checkpoint_where_several_masks_are_drawn_is_refused(block: str, reentrant: bool):
    with pytest.raises(lbdrop.DropoutError, match="checkpoint: want no"):
        gradients(block, reentrant, examples=100)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_around_masks_of_a_generator_is_refused(reentrant: bool):
    with pytest.raises(lbdrop.DropoutError, match="own generator"):
        gradients("around", reentrant, **of_held_out_data(), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("reentrant", [True, False])
def test_block_that_would_draw_other_masks_when_computed_again_is_refused(
    reentrant: bool, monkeypatch: pytest.MonkeyPatch
):
    unrestored = functools.partial(checkpoint, preserve_rng_state=False)
    monkeypatch.setattr(sys.modules[__name__], "checkpoint", unrestored)
    with pytest.raises(lbdrop.DropoutError, match="got one with preserve_rng_state=False"):
        gradients("around", reentrant, **of_held_out_data())
    assert_same("before", reentrant, of_held_out_data)  # nothing is drawn in it


@pytest.mark.filterwarnings("ignore:objective. want gradients on")
def test_checkpoint_without_gradients_is_allowed():
    net = lbdrop.convert(Net("around", True), verbose=False)
    objective = lbdrop.Objective(net, examples=100)
    with torch.no_grad():
        assert torch.isfinite(objective(lambda m: F.cross_entropy(m(X.clone()), Y, reduction="none")))
