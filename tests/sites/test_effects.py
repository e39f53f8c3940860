"""What a module drops is known by its effect on ones; a module that does more is not taken for a dropout."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lbdrop
from lbdrop.dropout import learned_layers
from lbdrop.sites.effects import effect_of
from lbdrop.sites.example import same_outputs


class Module(nn.Module):
    def __init__(self, of: Callable[[nn.Module, Tensor], Tensor]):
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> Tensor:
        return self.of(self, x)


def dropped(module: nn.Module, x: Tensor) -> Tensor:
    return F.dropout(x, 0.25, module.training)


@pytest.mark.parametrize(
    "more", [F.relu, torch.sqrt, lambda x: x.clamp(-1, 1), lambda x: x / x.square().mean(-1, keepdim=True).sqrt()]
)
def test_dropout_behind_something_that_leaves_ones_alone_is_a_draw_and_no_module(
    more: Callable[[Tensor], Tensor],
) -> None:
    model = nn.Sequential(nn.Linear(3, 12), Module(lambda module, x: dropped(module, more(x)))).eval()
    with pytest.raises(lbdrop.DropoutError, match=r"dropout that cannot be reached: \['1 \(Module\)'\]"):
        lbdrop.convert(model, verbose=False)
    x = torch.randn(4, 3)
    before = model(x)
    lbdrop.convert(model, example=x, verbose=False)
    assert [*learned_layers(model)] == ["1.learned_draws.dropout0"]
    assert torch.equal(model(x).nan_to_num(), before.nan_to_num())


def test_module_that_drops_some_shapes_alone_is_unknown() -> None:
    effect = effect_of(Module(lambda module, x: dropped(module, x) if x.dim() == 3 else x))
    assert effect is not None
    assert effect.drops == "unknown"


class Stateful(nn.Module):
    """Counts its calls, raises its rate with them, and has a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.generator = 0, torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        kept = torch.rand(x.shape, generator=self.generator) > 0.2
        return x * kept / 0.8 if self.training else x


def test_trial_of_a_module_leaves_its_state_and_the_random_state() -> None:
    module = Stateful()
    own, all_devices = module.generator.get_state(), torch.get_rng_state()
    effect = effect_of(module)
    assert effect is not None
    assert effect.rate == 0.2
    assert module.calls == 0
    assert torch.equal(module.generator.get_state(), own)
    assert torch.equal(torch.get_rng_state(), all_devices)


def test_trial_of_a_module_seeds_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    effect_of(Module(dropped))
    assert not seeded


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_outputs_that_are_not_finite_hide_no_difference(odd: float) -> None:
    before = torch.tensor([1.0, odd])
    assert same_outputs(before, before.clone())
    assert not same_outputs(before, torch.tensor([2.0, odd]))
    assert not same_outputs(before, torch.tensor([1.0, 1.0]))
    assert not same_outputs(before, before[:1])
