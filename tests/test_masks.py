"""Contexts: which masks every layer of a model gets while one is open, and after."""

import pytest
import torch
from torch import Tensor, nn

from lbdrop import DropoutError, LearnableDropout, masks
from lbdrop.dropout import learned_layers
from lbdrop.sources import source_of


def network(scale="none") -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 40),
        LearnableDropout(40, 0.3, scale=scale),
        nn.Linear(40, 30),
        LearnableDropout(30, 0.6, scale=scale),
    )


class Reused(nn.Module):
    """One dropout at two places: two masks a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = LearnableDropout(rate=0.5, scale="none")

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.drop(x), self.drop(x)])


def test_held_masks_repeat_until_the_context_ends() -> None:
    net, x = network(), torch.randn(5, 3)
    with masks.held(net):
        assert torch.equal(net(x), net(x))
    assert not torch.equal(net(x), net(x))


def test_mirrored_pass_uses_the_same_uniforms() -> None:
    layer, x = LearnableDropout(50, 0.3, scale="none"), torch.ones(200, 50)
    with masks.held(layer) as draw:
        z = layer(x)
    with masks.mirrored(layer, draw):
        mirror = layer(x)
    (u,) = draw.uniforms.values()
    keep = layer.keep.detach()
    assert torch.equal(z, (u > 1 - keep).float())
    assert torch.equal(mirror, (u < keep).float())
    # keep is .7 > ½: of an antithetic pair at least one keeps each unit.
    assert bool((z + mirror >= 1).all())


def test_held_draw_and_its_mirror_image_cover_every_layer() -> None:
    net, x = network(), torch.ones(4, 3)
    with masks.held(net) as draw:
        a = net(x)
    with masks.mirrored(net, draw):
        b, again = net(x), net(x)
    assert len(draw.uniforms) == 2
    assert torch.equal(b, again)
    assert not torch.equal(a, b)


def test_each_use_of_a_layer_has_its_own_mask() -> None:
    net, x = Reused(), torch.ones(1, 200)
    with masks.held(net):
        first, second = net(x).split(1)
        assert not torch.equal(first, second)
        assert torch.equal(torch.cat([first, second]), net(x))


def test_generator_fixes_the_masks_of_the_whole_model() -> None:
    net, x = network().eval(), torch.randn(5, 3)
    outputs = []
    for _ in range(2):
        with masks.drawn(net, torch.Generator().manual_seed(3)):
            outputs.append(net(x))
    assert torch.equal(*outputs)


def test_fixed_masks_keep_the_named_units_alone() -> None:
    net, x = network(), torch.randn(5, 3)
    keep_two = torch.zeros(40)
    keep_two[[3, 8]] = 1
    with masks.fixed(net, {"1": keep_two, "3": torch.ones(30)}):
        y = net(x)
    hidden = net[0](x)[:, [3, 8]]
    torch.testing.assert_close(y, hidden @ net[2].weight[:, [3, 8]].T + net[2].bias)


def test_deterministic_pass_in_training_mode_is_that_of_eval_mode() -> None:
    net, x = network(), torch.randn(5, 3)
    with masks.deterministic(net):
        inside = net(x)
    assert torch.equal(inside, net.eval()(x))


def test_error_inside_a_context_ends_it() -> None:
    net = network()
    with pytest.raises(RuntimeError), masks.held(net):
        net(torch.randn(5, 4))
    assert all(source_of(layer) is None for layer in learned_layers(net).values())
    assert not net._forward_pre_hooks


def test_wrong_use_is_named() -> None:
    net = network()
    with (
        pytest.raises(DropoutError, match=r"want names among \['1', '3'\], got \['2'\]"),
        masks.fixed(net, {"2": torch.ones(1)}),
    ):
        pass
    with pytest.raises(DropoutError, match="open a new context"), masks.held(net):
        net(torch.randn(5, 3))
        net(torch.randn(6, 3))
    with pytest.raises(DropoutError, match=r"lbdrop.convert"), masks.drawn(nn.Linear(2, 2)):
        pass
